"""Notification queries read few pages among many unrelated rows."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pabal.db.queries import Query
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications import notifications, operator_alerts, privacy
from pabal.notifications.dispatch import addresses, storm_guard
from pabal.notifications.lane import LANE
from pabal.notifications.toasts import inbox
from pabal.trace import notifications as notification_traces
from support.clusters import Connection, open_connection
from support.large_tables import count_pages
from support.notifications import register_builtin_templates

pytestmark = pytest.mark.anyio

MANY = 20_000
MAX_PAGES = 60
"""Pages: a few index descents. All rows together are on hundreds of pages."""
HUB_PLANNER_SETTINGS = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"
ROWS = """
insert into notification.requests (
    id, recipient_type, recipient_id, template_key, payload, state, reason, last_error, priority, sent_at, ended_at,
    decision, source_service, correlation_id
)
select gen_random_uuid(), $1, $2, $3, $4::text::jsonb, $5, $6, case when $5 = 'failed' then 'no' end, $7,
       case when $5 = 'sent' then now() end, case when $5 <> 'pending' then now() - interval '1 hour' end,
       $8::text::jsonb, 'minu_find', 'trace ' || i
from generate_series(1, $9::integer) i
"""


async def insert_requests(owner: Connection, state: str, count: int = MANY, **overrides: Any) -> None:
    columns = {"channel": "guild_audit_channel", "to": "900", "key": "antinuke.triggered", "payload": "{}"}
    columns |= {"reason": "exhausted" if state == "failed" else None, "priority": 1, "decision": "[]"} | overrides
    first_arguments = [columns[name] for name in ("channel", "to", "key", "payload")]
    await owner.execute(
        ROWS, *first_arguments, state, columns["reason"], columns["priority"], columns["decision"], count
    )


@pytest.fixture
async def owner(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    await register_builtin_templates(hub)
    async with open_connection(database_urls.direct or database_urls.main) as conn:
        yield conn


async def pages_read(owner: Connection, query: Query, **arguments: Any) -> tuple[int, int]:
    await owner.execute("vacuum analyze notification.requests")
    return await count_pages(owner, query, arguments, prepare=HUB_PLANNER_SETTINGS)


async def test_a_claim_does_not_read_other_channels(owner: Connection) -> None:
    await insert_requests(owner, "pending", channel="user_dm", priority=5)
    await insert_requests(owner, "pending", 3, channel="dashboard_toast", priority=5)
    arguments = {"lease": "00000000-0000-7000-8000-000000000000", "hold": "30 s", "holder": "tester", "limit": 50}

    page_count, rows = await pages_read(
        owner, LANE.q.claim, channels=["dashboard_toast"], priorities=[1, 3, 5], **arguments
    )

    assert rows == 3
    assert page_count < 3 * MAX_PAGES, "each row is also written, with its index entries"


@pytest.mark.parametrize("services", [["minu_find"], ["", "hub", "minu_find", "minu_keep"]])
@pytest.mark.parametrize("state", ["pending", "failed", "suppressed"])
async def test_a_list_of_unsent_notifications_does_not_read_sent_ones(
    owner: Connection, state: str, services: list[str]
) -> None:
    await insert_requests(owner, "sent")
    await insert_requests(owner, state, 3, reason={"failed": "exhausted", "suppressed": "storm"}.get(state))
    arguments = {"partitions": services, "state": state, "template": None, "reach": 10}

    page_count, rows = await pages_read(
        owner, notifications.Q.scan_unsent_by_service, **arguments, before=None, before_id=None, limit=10
    )

    assert rows == 3
    assert page_count < MAX_PAGES


async def test_undelivered_emergencies_are_found_without_reading_alerted_ones(owner: Connection) -> None:
    await insert_requests(owner, "failed", decision='["emergency", "raised"]')
    await insert_requests(owner, "pending", priority=5)

    page_count, rows = await pages_read(
        owner, operator_alerts.Q.mark_undelivered_emergencies, late=operator_alerts.LATE_AFTER, batch=100
    )

    assert rows == 0
    assert page_count < MAX_PAGES


async def test_the_storm_guard_does_not_read_old_notifications(owner: Connection) -> None:
    await insert_requests(owner, "sent")
    await insert_requests(owner, "pending", priority=5)
    ids = await owner.fetch("select id from notification.requests limit 1")

    page_count, rows = await pages_read(
        owner, storm_guard.Q.add_to_summary, ids=[row["id"] for row in ids], template=storm_guard.SUMMARY_TEMPLATE
    )

    assert rows == 0
    assert page_count < MAX_PAGES


async def test_a_trace_is_found_by_index(owner: Connection) -> None:
    await insert_requests(owner, "sent")

    page_count, rows = await pages_read(owner, notification_traces.Q.count_by_state, events=[], correlation="trace 7")

    assert rows == 1
    assert page_count < MAX_PAGES


async def test_an_erasure_finds_operator_alerts_by_index(owner: Connection) -> None:
    await insert_requests(owner, "sent", key="system.undelivered", payload='{"recipient": "user_dm 7"}')
    await insert_requests(owner, "sent", 1, key="system.undelivered", payload='{"recipient": "user_dm 8"}')

    page_count, _ = await pages_read(owner, privacy.Q.delete_alerts, person="8")

    assert page_count < MAX_PAGES


async def test_unread_toasts_are_counted_once_per_inbox(owner: Connection) -> None:
    await insert_requests(owner, "sent", 2000, channel="dashboard_toast", to="1")
    await owner.execute(
        "insert into notification.toasts (id, recipient_id, category, criticality, locale, body) "
        "select id, recipient_id, 'payment', 'normal', 'ko', 'x' from notification.requests"
    )
    await owner.execute("vacuum analyze notification.toasts")

    page_count, rows = await pages_read(owner, inbox.Q.list_changes, recipients=["1"], lasts=[0], limit=100)

    assert rows == 100
    assert page_count < 3 * MAX_PAGES


async def test_unhealthy_addresses_are_found_by_index(owner: Connection) -> None:
    await owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id, unhealthy_since, reason) "
        "select 'user_dm', i::text, i::text, case when refuses then now() end, case when refuses then 'no' end "
        "from generate_series(1, $1::integer) i, lateral (select i % 5000 = 0) as r (refuses)",
        MANY,
    )
    await owner.execute("vacuum analyze notification.addresses")

    page_count, rows = await pages_read(owner, addresses.Q.list_unhealthy_addresses, limit=100)

    assert rows == MANY / 5000
    assert page_count < MAX_PAGES
