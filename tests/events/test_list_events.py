"""Lists of events: every filter returns what a plain filter would, page by page."""

from datetime import datetime
from fnmatch import fnmatchcase
from itertools import product
from uuid import UUID

import pytest

from pabal.events.events import Event, EventAccess, EventFilter, list_events
from pabal.events.types import EventStatus
from pabal.hub import Hub
from support.clusters import Connection

pytestmark = pytest.mark.anyio

EVERYTHING = EventAccess("hub", all_services=True)


@pytest.fixture
async def many(owner: Connection) -> None:
    """Events between all pairs of services, some with the same timestamp."""
    await owner.execute(
        """
        insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
        select gen_random_uuid(), event_type, s.name, t.name, status, now() - (n / 2) * interval '1 s'
        from unnest('{order.paid,cart.filled}'::text[]) event_type, unnest('{pending,cancelled}'::text[]) status,
             unnest('{minu_find,minu_keep,minu_build}'::text[]) s (name),
             unnest('{minu_find,minu_keep,minu_build,null}'::text[]) t (name), generate_series(1, 3) n
        """
    )


async def list_all(hub: Hub, access: EventAccess, event_filter: EventFilter, limit: int) -> list[Event]:
    """All pages of a list."""
    listed_events: list[Event] = []
    before: tuple[datetime, UUID] | None = None
    while True:
        async with hub.autocommit() as tx:
            page = await list_events(tx, access, event_filter, before=before, limit=limit)
        listed_events += page
        if len(page) < limit:
            return listed_events
        before = page[-1].created_at, page[-1].id


def matches(access: EventAccess, event_filter: EventFilter, event: Event) -> bool:
    parties = {event.source_service, event.target_service}
    return (
        (access.all_services or access.service in parties)
        and event_filter.status in {None, event.status}
        and fnmatchcase(event.event_type, event_filter.event_type or "*")
        and event_filter.source in {None, event.source_service}
        and event_filter.target in {None, event.target_service}
    )


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "access", [EventAccess("minu_keep"), EventAccess("minu_frame"), EVERYTHING], ids=lambda access: access.service
)
async def test_every_filter_lists_what_a_plain_filter_would(hub: Hub, access: EventAccess) -> None:
    all_events = await list_all(hub, EVERYTHING, EventFilter(), 1000)
    assert len(all_events) > 100
    newest_first = sorted(all_events, key=lambda event: (event.created_at, event.id), reverse=True)
    statuses: list[EventStatus | None] = [None, "pending"]
    services = [None, "minu_keep", "minu_find", "minu_frame"]
    filters = [EventFilter(*event) for event in product(statuses, [None, "order.*", "cart.filled"], services, services)]

    for event_filter in filters:
        expected = [event for event in newest_first if matches(access, event_filter, event)]
        assert await list_all(hub, access, event_filter, 7) == expected, event_filter
