"""Lists of notifications equal a plain filter for every combination, with bounded reads."""

from datetime import datetime
from itertools import product
from uuid import UUID

import pytest

from pabal.db.bounded_scan import MAX_SCANNED_ROWS, ScanPage
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications import notifications
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.notifications import Notification, NotificationAccess, NotificationFilter, scan_notifications
from support.clusters import connected
from support.large_tables import pages
from support.notifications import register_builtin_templates, sql

pytestmark = pytest.mark.anyio

AS_THE_HUB = (
    "analyze notification.requests; set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
)
ALL = NotificationAccess("hub", all_services=True)
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
    return await register_builtin_templates(hub)


async def listed(
    hub: Hub, who: NotificationAccess, chosen: NotificationFilter, limit: int, reach: int = MAX_SCANNED_ROWS
) -> list[ScanPage[Notification]]:
    """Every page of it."""
    sights: list[ScanPage[Notification]] = []
    before: tuple[datetime, UUID] | None = None
    while True:
        async with hub.autocommit() as tx:
            sight = await scan_notifications(tx, who, chosen, before=before, limit=limit, scan_limit=reach)
        sights.append(sight)
        if sight.end is None:
            return sights
        before = sight.end.created_at, sight.end.id


def rows_of(sights: list[ScanPage[Notification]]) -> list[Notification]:
    return [row for sight in sights for row in sight.rows]


def shows(who: NotificationAccess, chosen: NotificationFilter, notification: Notification) -> bool:
    return (
        (who.all_services or notification.source_service == who.service)
        and chosen.recipient in {None, notification.recipient_id}
        and chosen.state in {None, notification.state}
        and chosen.template in {None, notification.template_key}
    )


@pytest.mark.parametrize("reach", [1, MAX_SCANNED_ROWS])
@pytest.mark.parametrize(
    "who", [NotificationAccess("minu_keep"), NotificationAccess("minu_frame"), ALL], ids=lambda who: who.service
)
async def test_each_filter_lists_what_a_plain_filter_would(
    hub: Hub, database_urls: DatabaseUrls, who: NotificationAccess, reach: int
) -> None:
    await sql(database_urls, MANY, 3)
    everything = rows_of(await listed(hub, ALL, NotificationFilter(), 1000))
    assert len(everything) == 3 * 2 * 2 * 2 * 3 * 3
    newest_first = sorted(everything, key=lambda item: (item.created_at, item.id), reverse=True)
    theirs = {item.id for item in everything if shows(who, NotificationFilter(), item)}

    for choice in product([None, "1", "3"], [None, "pending", "sent"], [None, "marketing.news", "shop.gone"]):
        chosen = NotificationFilter(*choice)
        expected = [item for item in newest_first if shows(who, chosen, item)]
        sights = await listed(hub, who, chosen, 7, reach)
        assert rows_of(sights) == expected, chosen
        assert reach == 1 or not any(sight.truncated for sight in sights)
        assert {sight.end.id for sight in sights if sight.end} <= theirs, "a cursor reveals nothing of other services"


PAGE = {"before": None, "before_id": None, "limit": 10, "reach": 10, "template": None}
OWN_SCAN: dict[str, object] = {"partitions": ["minu_keep"]}
ALL_SERVICES_SCAN: dict[str, object] = {"partitions": ["", "hub", "minu_find", "minu_keep", "minu_frame"]}
RECIPIENT_SCAN: dict[str, object] = {"partitions": [*NotificationChannel], "recipient": "1", "service": "minu_keep"}


@pytest.mark.parametrize(
    ("road", "asked"),
    [
        ("scan_by_service", OWN_SCAN | {"state": None}),
        ("scan_by_service", ALL_SERVICES_SCAN | {"state": None}),
        ("scan_unsent_by_service", OWN_SCAN | {"state": "pending"}),
        ("scan_unsent_by_service", ALL_SERVICES_SCAN | {"state": "pending"}),
        ("scan_by_recipient", RECIPIENT_SCAN | {"state": None, "all": False}),
        ("scan_by_recipient", RECIPIENT_SCAN | {"state": None, "all": True}),
    ],
)
@pytest.mark.usefixtures("hub")
async def test_a_page_reads_few_blocks(database_urls: DatabaseUrls, road: str, asked: dict[str, object]) -> None:
    await sql(database_urls, MANY, 500)

    async with connected(database_urls.direct or database_urls.main) as conn:
        touched, rows = await pages(conn, getattr(notifications.Q, road), asked | PAGE, prepare=AS_THE_HUB)

    assert rows == 10
    assert touched < 80, "of some thousand"


@pytest.mark.parametrize(
    ("road", "asked"),
    [
        ("scan_by_service", ALL_SERVICES_SCAN | {"state": "sent"}),
        ("scan_unsent_by_service", ALL_SERVICES_SCAN | {"state": "pending"}),
        ("scan_by_recipient", RECIPIENT_SCAN | {"state": "sent", "all": True}),
    ],
)
@pytest.mark.usefixtures("hub")
async def test_a_scan_without_matches_stops_at_its_reach(
    database_urls: DatabaseUrls, road: str, asked: dict[str, object]
) -> None:
    await sql(database_urls, MANY, 500)
    wanted = asked | PAGE | {"template": "shop.gone", "reach": 20}

    async with connected(database_urls.direct or database_urls.main) as conn:
        touched, rows = await pages(conn, getattr(notifications.Q, road), wanted, prepare=AS_THE_HUB)

    assert rows == 3, "where each of three partitions ended"
    assert touched < 150, "of some thousand"
