"""A glance at everybody's events: what a plain filter would show, and never more work than a page can bear."""

from fnmatch import fnmatchcase
from itertools import product

import pytest

from pabal.db.tx import Tx
from pabal.events import events
from pabal.events.events import EventFilter, EventSummary, scan_event_summaries
from pabal.hub import DatabaseUrls, Hub
from support.clusters import connected
from support.failed_events import Deaths
from support.large_tables import pages

pytestmark = pytest.mark.anyio

AS_THE_HUB = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
MANY = """
insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
select gen_random_uuid(), event_type, s.name, t.name, status, now() - (n / 2) * interval '1 s'
from unnest('{order.paid,cart.filled}'::text[]) event_type, unnest('{pending,cancelled}'::text[]) status,
     unnest('{minu_find,minu_keep,minu_build}'::text[]) s (name),
     unnest('{minu_find,minu_keep,minu_build,null}'::text[]) t (name), generate_series(1, 3) n
"""


async def everything(tx: Tx, chosen: EventFilter, *, limit: int, reach: int) -> list[EventSummary]:
    """Every look, one after the other."""
    found: list[EventSummary] = []
    before = None
    while True:
        sight = await scan_event_summaries(tx, chosen, before=before, limit=limit, scan_limit=reach)
        assert len(sight.rows) <= limit
        assert not sight.truncated or len(sight.rows) < limit
        found += sight.rows
        if sight.end is None:
            return found
        before = sight.end.created_at, sight.end.id


async def test_look_after_look_shows_what_a_plain_filter_would(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(MANY)
    services = [None, "minu_keep", "minu_find", "minu_frame"]
    choices = [
        EventFilter(*each) for each in product([None, "pending"], [None, "order.*", "cart.filled"], services, services)
    ]
    async with hub.autocommit() as tx:
        all_of_them = await everything(tx, EventFilter(), limit=1000, reach=1000)
        assert len(all_of_them) > 100
        assert all_of_them == sorted(all_of_them, key=lambda each: (each.created_at, each.id), reverse=True)
        for chosen in choices:
            expected = [
                each
                for each in all_of_them
                if chosen.status in {None, each.status}
                and fnmatchcase(each.event_type, chosen.event_type or "*")
                and chosen.source in {None, each.source_service}
                and chosen.target in {None, each.target_service}
            ]
            assert await everything(tx, chosen, limit=7, reach=10) == expected, chosen


async def test_a_look_that_finds_nothing_says_where_it_gave_up(hub: Hub, deaths: Deaths) -> None:
    old = await deaths.publish("cart.lost")
    for _ in range(5):
        await deaths.publish()

    async with hub.autocommit() as tx:
        first = await scan_event_summaries(tx, EventFilter(event_type="cart.lost"), scan_limit=5)
        assert first.end
        second = await scan_event_summaries(
            tx, EventFilter(event_type="cart.lost"), before=(first.end.created_at, first.end.id), scan_limit=5
        )

    assert (first.rows, first.truncated) == ([], True)
    assert ([each.id for each in second.rows], second.end, second.truncated) == ([old], None, False)


async def test_a_scan_reads_at_most_scan_limit_rows(database_urls: DatabaseUrls) -> None:
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        await owner.execute("set session_replication_role = replica")
        await owner.execute(
            "insert into public.event_queue"
            " (id, event_type, source_service, target_service, status, created_at, processed_at)"
            " select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'completed', at, at"
            " from (select now() - n * interval '1 ms' as at from generate_series(1, 20000) n) m"
        )
        await owner.execute("vacuum analyze public.event_queue")
        said = {
            "status": "failed",
            "event_type": None,
            "before": None,
            "before_id": None,
            "scan_limit": 500,
            "limit": 50,
        }
        anybody = {"source": None, "except_source": None}
        looks = (
            (events.Q.scan_newest_events, said),
            (events.Q.scan_sent_events, {**said, "source": "minu_find", "target": None}),
            (events.Q.scan_received_events, {**said, **anybody, "target": "minu_build"}),
            (events.Q.scan_sent_events, {**said, "source": "minu_keep", "target": None}),
            (events.Q.scan_received_events, {**said, **anybody, "target": "minu_keep"}),
        )

        touched = [await pages(owner, query, given, prepare=AS_THE_HUB) for query, given in looks]
        table = await owner.fetchval("select pg_relation_size('public.event_queue') / 8192")

    assert [rows for _, rows in touched] == [1, 1, 1, 0, 0]
    assert table > 300
    assert max(read for read, _ in touched) < table / 4
    assert max(read for read, _ in touched[3:]) < 10  # nothing is not looked for among everything
