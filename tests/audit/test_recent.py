"""Partial verification: tampering with the newest entries is detected, and skipped seals are counted."""

import pytest

from pabal.audit.verify import RecentVerification, verify_recent_seals
from support.audit_log import Ledger

pytestmark = pytest.mark.anyio


async def verify_recent(ledger: Ledger, seals: int = 2, rows: int = 1000) -> RecentVerification:
    async with ledger.hub.autocommit() as tx:
        return await verify_recent_seals(tx, ledger.keys, seals, rows)


async def breaks(ledger: Ledger, seals: int = 2) -> list[tuple[str, int | None, int | None]]:
    return [
        (chain_break.kind, chain_break.seal, chain_break.row)
        for chain_break in (await verify_recent(ledger, seals)).report.breaks
    ]


async def test_a_short_log_is_verified_completely(ledger: Ledger) -> None:
    assert (await verify_recent(ledger)).report.seals == 0
    await ledger.chain(3, 1)
    await ledger.write(4)

    verification = await verify_recent(ledger)

    assert verification.skipped_seals == 0
    assert verification.report == await ledger.verify()


@pytest.mark.parametrize(
    ("seals", "rows", "verified_seals", "verified_rows"),
    [(2, 1000, 2, 3), (4, 4, 3, 6), (4, 3, 2, 3), (4, 1, 1, 2), (1, 1, 1, 2)],
)
async def test_the_newest_seals_within_the_limits_are_verified(
    ledger: Ledger, seals: int, rows: int, verified_seals: int, verified_rows: int
) -> None:
    await ledger.chain(4, 3, 1, 2)

    verification = await verify_recent(ledger, seals, rows)

    assert (verification.report.seals, verification.report.rows, verification.skipped_seals) == (
        verified_seals,
        verified_rows,
        4 - verified_seals,
    )
    assert verification.report.broken == 0
    assert verification.report.head == (await ledger.verify()).head


async def test_changed_removed_and_inserted_rows_are_reported(ledger: Ledger) -> None:
    _, _, [changed, removed], [_, last] = await ledger.chain(2, 2, 2, 2)

    await ledger.tamper(
        f"update pabal.audit_log set actor = 'other' where id = {changed}",
        f"delete from pabal.audit_log where id = {removed}",
        f"insert into pabal.audit_log (id, actor, action, xid) values ({last + 1}, 'x', 'y', '3')",
    )

    assert sorted(await breaks(ledger), key=str) == [
        ("row_added", None, last + 1),
        ("row_changed", 3, changed),
        ("row_removed", 3, removed),
    ]


async def test_a_changed_or_removed_seal_is_reported(ledger: Ledger) -> None:
    await ledger.chain(1, 1, 1, 1)
    await ledger.tamper("delete from pabal.audit_seals where id = 3")

    assert ("seal_removed", 4, None) in await breaks(ledger, seals=2)
    assert ("seal_removed", 4, None) in await breaks(ledger, seals=1)


async def test_rows_of_older_seals_are_not_reported_as_inserted(ledger: Ledger) -> None:
    """Rows are sealed in the order of transactions: an old seal may contain a row between those of newer seals."""
    async with ledger.owner() as conn:
        await conn.execute("begin")
        await conn.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await ledger.write(2)
        await conn.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await conn.execute("commit")
    await ledger.chain(1, 1)

    assert (await verify_recent(ledger, seals=1)).skipped_seals == 1
    assert await breaks(ledger, seals=1) == []
