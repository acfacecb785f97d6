"""Rules with very much to do: no event waits for another's many, and none is undone by another's fault."""

from collections.abc import Sequence

import pytest

from pabal.db.tx import Tx
from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub, build_rules_handler
from pabal.notifications.rules.apply_rules import NOTIFICATIONS_PER_TRANSACTION, apply_rules
from pabal.queue.outcome import Outcome
from support.notifications import every, registered, sql
from support.rules import BUYER, MINUTE, add, rules_worker, ruling
from support.subscriptions import say
from support.wait import until

pytestmark = pytest.mark.anyio

MANY = 100
TRANSACTIONS = "select count(distinct xmin::text) from notification.requests"


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def claim(hub: Hub) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, MANY, MINUTE, "w1", service="hub")


async def settle(hub: Hub, events: Sequence[ClaimedEvent]) -> None:
    assert await build_rules_handler(hub).handle_events(events) == {event.id for event in events}


async def stand(database_urls: DatabaseUrls) -> dict[str, str]:
    """How many of the hub's events are where."""
    counted = "select status, count(*)::text from public.event_queue where target_service = 'hub' group by status"
    return dict(await sql(database_urls, f"select array_agg(array[status, count]) from ({counted}) s"))


async def test_few_notices_of_many_events_are_one_transaction(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    for number in range(20):
        await say(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    await settle(hub, await claim(hub))

    assert await sql(database_urls, TRANSACTIONS) == 1
    assert len(await every(hub)) == 20


async def test_many_notices_of_one_event_share_no_transaction_with_the_next(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    await add(hub, recipients=["users"])
    for begin in (0, NOTIFICATIONS_PER_TRANSACTION, 2 * NOTIFICATIONS_PER_TRANSACTION):
        await say(hub, "order.paid", payload=BUYER | {"users": [*range(begin, begin + NOTIFICATIONS_PER_TRANSACTION)]})

    await settle(hub, await claim(hub))

    assert await sql(database_urls, TRANSACTIONS) == 3
    assert await sql(database_urls, "select count(*) from notification.requests") == 3 * NOTIFICATIONS_PER_TRANSACTION
    assert await stand(database_urls) == {"completed": "3"}


async def test_an_event_that_no_rule_can_bear_fails_alone_and_says_why(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add(hub)
    for number in range(MANY):
        await say(hub, "order.paid", payload=BUYER | {"user": {"discord_id": str(number)}})

    async def stumbles(tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        outcomes = await apply_rules(tx, events, hub.templates)
        if any(event.payload["user"]["discord_id"] == "7" for event in events):
            raise ZeroDivisionError("seven")
        return outcomes

    async def over() -> bool:
        return await stand(database_urls) == {"completed": str(MANY - 1), "pending": "1"}

    async with ruling(hub, rules_worker(hub, TransactionalHandler(hub.db, stumbles))):
        await until(over)

    assert sorted(int(made.recipient_id) for made in await every(hub)) == [n for n in range(MANY) if n != 7]
    waiting = "select last_error from public.event_queue where target_service = 'hub' and status = 'pending'"
    assert await sql(database_urls, waiting) == "ZeroDivisionError: seven"
