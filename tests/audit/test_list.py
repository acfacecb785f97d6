from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.audit.log import AuditFilter, Q, list_audit_log
from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.core.errors import Invalid
from support.audit_log import AuditLog
from support.large_tables import count_pages

HUB_PLANNER_SETTINGS = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
pytestmark = pytest.mark.anyio

ENTRIES = (
    AuditEntry("minu_find", "token.issued", "t1", {"family": "f1"}, "10.1.2.3", "r1"),
    AuditEntry("minu_keep", "token.issued", "t2"),
    AuditEntry("operator:mina", "token.revoked", "t1"),
    AuditEntry("operator:mina", "dead_letter.replayed", "d1"),
    AuditEntry("minu_find", "tokens", "t1"),
)


@pytest.fixture
async def filled_audit_log(audit_log: AuditLog) -> AuditLog:
    for entry in ENTRIES:
        async with audit_log.hub.transaction() as tx:
            await record_audit_entry(tx, entry)
    return audit_log


async def list_ids(audit_log: AuditLog, audit_filter: AuditFilter, limit: int = 10) -> list[int]:
    """The positions of the entries found, starting with 1; newest first."""
    async with audit_log.hub.autocommit() as tx:
        return [entry.id for entry in (await list_audit_log(tx, audit_filter, limit)).items]


@pytest.mark.parametrize(
    ("audit_filter", "ids"),
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
async def test_a_filter_selects_entries_newest_first(
    filled_audit_log: AuditLog, audit_filter: AuditFilter, ids: list[int]
) -> None:
    assert await list_ids(filled_audit_log, audit_filter) == ids


@pytest.mark.parametrize("subject", [None, "t1"])
async def test_since_excludes_older_entries_from_the_list(
    filled_audit_log: AuditLog, travel: Callable[[timedelta], Awaitable[None]], subject: str | None
) -> None:
    await travel(timedelta(hours=2))
    assert await list_ids(filled_audit_log, AuditFilter(subject=subject, since=timedelta(hours=1))) == []
    async with filled_audit_log.hub.transaction() as tx:
        await record_audit_entry(tx, ENTRIES[0])

    assert await list_ids(filled_audit_log, AuditFilter(subject=subject, since=timedelta(hours=1))) == [6]


async def test_all_columns_of_an_entry_are_returned(filled_audit_log: AuditLog) -> None:
    async with filled_audit_log.hub.autocommit() as tx:
        first, second = reversed((await list_audit_log(tx, AuditFilter(action="token.issued"), 10)).items)

    columns = (first.actor, first.action, first.subject, first.details, first.client_ip, first.request_id)
    assert columns == ("minu_find", "token.issued", "t1", {"family": "f1"}, "10.1.2.3", "r1")
    assert (second.details, second.client_ip, second.request_id) == ({}, None, None)
    assert first.at < second.at


@pytest.mark.parametrize(
    ("audit_filter", "pages"), [(AuditFilter(), [[5, 4], [3, 2], [1]]), (AuditFilter("minu_find"), [[5, 1]])]
)
async def test_a_list_is_read_page_by_page(
    filled_audit_log: AuditLog, audit_filter: AuditFilter, pages: list[list[int]]
) -> None:
    cursor: str | None = None
    async with filled_audit_log.hub.autocommit() as tx:
        for ids in pages:
            page = await list_audit_log(tx, audit_filter, 2, cursor)
            assert [entry.id for entry in page.items] == ids
            cursor = page.cursor

    assert cursor is None


@pytest.mark.parametrize("cursor", ["", "-1", "x", "9" * 19, "٣"])
async def test_a_malformed_cursor_is_refused(audit_log: AuditLog, cursor: str) -> None:
    async with audit_log.hub.autocommit() as tx:
        with pytest.raises(Invalid, match="cursor"):
            await list_audit_log(tx, AuditFilter(), 2, cursor)


async def test_since_bounds_the_rows_read(audit_log: AuditLog) -> None:
    """An actor with few or no entries never fills a page."""
    async with audit_log.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action, at)"
            " select 'minu_find', 'token.issued', pabal.now() - interval '2 days' from generate_series(1, 50000)"
        )
    await audit_log.write(10, each=True)
    audit_filter = {"actor": "nosuch", "action": None, "since": "1 day", "before": 1 << 40, "limit": 10}
    async with audit_log.owner() as conn:
        await conn.execute("analyze pabal.audit_log")
        page_count, rows = await count_pages(conn, Q.list_entries, audit_filter, prepare=HUB_PLANNER_SETTINGS)

    assert rows == 0
    assert page_count < 50


@pytest.mark.parametrize(("subject", "rows"), [("rare", 5), ("nosuch", 0)])
async def test_a_subject_is_read_from_its_index(audit_log: AuditLog, subject: str, rows: int) -> None:
    async with audit_log.owner() as conn:
        await conn.execute(
            "insert into pabal.audit_log (actor, action, subject)"
            " select 'minu_find', 'token.issued', case when n % 20000 = 1 then 'rare' else 't' || n % 7 end"
            " from generate_series(1, 100000) n"
        )
        await conn.execute("analyze pabal.audit_log")
        audit_filter = {
            "subject": subject,
            "actor": None,
            "action": None,
            "since": None,
            "before": 1 << 40,
            "limit": 10,
        }
        page_count, row_count = await count_pages(
            conn, Q.list_subject_entries, audit_filter, prepare=HUB_PLANNER_SETTINGS
        )

    assert row_count == rows
    assert page_count < 50
