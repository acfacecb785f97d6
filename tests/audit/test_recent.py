"""Partial verification: tampering with the newest entries is detected, and skipped seals are counted."""

import pytest

from pabal.audit.verify import RecentVerification, verify_recent_seals
from support.audit_log import AuditLog

pytestmark = pytest.mark.anyio


async def verify_recent(audit_log: AuditLog, seals: int = 2, rows: int = 1000) -> RecentVerification:
    async with audit_log.hub.autocommit() as tx:
        return await verify_recent_seals(tx, audit_log.keys, seals, rows)


async def breaks(audit_log: AuditLog, seals: int = 2) -> list[tuple[str, int | None, int | None]]:
    return [
        (chain_break.kind, chain_break.seal, chain_break.row)
        for chain_break in (await verify_recent(audit_log, seals)).report.breaks
    ]


async def test_a_short_log_is_verified_completely(audit_log: AuditLog) -> None:
    assert (await verify_recent(audit_log)).report.seals == 0
    await audit_log.write_sealed(3, 1)
    await audit_log.write(4)

    verification = await verify_recent(audit_log)

    assert verification.skipped_seals == 0
    assert verification.report == await audit_log.verify()


@pytest.mark.parametrize(
    ("seals", "rows", "verified_seals", "verified_rows"),
    [(2, 1000, 2, 3), (4, 4, 3, 6), (4, 3, 2, 3), (4, 1, 1, 2), (1, 1, 1, 2)],
)
async def test_the_newest_seals_within_the_limits_are_verified(
    audit_log: AuditLog, seals: int, rows: int, verified_seals: int, verified_rows: int
) -> None:
    await audit_log.write_sealed(4, 3, 1, 2)

    verification = await verify_recent(audit_log, seals, rows)

    assert (verification.report.seals, verification.report.rows, verification.skipped_seals) == (
        verified_seals,
        verified_rows,
        4 - verified_seals,
    )
    assert verification.report.broken == 0
    assert verification.report.head == (await audit_log.verify()).head


async def test_changed_removed_and_inserted_rows_are_reported(audit_log: AuditLog) -> None:
    _, _, [changed, removed], [_, last] = await audit_log.write_sealed(2, 2, 2, 2)

    await audit_log.tamper(
        f"update pabal.audit_log set actor = 'other' where id = {changed}",
        f"delete from pabal.audit_log where id = {removed}",
        f"insert into pabal.audit_log (id, actor, action, xid) values ({last + 1}, 'x', 'y', '3')",
    )

    assert sorted(await breaks(audit_log), key=str) == [
        ("row_added", None, last + 1),
        ("row_changed", 3, changed),
        ("row_removed", 3, removed),
    ]


async def test_a_changed_or_removed_seal_is_reported(audit_log: AuditLog) -> None:
    await audit_log.write_sealed(1, 1, 1, 1)
    await audit_log.tamper("delete from pabal.audit_seals where id = 3")

    assert ("seal_removed", 4, None) in await breaks(audit_log, seals=2)
    assert ("seal_removed", 4, None) in await breaks(audit_log, seals=1)


async def test_rows_of_older_seals_are_not_reported_as_inserted(audit_log: AuditLog) -> None:
    """Rows are sealed in the order of transactions: an old seal may contain a row between those of newer seals."""
    async with audit_log.owner() as conn:
        await conn.execute("begin")
        await conn.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await audit_log.write(2)
        await conn.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await conn.execute("commit")
    await audit_log.write_sealed(1, 1)

    assert (await verify_recent(audit_log, seals=1)).skipped_seals == 1
    assert await breaks(audit_log, seals=1) == []
