"""The end of the chain: what was done to the newest of the log is found out, and what is left out is said."""

import pytest

from pabal.audit.verify import RecentVerification, verify_recent_seals
from support.audit_log import Ledger

pytestmark = pytest.mark.anyio


async def looked(ledger: Ledger, seals: int = 2, rows: int = 1000) -> RecentVerification:
    async with ledger.hub.autocommit() as tx:
        return await verify_recent_seals(tx, ledger.keys, seals, rows)


async def breaks(ledger: Ledger, seals: int = 2) -> list[tuple[str, int | None, int | None]]:
    return [(each.kind, each.seal, each.row) for each in (await looked(ledger, seals)).report.breaks]


async def test_a_short_log_is_looked_at_as_a_whole(ledger: Ledger) -> None:
    assert (await looked(ledger)).report.seals == 0
    await ledger.chain(3, 1)
    await ledger.write(4)

    found = await looked(ledger)

    assert found.skipped_seals == 0
    assert found.report == await ledger.verify()


@pytest.mark.parametrize(
    ("seals", "rows", "checked", "named"), [(2, 1000, 2, 3), (4, 4, 3, 6), (4, 3, 2, 3), (4, 1, 1, 2), (1, 1, 1, 2)]
)
async def test_as_many_of_the_newest_seals_as_fit_are_checked(
    ledger: Ledger, seals: int, rows: int, checked: int, named: int
) -> None:
    await ledger.chain(4, 3, 1, 2)

    found = await looked(ledger, seals, rows)

    assert (found.report.seals, found.report.rows, found.skipped_seals) == (checked, named, 4 - checked)
    assert found.report.broken == 0
    assert found.report.head == (await ledger.verify()).head


async def test_rows_changed_removed_and_put_in_are_named(ledger: Ledger) -> None:
    _, _, [changed, removed], [_, last] = await ledger.chain(2, 2, 2, 2)

    await ledger.tamper(
        f"update pabal.audit_log set actor = 'nobody' where id = {changed}",
        f"delete from pabal.audit_log where id = {removed}",
        f"insert into pabal.audit_log (id, actor, action, xid) values ({last + 1}, 'x', 'y', '3')",
    )

    assert sorted(await breaks(ledger), key=str) == [
        ("row_added", None, last + 1),
        ("row_changed", 3, changed),
        ("row_removed", 3, removed),
    ]


async def test_a_seal_that_was_changed_or_taken_from_between_shows(ledger: Ledger) -> None:
    await ledger.chain(1, 1, 1, 1)
    await ledger.tamper("delete from pabal.audit_seals where id = 3")

    assert ("seal_removed", 4, None) in await breaks(ledger, seals=2)
    assert ("seal_removed", 4, None) in await breaks(ledger, seals=1)


async def test_rows_of_older_seals_are_not_taken_for_ones_put_in(ledger: Ledger) -> None:
    """Ids are sealed in the order of transactions: an old seal may name a row between those of newer ones."""
    async with ledger.owner() as slow:
        await slow.execute("begin")
        await slow.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await ledger.write(2)
        await slow.execute("insert into pabal.audit_log (actor, action) values ('slow', 'x.done')")
        await slow.execute("commit")
    await ledger.chain(1, 1)

    assert (await looked(ledger, seals=1)).skipped_seals == 1
    assert await breaks(ledger, seals=1) == []
