"""Bounded scans of the audit log: a part of it, and a cursor for the rest."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.audit import log
from pabal.audit.log import AuditFilter, AuditScan, scan_audit_log
from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.core.errors import Invalid
from pabal.hub import Hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
ALL = AuditFilter()


async def write(hub: Hub, *entries: AuditEntry) -> None:
    async with hub.transaction() as tx:
        for entry in entries:
            await record_audit_entry(tx, entry)


async def scan(hub: Hub, audit_filter: AuditFilter = ALL, limit: int = 50, cursor: str | None = None) -> AuditScan:
    async with hub.autocommit() as tx:
        return await scan_audit_log(tx, audit_filter, limit, cursor)


async def test_an_empty_log_has_no_pages(hub: Hub) -> None:
    assert await scan(hub) == AuditScan([], None, truncated=False)
    assert await scan(hub, AuditFilter(since=timedelta(hours=1))) == AuditScan([], None, truncated=False)
    assert await scan(hub, cursor="1") == AuditScan([], None, truncated=False)


async def test_pages_go_from_the_newest_to_the_oldest_entry(hub: Hub) -> None:
    await write(hub, *(AuditEntry("a", "x.done", str(number)) for number in range(5)))

    first = await scan(hub, limit=3)
    second = await scan(hub, limit=3, cursor=first.cursor)

    assert [entry.subject for entry in (*first.items, *second.items)] == ["4", "3", "2", "1", "0"]
    assert (second.cursor, first.truncated, second.truncated) == (None, False, False)


@pytest.mark.parametrize(
    ("audit_filter", "subjects"),
    [
        (AuditFilter(actor="b"), ["2"]),
        (AuditFilter(action="y."), ["2", "1"]),
        (AuditFilter(subject="1"), ["1"]),
        (AuditFilter(actor="a", action="y", subject="1"), ["1"]),
        (AuditFilter(actor="b", subject="1"), []),
        (AuditFilter(action="%"), []),
    ],
)
async def test_a_filter_selects_entries(hub: Hub, audit_filter: AuditFilter, subjects: list[str]) -> None:
    await write(hub, AuditEntry("a", "x.done", "0"), AuditEntry("a", "y.done", "1"), AuditEntry("b", "y.made", "2"))

    assert [entry.subject for entry in (await scan(hub, audit_filter)).items] == subjects


async def test_since_excludes_older_entries(hub: Hub, travel: Travel) -> None:
    await write(hub, AuditEntry("a", "x.done", "old"))
    await travel(timedelta(hours=2))
    await write(hub, AuditEntry("a", "x.done", "new"))

    for audit_filter in (AuditFilter(since=timedelta(hours=1)), AuditFilter(since=timedelta(hours=1), actor="a")):
        assert [entry.subject for entry in (await scan(hub, audit_filter)).items] == ["new"]
    assert len((await scan(hub, AuditFilter(since=timedelta(hours=3)))).items) == 2


@pytest.mark.parametrize(
    "audit_filter", [AuditFilter(actor="rare"), AuditFilter(action="rare."), AuditFilter(actor="rare", subject="s")]
)
async def test_a_selective_filter_scans_a_bounded_part_per_page(
    hub: Hub, audit_filter: AuditFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_SCANNED_IDS", 10)
    await write(hub, AuditEntry("rare", "rare.done", "s"), *(AuditEntry("a", "x.done", "s") for _ in range(25)))
    await write(hub, AuditEntry("rare", "rare.done", "s"), *(AuditEntry("a", "x.done", "s") for _ in range(25)))

    entry_count, page_count, cursor = 0, 0, None
    while True:
        page = await scan(hub, audit_filter, cursor=cursor)
        entry_count, page_count, cursor = entry_count + len(page.items), page_count + 1, page.cursor
        assert page.truncated == (cursor is not None)
        if cursor is None:
            break

    assert (entry_count, page_count) == (2, 6)


@pytest.mark.parametrize("cursor", ["x", "-1", "1" * 20, "\u0661"])
async def test_an_invalid_cursor_is_refused(hub: Hub, cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        await scan(hub, cursor=cursor)
