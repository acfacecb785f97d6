"""A broadcast reaches everybody who asked for its type; from then on each delivery lives its own life."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.events.events import EventAccess, list_deliveries
from pabal.events.handlers import EventHandler
from pabal.events.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.subscriptions import remove_subscription
from pabal.hub import Hub
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Dead, Outcome, Retry
from pabal.tokens.services import add_service, set_service_active
from support.clusters import Connection
from support.subscriptions import EVERYBODY, TESTER, event, say, subscribe

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
HUB = Actor("hub")


async def deliveries(hub: Hub, broadcast: UUID) -> dict[str, str]:
    """Who got it, and how each stands."""
    async with hub.autocommit() as tx:
        found = await list_deliveries(tx, broadcast, EVERYBODY)
    told = {each.target_service: each.status for each in found}
    assert len(told) == len(found)
    return told


async def claim(hub: Hub, service: str, limit: int = 10) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, limit, MINUTE, "tester", EventClaimFilter(service))


async def settle(hub: Hub, held: ClaimedEvent, outcome: Outcome = DONE) -> None:
    async with hub.transaction() as tx:
        assert await LANE.settle(tx, [Settlement(held, outcome)]) == {held.id}


async def rule(owner: Connection, *event_types: str) -> None:
    """A notification rule, as far as events know of one."""
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', $1)", [*event_types]
    )


async def test_it_reaches_everybody_who_asked_except_who_said_it(hub: Hub) -> None:
    for service in ("minu_find", "minu_build", "minu_keep"):
        await subscribe(hub, service, "order.*")
    await subscribe(hub, "minu_frame", "cart.*")

    broadcast = await say(hub, "order.paid", None, {"n": 1}, correlation_id="c", priority=2)

    assert await deliveries(hub, broadcast) == {"minu_build": "pending", "minu_keep": "pending"}
    parent = await event(hub, broadcast)
    assert (parent.status, parent.is_broadcast, parent.target_service) == ("completed", True, None)
    assert parent.processed_at == parent.created_at
    [held] = await claim(hub, "minu_build")
    assert (held.payload, held.correlation_id, held.priority, held.source_service) == ({"n": 1}, "c", 2, "minu_find")
    assert held.id not in {broadcast, (await claim(hub, "minu_keep"))[0].id}
    assert await claim(hub, "minu_find") == []
    assert await claim(hub, "minu_frame") == []


async def test_nobody_who_wants_it_is_no_mistake(hub: Hub) -> None:
    broadcast = await say(hub, "order.paid", None)

    assert await deliveries(hub, broadcast) == {}
    assert (await event(hub, broadcast)).status == "completed"


async def test_each_delivery_has_its_own_attempts_and_its_own_death(hub: Hub, owner: Connection) -> None:
    for service in ("minu_build", "minu_keep", "minu_frame"):
        await subscribe(hub, service, "order.*")
    broadcast = await say(hub, "order.paid", None, max_retries=1)

    [good] = await claim(hub, "minu_build")
    await settle(hub, good)
    [bad] = await claim(hub, "minu_keep")
    await settle(hub, bad, Retry("not yet", timedelta()))
    [bad] = await claim(hub, "minu_keep")
    await settle(hub, bad, Retry("not ever"))

    told = {"minu_build": "completed", "minu_keep": "failed", "minu_frame": "pending"}
    assert await deliveries(hub, broadcast) == told
    assert (await event(hub, broadcast)).status == "completed"
    letters = await owner.fetch("select original_event_id, error_message from public.dead_letter_queue")
    assert [tuple(row) for row in letters] == [(bad.id, "not ever")]
    [late] = await claim(hub, "minu_frame")
    assert late.retry_count == 0


async def test_plain_sql_says_it_to_everybody_too(hub: Hub, owner: Connection) -> None:
    await subscribe(hub, "minu_build", "order.*")
    await subscribe(hub, "minu_keep", "*")
    rows = await owner.fetch(
        "insert into public.event_queue (event_type, source_service) "
        "values ('order.paid', 'minu_find'), ('cart.paid', 'minu_keep') returning id, status"
    )

    assert {row["status"] for row in rows} == {"completed"}
    assert await deliveries(hub, rows[0]["id"]) == {"minu_build": "pending", "minu_keep": "pending"}
    assert await deliveries(hub, rows[1]["id"]) == {}


async def test_who_is_disabled_gets_nothing_and_who_is_paused_gets_it_later(hub: Hub, owner: Connection) -> None:
    for service in ("minu_build", "minu_keep", "minu_frame"):
        await subscribe(hub, service, "order.*")
    async with hub.transaction() as tx:
        await set_service_active(tx, "minu_build", TESTER, active=False)
    state = "update pabal.subscriptions set {} where service_name = $1"
    await owner.execute(state.format("disabled_at = now(), disabled_reason = 'gone'"), "minu_keep")
    await owner.execute(state.format("paused_at = now()"), "minu_frame")

    assert await deliveries(hub, await say(hub, "order.paid", None)) == {"minu_frame": "pending"}


async def test_several_patterns_and_subscriptions_are_one_delivery(hub: Hub) -> None:
    await subscribe(hub, "minu_build", "order.*", "*.paid", "order.paid", "*")
    await subscribe(hub, "minu_build", "order.paid")

    broadcast = await say(hub, "order.paid", None)

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


async def test_a_star_stands_for_anything_and_everything_else_for_itself(hub: Hub) -> None:
    """The table and a worker's own handlers read a pattern alike."""
    patterns = sorted({pattern for fits in PATTERNS.values() for pattern in fits})
    for place, pattern in enumerate(patterns):
        async with hub.transaction() as tx:
            await add_service(tx, f"service_{place}", ["write"], HUB)
        await subscribe(hub, f"service_{place}", pattern)

    for event_type, fits in PATTERNS.items():
        got = await deliveries(hub, await say(hub, event_type, None))
        assert (event_type, {patterns[int(who.removeprefix("service_"))] for who in got}) == (event_type, {*fits})
        [held] = await claim(hub, f"service_{patterns.index('*')}")
        handlers = [EventHandler((each,), held.target_service, never, 1, MINUTE) for each in patterns]
        assert {handler.event_types[0] for handler in handlers if handler.matches(held)} == {*fits}
        await settle(hub, held)


async def never(_: ClaimedEvent) -> Outcome:
    raise AssertionError


async def test_a_rule_of_the_hub_gets_its_own_delivery_of_what_is_for_others(hub: Hub, owner: Connection) -> None:
    await rule(owner, "order.*")
    await rule(owner, "*.paid")
    targeted = await say(hub, "order.paid", "minu_build")
    await say(hub, "cart.sent", "minu_build")
    for_all = await say(hub, "order.paid", None)

    assert await deliveries(hub, targeted) == {"hub": "pending"}
    assert await deliveries(hub, for_all) == {"hub": "pending"}
    assert len(await claim(hub, "hub")) == 2
    held, _ = sorted(await claim(hub, "minu_build"), key=lambda each: each.seq)
    assert held.id == targeted
    await settle(hub, held, Dead("no"))
    assert await deliveries(hub, targeted) == {"hub": "processing"}


async def test_who_may_not_see_it_is_told_of_no_delivery(hub: Hub) -> None:
    await subscribe(hub, "minu_build", "*")
    await subscribe(hub, "minu_keep", "*")
    broadcast = await say(hub, "order.paid", None)

    async with hub.autocommit() as tx:
        seen = {
            who: [each.target_service for each in await list_deliveries(tx, broadcast, EventAccess(who))]
            for who in ("minu_find", "minu_build", "minu_frame")
        }

    assert seen == {"minu_find": ["minu_build", "minu_keep"], "minu_build": ["minu_build"], "minu_frame": []}


async def test_the_order_of_a_key_is_kept_for_each_receiver(hub: Hub) -> None:
    for service in ("minu_build", "minu_keep"):
        await subscribe(hub, service, "order.*")
    for number in range(3):
        await say(hub, "order.paid", None, {"n": number}, ordering_key="k")

    async def one(service: str) -> Any:
        [held] = await claim(hub, service)
        assert await claim(hub, service) == []
        await settle(hub, held)
        return held.payload["n"]

    assert [await one("minu_build") for _ in range(3)] == [0, 1, 2]
    assert [await one("minu_keep") for _ in range(3)] == [0, 1, 2]


async def test_later_and_until_count_for_each_delivery(hub: Hub, travel: Any, owner: Connection) -> None:
    await subscribe(hub, "minu_build", "order.*")
    now = await owner.fetchval("select pabal.now()")
    await say(hub, "order.paid", None, {"n": 1}, deliver_at=now + MINUTE)
    lost = await say(hub, "order.paid", None, {"n": 2}, expires_at=now + MINUTE / 2)

    await travel(MINUTE)

    assert [held.payload["n"] for held in await claim(hub, "minu_build")] == [1]
    assert await deliveries(hub, lost) == {"minu_build": "cancelled"}


async def test_who_subscribes_later_gets_what_comes_later(hub: Hub) -> None:
    before = await say(hub, "order.paid", None)
    made, _ = await subscribe(hub, "minu_build", "order.*")
    after = await say(hub, "order.paid", None)
    async with hub.transaction() as tx:
        await remove_subscription(tx, made.id, EVERYBODY, TESTER)
    gone = await say(hub, "order.paid", None)

    assert [await deliveries(hub, row) for row in (before, after, gone)] == [{}, {"minu_build": "pending"}, {}]
