"""The trace of an event: complete, and found by any of its ids."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import new_id
from pabal.events.consume.lane import LANE
from pabal.events.dead_letters.dead_letters import resolve_dead_letter
from pabal.events.dead_letters.replay import replay_dead_letter
from pabal.events.error_history import FailedAttempt
from pabal.events.events import EventAccess, cancel_event, find_event
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Retry, Snooze
from pabal.tokens.services import set_service_active
from pabal.trace.event_entries import TracedEvent, event_attempt_entries, event_status_text
from pabal.trace.events import EventTrace, trace_event
from support.failed_events import MINA, EventQueue
from support.subscriptions import pause, resume, subscribe

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
SECOND = timedelta(seconds=1)


async def load_trace(hub: Hub, name: object) -> EventTrace:
    async with hub.autocommit() as tx:
        return await trace_event(tx, str(name))


def kinds(trace: EventTrace) -> list[str]:
    return [entry.kind for entry in trace.entries]


async def test_a_trace_has_all_attempts_and_the_replay_in_order(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    event = await event_queue.publish(max_retries=1)
    for outcome in (Retry("no answer", SECOND, "net"), Dead("gave up")):
        [held] = await event_queue.claim()
        await travel(3 * SECOND)
        await event_queue.settle(held, outcome)
        await travel(2 * SECOND)
    letter = await event_queue.find_dead_letter(event)
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, letter, MINA)
    await travel(60 * SECOND)
    [held] = await event_queue.claim()
    await travel(3 * SECOND)
    await event_queue.settle(held)

    trace = await load_trace(hub, event)

    assert kinds(trace) == ["published", "failed", "failed", "died", "replayed", "completed"]
    published, first, second, died, replayed, completed = trace.entries
    assert published.says == "order.paid published by minu_find for minu_build"
    assert first.says == "attempt 1 by w1 failed: no answer"
    assert second.says == "attempt 2 by w1 failed: gave up"
    assert (died.says, died.letter_id) == (f"moved to the dead letters: gave up; dead letter {letter}", letter)
    assert (replayed.says, replayed.by) == ("replayed by operator:mina", MINA.name)
    assert completed.says == "attempt 1 by w1 succeeded"
    assert completed.took is not None
    assert timedelta(seconds=3) <= completed.took < timedelta(seconds=10)
    assert published.took is None
    for failed in (first, second):
        assert failed.took is not None
        assert timedelta(seconds=3) <= failed.took < timedelta(seconds=10)
    assert [entry.at for entry in trace.entries] == sorted(entry.at for entry in trace.entries)


async def test_an_attempt_of_a_crashed_worker_lasts_until_its_lease_ends(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    event = await event_queue.publish()
    await event_queue.claim()
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.revive(tx, 10)
    [held] = await event_queue.claim()
    await event_queue.settle(held, Dead("gave up"))
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)

    crashed, failed, _ = (await load_trace(hub, event)).entries

    assert crashed.took is not None
    assert timedelta(minutes=2) <= crashed.took < timedelta(minutes=3)
    assert failed.took is not None
    assert failed.took < timedelta(seconds=10)


async def test_the_status_says_that_no_handler_accepts_the_event(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', 'handler', '{cart.*}')"
    )
    unhandled, handled = await event_queue.publish("order.paid"), await event_queue.publish("cart.paid")

    traces = [await load_trace(hub, event) for event in (unhandled, handled)]

    assert [event_status_text(trace.events[0], trace.now) for trace in traces] == [
        "pending, due; no handler of minu_build accepts order.paid",
        "pending, due",
    ]


async def test_a_failed_attempt_has_its_duration(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish()
    [held] = await event_queue.claim()
    await travel(4 * SECOND)
    await event_queue.settle(held, Dead("gave up"))

    _, failed, died = (await load_trace(hub, event)).entries

    assert failed.took is not None
    assert timedelta(seconds=4) <= failed.took < timedelta(seconds=10)
    assert died.at == failed.at


async def test_the_status_of_an_open_event(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    async def status(event: UUID) -> str:
        trace = await load_trace(hub, event)
        [row] = trace.events
        return event_status_text(row, trace.now)

    event = await event_queue.publish()
    assert (await status(event)).startswith("pending, due; minu_build has no subscription")
    [held] = await event_queue.claim()
    assert (await load_trace(hub, event)).entries[-1].says == "attempt 1 started by w1"
    assert (await status(event)).startswith("processing, held by w1; the lease ends in ")
    await travel(timedelta(minutes=2))
    assert await status(event) == "processing, held by w1; the lease has ended"
    await event_queue.settle(held, Snooze("not before noon", timedelta(minutes=30)))

    trace = await load_trace(hub, event)
    assert trace.entries[-1].says == "postponed without using an attempt: not before noon"
    assert re.fullmatch(r"pending, due in (30 min 0|29 min \d+) s", await status(event))
    await event_queue.owner.execute("update public.event_queue set status = 'completed' where id = $1", event)
    assert (await load_trace(hub, event)).entries[-1].says == "completed manually"


async def test_an_expired_lease_is_a_failed_attempt(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish()
    await event_queue.claim()
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.revive(tx, 10)

    assert (await load_trace(hub, event)).entries[-1].says == "attempt 1 by w1 failed: lease expired"


async def test_a_scheduled_event_says_so(hub: Hub, event_queue: EventQueue) -> None:
    event = await event_queue.publish(deliver_at=datetime.now(UTC) + timedelta(hours=1))

    [published] = (await load_trace(hub, event)).entries

    assert published.says.endswith(", scheduled for later")


async def test_a_cancellation_names_its_actor_and_an_expiry_is_one(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    cancelled_event = await event_queue.publish()
    expiring_event = await event_queue.publish(expires_at=datetime.now(UTC) + timedelta(minutes=1))
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, cancelled_event, EventAccess("hub", all_services=True)), MINA)
    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        await LANE.expire(tx, 10)

    cancelled, expired = (
        (await load_trace(hub, cancelled_event)).entries[1:],
        (await load_trace(hub, expiring_event)).entries[1:],
    )

    assert [(entry.kind, entry.says, entry.by) for entry in cancelled] == [
        ("cancelled", "cancelled by operator:mina", MINA.name)
    ]
    assert [(entry.kind, entry.says) for entry in expired] == [("expired", "expired before a consumer claimed it")]


@pytest.fixture
async def broadcast(event_queue: EventQueue) -> UUID:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    return await event_queue.publish(target=None, correlation_id="order-77")


async def test_the_trace_of_a_broadcast_has_its_deliveries(hub: Hub, event_queue: EventQueue, broadcast: UUID) -> None:
    [first] = await event_queue.claim()
    await event_queue.settle(first)
    [second] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(second, Dead("boom"))

    trace = await load_trace(hub, broadcast)

    assert [event.id for event in trace.events] == [broadcast, first.id, second.id]
    assert kinds(trace) == ["published", "owed", "owed", "completed", "failed", "died"]
    assert trace.entries[0].says == "order.paid published by minu_find for all subscribers"
    assert [entry.event_id for entry in trace.entries[3:]] == [first.id, second.id, second.id]


async def test_the_trace_has_the_delivery_to_notification_rules(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    event = await event_queue.publish()

    trace = await load_trace(hub, event)

    assert [entry.says for entry in trace.entries][1:] == ["queued for hub"]


async def test_the_trace_of_a_delivery_names_its_broadcast(hub: Hub, event_queue: EventQueue, broadcast: UUID) -> None:
    [held] = await event_queue.claim()
    await event_queue.settle(held)

    trace = await load_trace(hub, held.id)

    assert [event.id for event in trace.events] == [held.id]
    assert kinds(trace) == ["published", "completed"]
    assert trace.entries[0].says.endswith(f"published by minu_find for minu_build, a delivery of {broadcast}")


async def test_a_cancelled_broadcast_names_its_actor(hub: Hub, event_queue: EventQueue, broadcast: UUID) -> None:
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, broadcast, EventAccess("hub", all_services=True)), MINA)

    trace = await load_trace(hub, broadcast)

    broadcast_entry, *delivery_entries = [entry for entry in trace.entries if entry.kind == "cancelled"][::-1]
    assert (broadcast_entry.event_id, broadcast_entry.says) == (broadcast, "cancelled by operator:mina, deliveries: 2")
    assert [part.by for part in delivery_entries] == [MINA.name, MINA.name]


async def test_a_deleted_event_is_traced_by_its_dead_letters_and_its_replay(hub: Hub, event_queue: EventQueue) -> None:
    event, letter = await event_queue.publish_failed()
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)
    assert kinds(await load_trace(hub, event)) == ["failed", "died"]
    async with hub.transaction() as tx:
        new_event = await replay_dead_letter(tx, letter, MINA)
    again = await event_queue.fail(new_event, Dead("boom again"))
    async with hub.transaction() as tx:
        await resolve_dead_letter(tx, again, MINA, "known")

    traces_by_id = {name: await load_trace(hub, name) for name in (event, letter, new_event, again)}

    for trace in traces_by_id.values():
        assert [(entry.kind, entry.event_id) for entry in trace.entries if entry.kind != "failed"] == [
            ("died", event),
            ("replayed", event),
            ("died", new_event),
            ("resolved", new_event),
        ]
        texts = [entry.says for entry in trace.entries]
        assert f"replayed by operator:mina, as the new event {new_event}" in texts
        assert "dead letter resolved by operator:mina: known" in texts
    assert (traces_by_id[letter].kind, traces_by_id[letter].subject) == ("dead letter", str(letter))


async def test_a_second_failure_is_numbered(hub: Hub, event_queue: EventQueue) -> None:
    event, first = await event_queue.publish_failed()
    async with hub.transaction() as tx:
        await replay_dead_letter(tx, first, MINA)
    await event_queue.fail(event, Dead("boom again"))

    died = [entry.says for entry in (await load_trace(hub, event)).entries if entry.kind == "died"]

    assert died[0].startswith("moved to the dead letters: boom;")
    assert died[1].startswith("moved to the dead letters, failure 2: boom again;")


async def test_a_correlation_id_traces_all_its_events(hub: Hub, event_queue: EventQueue, broadcast: UUID) -> None:
    other = await event_queue.publish("order.shipped", correlation_id="order-77")
    await event_queue.publish(correlation_id="order-78")

    trace = await load_trace(hub, "order-77")

    assert (trace.kind, trace.subject) == ("correlation", "order-77")
    assert {event.id for event in trace.events if not event.parent_id} == {broadcast, other}
    assert len([event for event in trace.events if event.parent_id]) == 2


async def test_a_unique_prefix_of_an_id_is_enough(hub: Hub, event_queue: EventQueue) -> None:
    for event_id in (
        "aaaaaaaa-0000-7000-8000-000000000001",
        "aaaaaaaa-0000-7000-8000-000000000002",
        "bbbbbbbb" + "1" * 24,
    ):
        await event_queue.owner.execute(
            "insert into public.event_queue (id, event_type, source_service, target_service)"
            " values ($1, 'order.paid', 'hub', 'minu_build')",
            UUID(event_id),
        )

    assert (await load_trace(hub, "bbbbbbbb")).subject == str(UUID("bbbbbbbb" + "1" * 24))
    assert (await load_trace(hub, "AAAAAAAA-0000-7000-8000-000000000001")).kind == "event"
    with pytest.raises(Invalid, match="id: aaaaaaaa is ambiguous: aaaaaaaa-0000-7000-8000-000000000001, "):
        await load_trace(hub, "aaaaaaaa")
    for name in ("bbbbbbb", "bbbbbbbg", "bbbbbbbc", new_id(), "nothing", ""):
        with pytest.raises(NotFound):
            await load_trace(hub, name)


def test_a_full_history_says_that_earlier_attempts_are_not_stored() -> None:
    history = [FailedAttempt("boom", number, datetime(2026, 1, 1, tzinfo=UTC)) for number in range(5, 25)]

    first, *others = event_attempt_entries(new_id(), history)

    assert first.says == "attempt 5 by an unknown worker failed: boom (earlier attempts are no longer stored)"
    assert not [entry for entry in others if "no longer stored" in entry.says]


async def test_a_finished_event_has_only_its_status(hub: Hub, event_queue: EventQueue) -> None:
    event = await event_queue.publish(ordering_key="o1")
    trace = await load_trace(hub, event)
    [row] = trace.events

    changed: dict[str, Any] = {"status": "completed"}
    assert isinstance(row, TracedEvent)
    assert event_status_text(replace(row, **changed), trace.now) == "completed"


class TestWhyItWaits:
    async def status(self, hub: Hub, event: UUID) -> str:
        trace = await load_trace(hub, event)
        [row] = [row for row in trace.events if row.id == event]
        return event_status_text(row, trace.now)

    async def test_without_a_subscription_the_service_must_pull(self, hub: Hub, event_queue: EventQueue) -> None:
        event = await event_queue.publish()

        assert await self.status(hub, event) == (
            "pending, due; minu_build has no subscription for order.paid and must pull it"
        )

    async def test_behind_another_event_of_its_key(self, hub: Hub, event_queue: EventQueue) -> None:
        first, second = [await event_queue.publish(ordering_key="cart-1") for _ in range(2)]

        assert await self.status(hub, second) == f"pending, behind {first} in its ordering key cart-1"
        assert "behind" not in await self.status(hub, first)

    async def test_a_retry_that_holds_others_back_names_its_key(self, hub: Hub, event_queue: EventQueue) -> None:
        first = await event_queue.publish(ordering_key="cart-1")
        [held] = await event_queue.claim()
        await event_queue.settle(held, Retry("closed", delay=timedelta(hours=12)))
        assert (await self.status(hub, first)).endswith(", attempt 2 of 4"), "nothing waits for it"

        await event_queue.publish(ordering_key="cart-1")

        assert (await self.status(hub, first)).endswith(
            ", attempt 2 of 4; later events of its ordering key cart-1 wait for it"
        )

    async def test_a_disabled_service_gets_nothing(self, hub: Hub, event_queue: EventQueue) -> None:
        await subscribe(hub, "minu_build", "order.*", url="https://receiver.example.org")
        event = await event_queue.publish()
        async with hub.transaction() as tx:
            await set_service_active(tx, "minu_build", MINA, active=False)

        assert await self.status(hub, event) == "pending, due; the service minu_build is disabled"

    async def test_a_paused_or_disabled_subscription_or_an_open_breaker(
        self, hub: Hub, event_queue: EventQueue
    ) -> None:
        subscription, _ = await subscribe(hub, "minu_build", "order.*", url="https://receiver.example.org")
        event = await event_queue.publish()
        assert await self.status(hub, event) == "pending, due"

        await pause(hub, subscription)
        assert "tester paused its subscription" in await self.status(hub, event)
        await resume(hub, subscription)
        change = "update pabal.subscriptions set {} where id = $1"
        await event_queue.owner.execute(change.format("open_until = pabal.now() + interval '1 hour'"), subscription.id)
        assert "the receiver keeps failing, the next try is in " in await self.status(hub, event)
        await event_queue.owner.execute(
            change.format("disabled_at = pabal.now(), disabled_reason = 'HTTP 410'"), subscription.id
        )
        assert await self.status(hub, event) == "pending, due; its subscription is disabled: HTTP 410"

    async def test_a_plain_claim_is_named(self, hub: Hub, event_queue: EventQueue) -> None:
        event = await event_queue.publish()
        await event_queue.owner.execute(
            "update public.event_queue set status = 'processing', processing_started_at = pabal.now() where id = $1",
            event,
        )

        assert "claimed with plain SQL" in await self.status(hub, event)
