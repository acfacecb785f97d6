"""Lists of notifications: whatever is chosen, they show what a plain filter would, and read no more than they show."""

from datetime import datetime
from itertools import product
from uuid import UUID

import pytest

from clusters import connected
from crowd import pages
from notices import registered, sql
from pabal.notifications import read
from pabal.notifications.read import Filter, Notification, Reader
from pabal.wiring import Hub, Roads

pytestmark = pytest.mark.anyio

AS_THE_HUB = (
    "analyze notification.requests; set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
)
EVERYTHING = Reader("hub", all=True)
MANY = """
insert into notification.requests
    (id, recipient_type, recipient_id, template_key, payload, state, reason, source_service, created_at)
select gen_random_uuid(), type, recipient, template, '{}', state,
       case when state = 'suppressed' then 'cancelled' end, source, now() - (n / 2) * interval '1 s'
from unnest('{user_dm,guild_audit_channel,dashboard_toast}'::text[]) type, unnest('{1,2}'::text[]) recipient,
     unnest('{payment.failed,marketing.news}'::text[]) template, unnest('{pending,suppressed}'::text[]) state,
     unnest('{minu_find,minu_keep,null}'::text[]) source, generate_series(1, $1::integer) n
"""


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def listed(hub: Hub, who: Reader, chosen: Filter, limit: int) -> list[Notification]:
    """Every page of it."""
    found: list[Notification] = []
    before: tuple[datetime, UUID] | None = None
    while True:
        async with hub.autocommit() as tx:
            page = await read.every(tx, who, chosen, before=before, limit=limit)
        found += page
        if len(page) < limit:
            return found
        before = page[-1].created_at, page[-1].id


def shows(who: Reader, chosen: Filter, notification: Notification) -> bool:
    return (
        (who.all or notification.source_service == who.service)
        and chosen.recipient in {None, notification.recipient_id}
        and chosen.state in {None, notification.state}
        and chosen.template in {None, notification.template_key}
    )


@pytest.mark.parametrize("who", [Reader("minu_keep"), Reader("minu_frame"), EVERYTHING], ids=lambda who: who.service)
async def test_each_choice_lists_what_a_plain_filter_would(hub: Hub, roads: Roads, who: Reader) -> None:
    await sql(roads, MANY, 3)
    everything = await listed(hub, EVERYTHING, Filter(), 1000)
    assert len(everything) == 3 * 2 * 2 * 2 * 3 * 3
    newest_first = sorted(everything, key=lambda each: (each.created_at, each.id), reverse=True)

    for choice in product([None, "1", "3"], [None, "pending", "sent"], [None, "marketing.news", "shop.gone"]):
        chosen = Filter(*choice)
        expected = [each for each in newest_first if shows(who, chosen, each)]
        assert await listed(hub, who, chosen, 7) == expected, chosen


@pytest.mark.parametrize("recipient", [None, "1"])
@pytest.mark.parametrize("everybody", [True, False])
@pytest.mark.usefixtures("hub")
async def test_a_page_costs_what_it_shows(roads: Roads, recipient: str | None, *, everybody: bool) -> None:
    await sql(roads, MANY, 500)
    asked = {"service": "minu_keep", "all": everybody, "recipient": recipient, "state": None, "template": None}
    page = {"before": None, "before_id": None, "limit": 10}

    async with connected(roads.direct or roads.work) as conn:
        touched, rows = await pages(conn, read.Q.list, asked | page, prepare=AS_THE_HUB)

    assert rows == 10
    assert touched < 60, "of some thousand"
