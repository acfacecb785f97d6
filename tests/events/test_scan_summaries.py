"""Event summaries across all services: they match a plain filter, and each scan reads a bounded number of rows."""

from fnmatch import fnmatchcase
from itertools import product

import pytest

from pabal.db.tx import Tx
from pabal.events import events
from pabal.events.events import EventFilter, EventSummary, scan_event_summaries
from pabal.events.types import EventStatus
from pabal.hub import DatabaseUrls, Hub
from support.clusters import open_connection
from support.failed_events import EventQueue
from support.large_tables import count_pages

pytestmark = pytest.mark.anyio

AS_THE_HUB = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
MANY = """
insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
select gen_random_uuid(), event_type, s.name, t.name, status, now() - (n / 2) * interval '1 s'
from unnest('{order.paid,cart.filled}'::text[]) event_type, unnest('{pending,cancelled}'::text[]) status,
     unnest('{minu_find,minu_keep,minu_build}'::text[]) s (name),
     unnest('{minu_find,minu_keep,minu_build,null}'::text[]) t (name), generate_series(1, 3) n
"""


async def scan_all(tx: Tx, event_filter: EventFilter, *, limit: int, scan_limit: int) -> list[EventSummary]:
    """All pages of a scan."""
    summaries: list[EventSummary] = []
    before = None
    while True:
        page = await scan_event_summaries(tx, event_filter, before=before, limit=limit, scan_limit=scan_limit)
        assert len(page.rows) <= limit
        assert not page.truncated or len(page.rows) < limit
        summaries += page.rows
        if page.end is None:
            return summaries
        before = page.end.created_at, page.end.id


async def test_the_pages_of_a_scan_match_a_plain_filter(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(MANY)
    statuses: list[EventStatus | None] = [None, "pending"]
    services = [None, "minu_keep", "minu_find", "minu_frame"]
    filters = [
        EventFilter(*summary) for summary in product(statuses, [None, "order.*", "cart.filled"], services, services)
    ]
    async with hub.autocommit() as tx:
        all_events = await scan_all(tx, EventFilter(), limit=1000, scan_limit=1000)
        assert len(all_events) > 100
        assert all_events == sorted(all_events, key=lambda summary: (summary.created_at, summary.id), reverse=True)
        for event_filter in filters:
            expected = [
                summary
                for summary in all_events
                if event_filter.status in {None, summary.status}
                and fnmatchcase(summary.event_type, event_filter.event_type or "*")
                and event_filter.source in {None, summary.source_service}
                and event_filter.target in {None, summary.target_service}
            ]
            assert await scan_all(tx, event_filter, limit=7, scan_limit=10) == expected, event_filter


async def test_a_scan_without_matches_returns_where_it_stopped(hub: Hub, event_queue: EventQueue) -> None:
    old = await event_queue.publish("cart.lost")
    for _ in range(5):
        await event_queue.publish()

    async with hub.autocommit() as tx:
        first = await scan_event_summaries(tx, EventFilter(event_type="cart.lost"), scan_limit=5)
        assert first.end
        second = await scan_event_summaries(
            tx, EventFilter(event_type="cart.lost"), before=(first.end.created_at, first.end.id), scan_limit=5
        )

    assert (first.rows, first.truncated) == ([], True)
    assert ([summary.id for summary in second.rows], second.end, second.truncated) == ([old], None, False)


async def test_a_scan_reads_at_most_scan_limit_rows(database_urls: DatabaseUrls) -> None:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        await owner.execute("set session_replication_role = replica")
        await owner.execute(
            "insert into public.event_queue"
            " (id, event_type, source_service, target_service, status, created_at, processed_at)"
            " select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'completed', at, at"
            " from (select now() - n * interval '1 ms' as at from generate_series(1, 20000) n) m"
        )
        await owner.execute("vacuum analyze public.event_queue")
        arguments = {
            "status": "failed",
            "event_type": None,
            "before": None,
            "before_id": None,
            "scan_limit": 500,
            "limit": 50,
        }
        any_service = {"source": None, "except_source": None}
        queries = (
            (events.Q.scan_newest_events, arguments),
            (events.Q.scan_sent_events, {**arguments, "source": "minu_find", "target": None}),
            (events.Q.scan_received_events, {**arguments, **any_service, "target": "minu_build"}),
            (events.Q.scan_sent_events, {**arguments, "source": "minu_keep", "target": None}),
            (events.Q.scan_received_events, {**arguments, **any_service, "target": "minu_keep"}),
        )

        reads = [await count_pages(owner, query, parameters, prepare=AS_THE_HUB) for query, parameters in queries]
        table = await owner.fetchval("select pg_relation_size('public.event_queue') / 8192")

    assert [rows for _, rows in reads] == [1, 1, 1, 0, 0]
    assert table > 300
    assert max(pages_read for pages_read, _ in reads) < table / 4
    assert max(pages_read for pages_read, _ in reads[3:]) < 10  # a service without events needs no scan
