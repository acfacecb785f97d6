"""Rules with many notifications: events do not wait for each other, and an error fails one event only."""

from collections.abc import Sequence

import pytest

from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub
from pabal.hub_workers import build_rules_handler
from pabal.notifications.rules.apply_rules import NOTIFICATIONS_PER_TRANSACTION, apply_rules
from pabal.queue.outcome import Outcome
from support.notifications import list_all_notifications, register_builtin_templates, sql
from support.rules import BUYER, MINUTE, add_test_rule, rules_worker, run_rules_workers
from support.subscriptions import publish_test_event
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MANY = 100
TRANSACTIONS = "select count(distinct xmin::text) from notification.requests"


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def claim(hub: Hub) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, MANY, MINUTE, "w1", EventClaimFilter("hub"))


async def settle(hub: Hub, events: Sequence[ClaimedEvent]) -> None:
    assert await build_rules_handler(hub).handle_events(events) == {event.id for event in events}


async def events_by_status(database_urls: DatabaseUrls) -> dict[str, str]:
    """The number of the hub's events per status."""
    count_query = "select status, count(*)::text from public.event_queue where target_service = 'hub' group by status"
    return dict(await sql(database_urls, f"select array_agg(array[status, count]) from ({count_query}) s"))


async def test_events_with_few_notifications_share_a_transaction(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    for number in range(20):
        await publish_test_event(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    await settle(hub, await claim(hub))

    assert await sql(database_urls, TRANSACTIONS) == 1
    assert len(await list_all_notifications(hub)) == 20


async def test_an_event_with_many_notifications_has_its_own_transaction(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub, recipients=["users"])
    for first_recipient in (0, NOTIFICATIONS_PER_TRANSACTION, 2 * NOTIFICATIONS_PER_TRANSACTION):
        await publish_test_event(
            hub,
            "order.paid",
            payload=BUYER | {"users": [*range(first_recipient, first_recipient + NOTIFICATIONS_PER_TRANSACTION)]},
        )

    await settle(hub, await claim(hub))

    assert await sql(database_urls, TRANSACTIONS) == 3
    assert await sql(database_urls, "select count(*) from notification.requests") == 3 * NOTIFICATIONS_PER_TRANSACTION
    assert await events_by_status(database_urls) == {"completed": "3"}


async def test_an_unexpected_error_fails_only_its_event(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_test_rule(hub)
    for number in range(MANY):
        await publish_test_event(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    async def fail_on_seven(tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        outcomes = await apply_rules(tx, events, hub.templates)
        if any(event.payload["user"]["discord_id"] == "7" for event in events):
            raise ZeroDivisionError("seven")
        return outcomes

    async def is_settled() -> bool:
        return await events_by_status(database_urls) == {"completed": str(MANY - 1), "pending": "1"}

    async with run_rules_workers(hub, rules_worker(hub, TransactionalHandler(hub.db, fail_on_seven))):
        await wait_until(is_settled)

    assert sorted(int(notification.recipient_id) for notification in await list_all_notifications(hub)) == [
        number for number in range(MANY) if number != 7
    ]
    error_query = "select last_error from public.event_queue where target_service = 'hub' and status = 'pending'"
    assert await sql(database_urls, error_query) == "ZeroDivisionError: seven"
