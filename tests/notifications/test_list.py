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
from pabal.notifications.states import NotificationState
from support.clusters import open_connection
from support.large_tables import count_pages
from support.notifications import register_builtin_templates, sql

pytestmark = pytest.mark.anyio

HUB_PLANNER_SETTINGS = (
    "analyze notification.requests; set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
)
ALL = NotificationAccess("hub", all_services=True)
INSERT_REQUESTS = """
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


async def scan_pages(
    hub: Hub,
    access: NotificationAccess,
    notification_filter: NotificationFilter,
    limit: int,
    scan_limit: int = MAX_SCANNED_ROWS,
) -> list[ScanPage[Notification]]:
    """All pages of a scan."""
    scans: list[ScanPage[Notification]] = []
    before: tuple[datetime, UUID] | None = None
    while True:
        async with hub.autocommit() as tx:
            page = await scan_notifications(
                tx, access, notification_filter, before=before, limit=limit, scan_limit=scan_limit
            )
        scans.append(page)
        if page.end is None:
            return scans
        before = page.end.created_at, page.end.id


def rows_in(scans: list[ScanPage[Notification]]) -> list[Notification]:
    return [row for page in scans for row in page.rows]


def is_expected(
    access: NotificationAccess, notification_filter: NotificationFilter, notification: Notification
) -> bool:
    return (
        (access.all_services or notification.source_service == access.service)
        and notification_filter.recipient in {None, notification.recipient_id}
        and notification_filter.state in {None, notification.state}
        and notification_filter.template in {None, notification.template_key}
    )


@pytest.mark.parametrize("scan_limit", [1, MAX_SCANNED_ROWS])
@pytest.mark.parametrize(
    "access",
    [NotificationAccess("minu_keep"), NotificationAccess("minu_frame"), ALL],
    ids=lambda access: access.service,
)
async def test_each_filter_lists_what_a_plain_filter_would(
    hub: Hub, database_urls: DatabaseUrls, access: NotificationAccess, scan_limit: int
) -> None:
    await sql(database_urls, INSERT_REQUESTS, 3)
    all_rows = rows_in(await scan_pages(hub, ALL, NotificationFilter(), 1000))
    assert len(all_rows) == 3 * 2 * 2 * 2 * 3 * 3
    newest_first = sorted(all_rows, key=lambda row: (row.created_at, row.id), reverse=True)
    visible_ids = {row.id for row in all_rows if is_expected(access, NotificationFilter(), row)}

    states: list[NotificationState | None] = [None, "pending", "sent"]
    for values in product([None, "1", "3"], states, [None, "marketing.news", "shop.gone"]):
        notification_filter = NotificationFilter(*values)
        expected = [row for row in newest_first if is_expected(access, notification_filter, row)]
        scans = await scan_pages(hub, access, notification_filter, 7, scan_limit)
        assert rows_in(scans) == expected, notification_filter
        assert scan_limit == 1 or not any(page.truncated for page in scans)
        assert {page.end.id for page in scans if page.end} <= visible_ids, (
            "a cursor must not reveal rows of other services"
        )


PAGE = {"before": None, "before_id": None, "limit": 10, "reach": 10, "template": None}
OWN_SCAN: dict[str, object] = {"partitions": ["minu_keep"]}
ALL_SERVICES_SCAN: dict[str, object] = {"partitions": ["", "hub", "minu_find", "minu_keep", "minu_frame"]}
RECIPIENT_SCAN: dict[str, object] = {"partitions": [*NotificationChannel], "recipient": "1", "service": "minu_keep"}


@pytest.mark.parametrize(
    ("query_name", "arguments"),
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
async def test_a_page_reads_few_blocks(
    database_urls: DatabaseUrls, query_name: str, arguments: dict[str, object]
) -> None:
    await sql(database_urls, INSERT_REQUESTS, 500)

    async with open_connection(database_urls.direct or database_urls.main) as conn:
        page_count, rows = await count_pages(
            conn, getattr(notifications.Q, query_name), arguments | PAGE, prepare=HUB_PLANNER_SETTINGS
        )

    assert rows == 10
    assert page_count < 80, "the table has thousands"


@pytest.mark.parametrize(
    ("query_name", "arguments"),
    [
        ("scan_by_service", ALL_SERVICES_SCAN | {"state": "sent"}),
        ("scan_unsent_by_service", ALL_SERVICES_SCAN | {"state": "pending"}),
        ("scan_by_recipient", RECIPIENT_SCAN | {"state": "sent", "all": True}),
    ],
)
@pytest.mark.usefixtures("hub")
async def test_a_scan_without_matches_stops_at_its_scan_limit(
    database_urls: DatabaseUrls, query_name: str, arguments: dict[str, object]
) -> None:
    await sql(database_urls, INSERT_REQUESTS, 500)
    scan_arguments = arguments | PAGE | {"template": "shop.gone", "reach": 20}

    async with open_connection(database_urls.direct or database_urls.main) as conn:
        page_count, rows = await count_pages(
            conn, getattr(notifications.Q, query_name), scan_arguments, prepare=HUB_PLANNER_SETTINGS
        )

    assert rows == 3, "the last row of each of three partitions"
    assert page_count < 150, "the table has thousands"
