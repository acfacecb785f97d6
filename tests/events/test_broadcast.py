"""A broadcast creates one delivery per subscriber, each with its own attempts and outcome."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.events.consume.handlers import EventHandler
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.events import EventAccess, list_deliveries
from pabal.events.subscriptions import remove_subscription
from pabal.hub import Hub
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Dead, Outcome, Retry
from pabal.tokens.services import add_service, set_service_active
from support.clusters import Connection
from support.subscriptions import ALL_ACCESS, TESTER, load_event, publish_test_event, subscribe

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
HUB = Actor("hub")


async def deliveries(hub: Hub, broadcast: UUID) -> dict[str, str]:
    """The status of each delivery, by service."""
    async with hub.autocommit() as tx:
        rows = await list_deliveries(tx, broadcast, ALL_ACCESS)
    statuses = {delivery.target_service: delivery.status for delivery in rows}
    assert len(statuses) == len(rows)
    return statuses


async def claim(hub: Hub, service: str, limit: int = 10) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, limit, MINUTE, "tester", EventClaimFilter(service))


async def settle(hub: Hub, held: ClaimedEvent, outcome: Outcome = DONE) -> None:
    async with hub.transaction() as tx:
        assert await LANE.settle(tx, [Settlement(held, outcome)]) == {held.id}


async def add_rule(owner: Connection, *event_types: str) -> None:
    """Insert the subscription of a notification rule."""
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', $1)", [*event_types]
    )


async def test_a_broadcast_reaches_all_subscribers_except_its_source(hub: Hub) -> None:
    for service in ("minu_find", "minu_build", "minu_keep"):
        await subscribe(hub, service, "order.*")
    await subscribe(hub, "minu_frame", "cart.*")

    broadcast = await publish_test_event(hub, "order.paid", None, {"n": 1}, correlation_id="c", priority=2)

    assert await deliveries(hub, broadcast) == {"minu_build": "pending", "minu_keep": "pending"}
    parent = await load_event(hub, broadcast)
    assert (parent.status, parent.is_broadcast, parent.target_service) == ("completed", True, None)
    assert parent.processed_at == parent.created_at
    [held] = await claim(hub, "minu_build")
    assert (held.payload, held.correlation_id, held.priority, held.source_service) == ({"n": 1}, "c", 2, "minu_find")
    assert held.id not in {broadcast, (await claim(hub, "minu_keep"))[0].id}
    assert await claim(hub, "minu_find") == []
    assert await claim(hub, "minu_frame") == []


async def test_a_broadcast_without_subscribers_completes(hub: Hub) -> None:
    broadcast = await publish_test_event(hub, "order.paid", None)

    assert await deliveries(hub, broadcast) == {}
    assert (await load_event(hub, broadcast)).status == "completed"


async def test_each_delivery_has_its_own_attempts_and_dead_letter(hub: Hub, owner: Connection) -> None:
    for service in ("minu_build", "minu_keep", "minu_frame"):
        await subscribe(hub, service, "order.*")
    broadcast = await publish_test_event(hub, "order.paid", None, max_retries=1)

    [succeeding] = await claim(hub, "minu_build")
    await settle(hub, succeeding)
    [failing] = await claim(hub, "minu_keep")
    await settle(hub, failing, Retry("not yet", timedelta()))
    [failing] = await claim(hub, "minu_keep")
    await settle(hub, failing, Retry("not ever"))

    statuses = {"minu_build": "completed", "minu_keep": "failed", "minu_frame": "pending"}
    assert await deliveries(hub, broadcast) == statuses
    assert (await load_event(hub, broadcast)).status == "completed"
    letters = await owner.fetch("select original_event_id, error_message from public.dead_letter_queue")
    assert [tuple(row) for row in letters] == [(failing.id, "not ever")]
    [waiting] = await claim(hub, "minu_frame")
    assert waiting.retry_count == 0


async def test_a_broadcast_by_plain_sql_reaches_all_subscribers(hub: Hub, owner: Connection) -> None:
    await subscribe(hub, "minu_build", "order.*")
    await subscribe(hub, "minu_keep", "*")
    rows = await owner.fetch(
        "insert into public.event_queue (event_type, source_service) "
        "values ('order.paid', 'minu_find'), ('cart.paid', 'minu_keep') returning id, status"
    )

    assert {row["status"] for row in rows} == {"completed"}
    assert await deliveries(hub, rows[0]["id"]) == {"minu_build": "pending", "minu_keep": "pending"}
    assert await deliveries(hub, rows[1]["id"]) == {}


async def test_disabled_subscriptions_get_nothing_and_paused_ones_get_it_later(hub: Hub, owner: Connection) -> None:
    for service in ("minu_build", "minu_keep", "minu_frame"):
        await subscribe(hub, service, "order.*")
    async with hub.transaction() as tx:
        await set_service_active(tx, "minu_build", TESTER, active=False)
    state = "update pabal.subscriptions set {} where service_name = $1"
    await owner.execute(state.format("disabled_at = now(), disabled_reason = 'gone'"), "minu_keep")
    await owner.execute(state.format("paused_at = now()"), "minu_frame")

    assert await deliveries(hub, await publish_test_event(hub, "order.paid", None)) == {"minu_frame": "pending"}


async def test_several_matching_patterns_create_one_delivery(hub: Hub) -> None:
    await subscribe(hub, "minu_build", "order.*", "*.paid", "order.paid", "*")
    await subscribe(hub, "minu_build", "order.paid")

    broadcast = await publish_test_event(hub, "order.paid", None)

    assert await deliveries(hub, broadcast) == {"minu_build": "pending"}
    assert len(await claim(hub, "minu_build")) == 1


PATTERNS = {
    "order.paid": ["order.paid", "order.*", "*.paid", "*", "order.p*d", "order*", "*.*"],
    "order_paid": ["order_paid", "order_*", "*", "order*"],
    "orderxpaid": ["*", "order*"],
    "order.line.paid": ["order.*", "*.paid", "*", "order*", "*.*"],
    "order": ["*", "order*"],
    "paid": ["*"],
}


async def test_a_star_matches_any_text_and_all_else_is_literal(hub: Hub) -> None:
    """The table and the handlers of a worker match patterns alike."""
    patterns = sorted({pattern for matching in PATTERNS.values() for pattern in matching})
    for number, pattern in enumerate(patterns):
        async with hub.transaction() as tx:
            await add_service(tx, f"service_{number}", ["write"], HUB)
        await subscribe(hub, f"service_{number}", pattern)

    for event_type, matching in PATTERNS.items():
        statuses = await deliveries(hub, await publish_test_event(hub, event_type, None))
        assert (event_type, {patterns[int(service.removeprefix("service_"))] for service in statuses}) == (
            event_type,
            {*matching},
        )
        [held] = await claim(hub, f"service_{patterns.index('*')}")
        handlers = [
            EventHandler((pattern_of,), held.target_service, must_not_run, 1, MINUTE) for pattern_of in patterns
        ]
        assert {handler.event_types[0] for handler in handlers if handler.matches(held)} == {*matching}
        await settle(hub, held)


async def must_not_run(_: ClaimedEvent) -> Outcome:
    raise AssertionError


async def test_a_notification_rule_gets_its_own_delivery_of_a_targeted_event(hub: Hub, owner: Connection) -> None:
    await add_rule(owner, "order.*")
    await add_rule(owner, "*.paid")
    targeted = await publish_test_event(hub, "order.paid", "minu_build")
    await publish_test_event(hub, "cart.sent", "minu_build")
    broadcast = await publish_test_event(hub, "order.paid", None)

    assert await deliveries(hub, targeted) == {"hub": "pending"}
    assert await deliveries(hub, broadcast) == {"hub": "pending"}
    assert len(await claim(hub, "hub")) == 2
    held, _ = sorted(await claim(hub, "minu_build"), key=lambda claimed: claimed.seq)
    assert held.id == targeted
    await settle(hub, held, Dead("no"))
    assert await deliveries(hub, targeted) == {"hub": "processing"}


async def test_a_service_lists_only_deliveries_it_may_see(hub: Hub) -> None:
    await subscribe(hub, "minu_build", "*")
    await subscribe(hub, "minu_keep", "*")
    broadcast = await publish_test_event(hub, "order.paid", None)

    async with hub.autocommit() as tx:
        visible = {
            service: [
                delivery.target_service for delivery in await list_deliveries(tx, broadcast, EventAccess(service))
            ]
            for service in ("minu_find", "minu_build", "minu_frame")
        }

    assert visible == {"minu_find": ["minu_build", "minu_keep"], "minu_build": ["minu_build"], "minu_frame": []}


async def test_each_subscriber_gets_the_events_of_a_key_in_order(hub: Hub) -> None:
    for service in ("minu_build", "minu_keep"):
        await subscribe(hub, service, "order.*")
    for number in range(3):
        await publish_test_event(hub, "order.paid", None, {"n": number}, ordering_key="k")

    async def complete_next(service: str) -> Any:
        [held] = await claim(hub, service)
        assert await claim(hub, service) == []
        await settle(hub, held)
        return held.payload["n"]

    assert [await complete_next("minu_build") for _ in range(3)] == [0, 1, 2]
    assert [await complete_next("minu_keep") for _ in range(3)] == [0, 1, 2]


async def test_deliver_at_and_expires_at_apply_to_each_delivery(hub: Hub, travel: Any, owner: Connection) -> None:
    await subscribe(hub, "minu_build", "order.*")
    now = await owner.fetchval("select pabal.now()")
    await publish_test_event(hub, "order.paid", None, {"n": 1}, deliver_at=now + MINUTE)
    expired = await publish_test_event(hub, "order.paid", None, {"n": 2}, expires_at=now + MINUTE / 2)

    await travel(MINUTE)

    assert [held.payload["n"] for held in await claim(hub, "minu_build")] == [1]
    assert await deliveries(hub, expired) == {"minu_build": "cancelled"}


async def test_a_subscription_gets_only_later_broadcasts(hub: Hub) -> None:
    before = await publish_test_event(hub, "order.paid", None)
    subscription, _ = await subscribe(hub, "minu_build", "order.*")
    after = await publish_test_event(hub, "order.paid", None)
    async with hub.transaction() as tx:
        await remove_subscription(tx, subscription.id, ALL_ACCESS, TESTER)
    removed = await publish_test_event(hub, "order.paid", None)

    assert [await deliveries(hub, row) for row in (before, after, removed)] == [{}, {"minu_build": "pending"}, {}]
