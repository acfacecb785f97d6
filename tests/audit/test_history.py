from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.audit.log import AuditFilter, Q, list_audit_log
from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.core.errors import Invalid
from support.audit_log import Ledger
from support.large_tables import pages

AS_THE_HUB = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
pytestmark = pytest.mark.anyio

DEEDS = (
    AuditEntry("minu_find", "token.issued", "t1", {"family": "f1"}, "10.1.2.3", "r1"),
    AuditEntry("minu_keep", "token.issued", "t2"),
    AuditEntry("operator:mina", "token.revoked", "t1"),
    AuditEntry("operator:mina", "dead_letter.replayed", "d1"),
    AuditEntry("minu_find", "tokens", "t1"),
)


@pytest.fixture
async def written(ledger: Ledger) -> Ledger:
    for deed in DEEDS:
        async with ledger.hub.transaction() as tx:
            await record_audit_entry(tx, deed)
    return ledger


async def found(ledger: Ledger, wanted: AuditFilter, limit: int = 10) -> list[int]:
    """The places, from 1, of what was found; newest first."""
    async with ledger.hub.autocommit() as tx:
        return [entry.id for entry in (await list_audit_log(tx, wanted, limit)).items]


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        (AuditFilter(), [5, 4, 3, 2, 1]),
        (AuditFilter(actor="minu_find"), [5, 1]),
        (AuditFilter(actor="minu"), []),
        (AuditFilter(action="token."), [3, 2, 1]),
        (AuditFilter(action="%"), []),
        (AuditFilter(subject="t1"), [5, 3, 1]),
        (AuditFilter(subject="t1", action="token.", actor="minu_find"), [1]),
        (AuditFilter(since=timedelta(hours=1)), [5, 4, 3, 2, 1]),
    ],
)
async def test_it_shows_what_was_asked_for_newest_first(
    written: Ledger, wanted: AuditFilter, places: list[int]
) -> None:
    assert await found(written, wanted) == places


@pytest.mark.parametrize("subject", [None, "t1"])
async def test_what_is_older_is_left_out(
    written: Ledger, travel: Callable[[timedelta], Awaitable[None]], subject: str | None
) -> None:
    await travel(timedelta(hours=2))
    assert await found(written, AuditFilter(subject=subject, since=timedelta(hours=1))) == []
    async with written.hub.transaction() as tx:
        await record_audit_entry(tx, DEEDS[0])

    assert await found(written, AuditFilter(subject=subject, since=timedelta(hours=1))) == [6]


async def test_all_that_is_known_of_a_deed_comes_back(written: Ledger) -> None:
    async with written.hub.autocommit() as tx:
        first, second = reversed((await list_audit_log(tx, AuditFilter(action="token.issued"), 10)).items)

    told = (first.actor, first.action, first.subject, first.details, first.client_ip, first.request_id)
    assert told == ("minu_find", "token.issued", "t1", {"family": "f1"}, "10.1.2.3", "r1")
    assert (second.details, second.client_ip, second.request_id) == ({}, None, None)
    assert first.at < second.at


@pytest.mark.parametrize(
    ("wanted", "pages"), [(AuditFilter(), [[5, 4], [3, 2], [1]]), (AuditFilter("minu_find"), [[5, 1]])]
)
async def test_it_is_read_page_by_page(written: Ledger, wanted: AuditFilter, pages: list[list[int]]) -> None:
    cursor: str | None = None
    async with written.hub.autocommit() as tx:
        for places in pages:
            page = await list_audit_log(tx, wanted, 2, cursor)
            assert [entry.id for entry in page.items] == places
            cursor = page.cursor

    assert cursor is None


@pytest.mark.parametrize("cursor", ["", "-1", "x", "9" * 19, "٣"])
async def test_a_cursor_that_is_none_is_refused(ledger: Ledger, cursor: str) -> None:
    async with ledger.hub.autocommit() as tx:
        with pytest.raises(Invalid, match="cursor"):
            await list_audit_log(tx, AuditFilter(), 2, cursor)


async def test_recent_deeds_are_not_looked_for_all_the_way_back(ledger: Ledger) -> None:
    """Of a stranger there are few or none, and a page of them is never full."""
    async with ledger.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action, at)"
            " select 'minu_find', 'token.issued', pabal.now() - interval '2 days' from generate_series(1, 50000)"
        )
    await ledger.write(10, each=True)
    wanted = {"actor": "nobody", "action": None, "since": "1 day", "before": 1 << 40, "limit": 10}
    async with ledger.owner() as conn:
        await conn.execute("analyze pabal.audit_log")
        touched, rows = await pages(conn, Q.list_entries, wanted, prepare=AS_THE_HUB)

    assert rows == 0
    assert touched < 50


@pytest.mark.parametrize(("subject", "rows"), [("rare", 5), ("nobody", 0)])
async def test_one_subjects_deeds_are_not_looked_for_among_all(ledger: Ledger, subject: str, rows: int) -> None:
    async with ledger.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action, subject)"
            " select 'minu_find', 'token.issued', case when n % 20000 = 1 then 'rare' else 't' || n % 7 end"
            " from generate_series(1, 100000) n"
        )
        await conn.execute("analyze pabal.audit_log")
        wanted = {"subject": subject, "actor": None, "action": None, "since": None, "before": 1 << 40, "limit": 10}
        touched, found = await pages(conn, Q.list_subject_entries, wanted, prepare=AS_THE_HUB)

    assert found == rows
    assert touched < 50
