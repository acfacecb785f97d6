"""Lists of events: whatever is chosen, they show what a plain filter would, page by page."""

from datetime import datetime
from fnmatch import fnmatchcase
from itertools import product
from uuid import UUID

import pytest

from pabal.events.events import Event, EventAccess, EventFilter, list_events
from pabal.hub import Hub
from support.clusters import Connection

pytestmark = pytest.mark.anyio

EVERYTHING = EventAccess("hub", all_services=True)


@pytest.fixture
async def many(owner: Connection) -> None:
    """Of everybody to everybody, themselves included, several of them made in the same moment."""
    await owner.execute(
        """
        insert into public.event_queue (id, event_type, source_service, target_service, status, created_at)
        select gen_random_uuid(), event_type, s.name, t.name, status, now() - (n / 2) * interval '1 s'
        from unnest('{order.paid,cart.filled}'::text[]) event_type, unnest('{pending,cancelled}'::text[]) status,
             unnest('{minu_find,minu_keep,minu_build}'::text[]) s (name),
             unnest('{minu_find,minu_keep,minu_build,null}'::text[]) t (name), generate_series(1, 3) n
        """
    )


async def listed(hub: Hub, who: EventAccess, chosen: EventFilter, limit: int) -> list[Event]:
    """Every page of it."""
    found: list[Event] = []
    before: tuple[datetime, UUID] | None = None
    while True:
        async with hub.autocommit() as tx:
            page = await list_events(tx, who, chosen, before=before, limit=limit)
        found += page
        if len(page) < limit:
            return found
        before = page[-1].created_at, page[-1].id


def shows(who: EventAccess, chosen: EventFilter, event: Event) -> bool:
    parties = {event.source_service, event.target_service}
    return (
        (who.all_services or who.service in parties)
        and chosen.status in {None, event.status}
        and fnmatchcase(event.event_type, chosen.event_type or "*")
        and chosen.source in {None, event.source_service}
        and chosen.target in {None, event.target_service}
    )


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "who", [EventAccess("minu_keep"), EventAccess("minu_frame"), EVERYTHING], ids=lambda who: who.service
)
async def test_each_choice_lists_what_a_plain_filter_would(hub: Hub, who: EventAccess) -> None:
    everything = await listed(hub, EVERYTHING, EventFilter(), 1000)
    assert len(everything) > 100
    newest_first = sorted(everything, key=lambda each: (each.created_at, each.id), reverse=True)
    services = [None, "minu_keep", "minu_find", "minu_frame"]
    choices = [
        EventFilter(*each) for each in product([None, "pending"], [None, "order.*", "cart.filled"], services, services)
    ]

    for chosen in choices:
        expected = [each for each in newest_first if shows(who, chosen, each)]
        assert await listed(hub, who, chosen, 7) == expected, chosen
