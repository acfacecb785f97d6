"""Replay: a failed event is queued again once, unchanged."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.doorbell.channels import Channel
from pabal.events.dead_letters.dead_letters import (
    DeadLetterFilter,
    find_dead_letter,
    resolve_dead_letter,
    resolve_dead_letters,
)
from pabal.events.dead_letters.replay import (
    ReplayCount,
    count_replayable_dead_letters,
    replay_dead_letter,
    replay_dead_letters,
    replay_matching_dead_letters,
)
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Retry
from support.failed_events import MINA, EventQueue, read_dead_letters, replay_as_operator

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
JUNHO = Actor("operator:junho")


async def test_a_replayed_event_is_the_same_row_with_all_its_attempts(hub: Hub, event_queue: EventQueue) -> None:
    event = await event_queue.publish(idempotency_key="k1", max_retries=1, payload=b'{"n": 1}')
    [held] = await event_queue.claim()
    await event_queue.settle(held, Retry("no answer", timedelta()))
    letter = await event_queue.fail(event)

    assert await replay_as_operator(hub, letter) == {letter: event}

    row = await event_queue.load_event(event)
    assert (row["status"], row["retry_count"], row["processed_at"]) == ("pending", 0, None)
    assert (row["processing_started_at"], row["next_retry_at"]) == (None, None)
    assert '"boom"' in row["error_history"]
    assert await event_queue.publish(idempotency_key="k1", max_retries=1, payload=b'{"n": 1}') == event
    [held] = await event_queue.claim()
    assert (held.id, held.origin_id, held.attempt, held.payload) == (event, event, 1, {"n": 1})
    await event_queue.settle(held)
    [dead_letter] = await read_dead_letters(hub, state="resolved")
    assert (dead_letter.id, dead_letter.replay_count, dead_letter.resolved_by_actor) == (letter, 1, MINA.name)
    assert dead_letter.replayed_at == dead_letter.resolved_at
    assert await event_queue.audit_entries(letter) == [(MINA.name, "dead_letter.replayed", str(letter))]


async def test_a_replay_wakes_listeners(hub: Hub, event_queue: EventQueue) -> None:
    _, letter = await event_queue.publish_failed()

    with hub.doorbell.listen(Channel.EVENTS) as listener:
        async with hub.transaction() as tx:
            await replay_dead_letters(tx, [letter], MINA)
            assert not listener.take_wakeup()
        assert listener.take_wakeup()


async def test_a_deleted_event_is_replayed_under_a_new_id(hub: Hub, event_queue: EventQueue) -> None:
    event, letter = await event_queue.publish_failed(
        payload=b'{"n": 1}', priority=2, max_retries=7, ordering_key="o", correlation_id="c"
    )
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)
    [dead_letter] = await read_dead_letters(hub)
    assert (dead_letter.id, dead_letter.event_id, dead_letter.original_event_id) == (letter, None, event)

    new_event = (await replay_as_operator(hub, letter))[letter]

    assert new_event != event
    [held] = await event_queue.claim()
    assert (held.id, held.origin_id, held.attempt) == (new_event, event, 1)
    assert (held.event_type, held.source_service, held.payload) == ("order.paid", "minu_find", {"n": 1})
    assert (held.priority, held.max_retries, held.ordering_key, held.correlation_id) == (2, 7, "o", "c")
    await event_queue.settle(held, Dead("boom again"))
    again = await event_queue.find_dead_letter(new_event)
    async with hub.autocommit() as tx:
        letter_again = await find_dead_letter(tx, again)
    assert (letter_again.original_event_id, letter_again.origin_id, letter_again.death) == (new_event, event, 1)
    assert [failure.error for failure in letter_again.error_history or ()] == ["boom", "boom again"]


async def test_a_replay_creates_no_second_delivery_for_notification_rules(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    event, letter = await event_queue.publish_failed()
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)

    await replay_as_operator(hub, letter)

    assert len(await event_queue.claim(service="hub")) == 1
    assert len(await event_queue.claim()) == 1


async def test_a_failed_delivery_of_a_broadcast_is_replayed_alone(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    broadcast = await event_queue.publish(target=None)
    [held] = await event_queue.claim()
    await event_queue.settle(held, Dead("boom"))
    letter = await event_queue.find_dead_letter(held.id)
    await event_queue.owner.execute("delete from public.event_queue where id = $1", held.id)

    new_event = (await replay_as_operator(hub, letter))[letter]

    assert (await event_queue.load_event(new_event))["parent_id"] == broadcast
    assert [claimed.id for claimed in await event_queue.claim()] == [new_event]
    assert len(await event_queue.claim(service="minu_keep")) == 1


async def test_a_replayed_broadcast_reaches_its_subscribers(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_keep', 'pull', '{*}')"
    )
    [event] = await event_queue.insert_failed(1, target=None)
    letter = await event_queue.find_dead_letter(event)

    new_event = (await replay_as_operator(hub, letter))[letter]

    [held] = await event_queue.claim(service="minu_keep")
    assert (await event_queue.load_event(held.id))["parent_id"] == new_event
    assert (await event_queue.load_event(new_event))["status"] == "completed"


async def test_a_replayed_event_keeps_the_order_of_its_key(hub: Hub, event_queue: EventQueue) -> None:
    first, second = [await event_queue.publish(ordering_key="o1") for _ in range(2)]
    [held] = await event_queue.claim()
    await event_queue.settle(held, Dead("boom"))
    letter = await event_queue.find_dead_letter(first)

    await replay_as_operator(hub, letter)

    order: list[UUID] = []
    for _ in range(2):
        [held] = await event_queue.claim()
        order.append(held.id)
        await event_queue.settle(held)
    assert order == [first, second]


async def test_a_replayed_event_waits_for_its_held_successor(hub: Hub, event_queue: EventQueue) -> None:
    first, second = [await event_queue.publish(ordering_key="o1") for _ in range(2)]
    [held] = await event_queue.claim()
    await event_queue.settle(held, Dead("boom"))
    [held] = await event_queue.claim()
    assert held.id == second

    await replay_as_operator(hub, await event_queue.find_dead_letter(first))

    assert await event_queue.claim() == []
    await event_queue.settle(held)
    assert [claimed.id for claimed in await event_queue.claim()] == [first]


async def test_a_resolved_dead_letter_cannot_be_replayed_or_resolved_again(hub: Hub, event_queue: EventQueue) -> None:
    _, one = await event_queue.publish_failed()
    _, other = await event_queue.publish_failed()
    await replay_as_operator(hub, one)
    async with hub.transaction() as tx:
        assert await resolve_dead_letters(tx, [one, other], JUNHO, "known") == [other]

    for letter, error in ((one, "was already replayed by operator:mina"), (other, "was already resolved by")):
        with pytest.raises(Conflict, match=error):
            async with hub.transaction() as tx:
                await replay_dead_letter(tx, letter, MINA)
        with pytest.raises(Conflict, match=error):
            async with hub.transaction() as tx:
                await resolve_dead_letter(tx, letter, MINA, "again")
    assert await replay_as_operator(hub, one, other) == {}
    assert len(await event_queue.audit_entries(one, other)) == 2


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("update public.event_queue set status = 'pending' where id = $1", "is pending"),
        ("update public.event_queue set status = 'completed' where id = $1", "is completed"),
        ("update public.event_queue set expires_at = now() - interval '1 s' where id = $1", "has expired"),
    ],
)
async def test_only_a_failed_event_that_has_not_expired_is_replayed(
    hub: Hub, event_queue: EventQueue, statement: str, error: str
) -> None:
    event, letter = await event_queue.publish_failed()
    await event_queue.owner.execute(statement, event)

    with pytest.raises(Conflict, match=error):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)
    assert await replay_as_operator(hub, letter) == {}
    assert [dead_letter.id for dead_letter in await read_dead_letters(hub)] == [letter]


async def test_a_dead_letter_of_a_removed_service_is_not_replayed(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.owner.execute("insert into public.services (name) values ('gone')")
    event, letter = await event_queue.publish_failed(source="gone")
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)
    await event_queue.owner.execute(
        "set session_replication_role = replica;"  # the triggers keep services
        "delete from public.services where name = 'gone'; reset session_replication_role"
    )

    with pytest.raises(Conflict, match="no longer exists"):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)


async def test_two_dead_letters_of_one_event_queue_it_once(hub: Hub, event_queue: EventQueue) -> None:
    event, first = await event_queue.publish_failed()
    await event_queue.owner.execute("update public.event_queue set status = 'pending' where id = $1", event)
    second = await event_queue.fail(event)
    await event_queue.owner.execute("delete from public.event_queue where id = $1", event)

    event_ids = await replay_as_operator(hub, first, second)

    assert event_ids.keys() == {first, second}
    assert len({*event_ids.values()}) == 1
    assert len(await event_queue.claim()) == 1


@pytest.mark.parametrize("deleted", [False, True], ids=["stored", "deleted"])
async def test_concurrent_replays_of_the_same_dead_letters_queue_each_event_once(
    hub: Hub, event_queue: EventQueue, *, deleted: bool
) -> None:
    events = await event_queue.insert_failed(100)
    letters = [await event_queue.find_dead_letter(event) for event in events]
    if deleted:
        await event_queue.owner.execute("delete from public.event_queue")

    async def replay_together(by: Actor, order: list[UUID]) -> int:
        return len(await replay_as_operator(hub, *order, by=by))

    async def one_by_one(by: Actor) -> int:
        done = 0
        for letter in letters:
            try:
                async with hub.transaction() as tx:
                    await replay_dead_letter(tx, letter, by)
            except Conflict:
                continue
            done += 1
        return done

    done = await asyncio.gather(
        replay_together(MINA, letters),
        replay_together(JUNHO, letters[::-1]),
        one_by_one(MINA),
        one_by_one(JUNHO),
        *(replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), JUNHO) for _ in range(2)),
    )

    assert sum(done) == 100
    assert await event_queue.owner.fetchval("select count(*) from public.event_queue where status = 'pending'") == 100
    assert await event_queue.owner.fetchval("select count(*) from pabal.event_due") == 100
    assert len(await event_queue.audit_entries(*letters)) == 100
    assert await event_queue.owner.fetchval("select max(replay_count) from public.dead_letter_queue") == 1


async def test_a_replay_and_concurrent_deletes_do_not_deadlock(hub: Hub, event_queue: EventQueue) -> None:
    events = await event_queue.insert_failed(100)
    letters = [await event_queue.find_dead_letter(event) for event in events]

    async def delete() -> None:
        for event in events[::-1]:
            await event_queue.owner.execute("delete from public.event_queue where id = $1 and status = 'failed'", event)

    await asyncio.gather(delete(), *(replay_as_operator(hub, *letters[i::3]) for i in range(3)))

    assert await read_dead_letters(hub) == []
    assert len(await event_queue.claim(limit=200)) == 100


async def test_ten_thousand_dead_letters_are_replayed_in_batches_with_bounded_memory(
    hub: Hub, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(10_000, payload={"text": "x" * 2_000})
    steps: list[int] = []
    tracemalloc.start()
    try:
        done = await replay_matching_dead_letters(
            hub.transaction, DeadLetterFilter(event_type="order.*"), MINA, on_progress=steps.append
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert done == 10_000
    assert steps == [500] * 20
    assert peak < 4_000_000
    assert await event_queue.owner.fetchval("select count(*) from pabal.event_due") == 10_000
    assert (
        await event_queue.owner.fetchval("select count(*) from pabal.audit_log where action = 'dead_letter.replayed'")
        == 10_000
    )


async def test_a_replay_skips_dead_letters_created_meanwhile(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3)
    await event_queue.owner.execute(
        """
        create function another_fails() returns trigger language plpgsql security definer as '
        begin
            insert into public.event_queue (event_type, source_service, target_service, status)
            values (''order.paid'', ''minu_find'', ''minu_build'', ''failed'');
            return null;
        end';
        create trigger another_fails after update on public.dead_letter_queue
            for each row execute function another_fails();
        """
    )

    async with asyncio.timeout(20):
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 3

    assert len(await read_dead_letters(hub)) == 3


async def test_a_dead_letter_that_cannot_be_replayed_is_skipped_and_stays(hub: Hub, event_queue: EventQueue) -> None:
    events = await event_queue.insert_failed(3)
    await event_queue.owner.execute("update public.event_queue set status = 'completed' where id = $1", events[0])

    async with asyncio.timeout(20):
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 2
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 0

    assert [dead_letter.original_event_id for dead_letter in await read_dead_letters(hub)] == [events[0]]


async def test_a_filter_counts_and_replays_its_matches(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3, "cannot reach 10.0.0.%s", code="net")
    await event_queue.insert_failed(2, "no such order %s", event_type="order.refunded")
    await event_queue.insert_failed(
        1, "no such order %s", event_type="bill_paid", source="minu_keep", target="minu_find"
    )

    async def counted(**fields: Any) -> int:
        async with hub.autocommit() as tx:
            replay_count = await count_replayable_dead_letters(tx, DeadLetterFilter(**fields))
        assert isinstance(replay_count, ReplayCount)
        return replay_count.count

    assert await counted() == 6
    assert await counted(event_type="order.*") == 5
    assert await counted(event_type="bill%") == await counted(event_type="billxpaid") == 0
    assert await counted(source="minu_keep") == await counted(target="minu_find") == 1
    assert await counted(error_code="net") == await counted(signature="net cannot reach <n>") == 3
    assert (
        await replay_matching_dead_letters(
            hub.transaction, DeadLetterFilter(signature="no such order <n>"), MINA, limit=2
        )
        == 2
    )
    assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(error_code="net"), MINA) == 3
    [remaining] = await read_dead_letters(hub)
    assert remaining.original_event_type == "bill_paid"


async def fail_twice(event_queue: EventQueue, *, deleted: bool) -> tuple[UUID, UUID, UUID]:
    """An event that died, was brought back by hand and died again; perhaps only its two letters are left."""
    event, first = await event_queue.publish_failed()
    await event_queue.owner.execute("update public.event_queue set status = 'pending' where id = $1", event)
    second = await event_queue.fail(event)
    if deleted:
        await event_queue.owner.execute("delete from public.event_queue where id = $1", event)
    return event, first, second


@pytest.mark.parametrize("deleted", [False, True], ids=["stored", "deleted"])
async def test_replaying_dead_letters_of_one_event_in_turn_queues_it_once(
    hub: Hub, event_queue: EventQueue, *, deleted: bool
) -> None:
    event, first, second = await fail_twice(event_queue, deleted=deleted)

    event_ids = await replay_as_operator(hub, second)
    with pytest.raises(Conflict, match="was already replayed by operator:mina"):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, first, JUNHO)

    assert event_ids.keys() == {first, second}
    [held] = await event_queue.claim()
    assert {*event_ids.values()} == {held.id}
    assert held.origin_id == event
    assert await read_dead_letters(hub) == []
    assert len(await event_queue.audit_entries(first, second)) == 2


async def test_concurrent_replays_of_different_dead_letters_of_one_event_queue_it_once(
    hub: Hub, event_queue: EventQueue
) -> None:
    pairs = [(await fail_twice(event_queue, deleted=True))[1:] for _ in range(20)]

    await asyncio.gather(*(replay_as_operator(hub, letter) for pair in pairs for letter in pair))

    assert len(await event_queue.claim(limit=100)) == 20
    assert await read_dead_letters(hub) == []
