"""Replay: a dead event lives again, once, as what it was."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.channels import Channel
from pabal.events.dead_letters import DeadLetterFilter, find_dead_letter, resolve_dead_letter, resolve_dead_letters
from pabal.events.replay import (
    ReplayCount,
    count_replayable_dead_letters,
    replay_dead_letter,
    replay_dead_letters,
    replay_matching_dead_letters,
)
from pabal.hub import Hub
from pabal.queue.outcome import Dead, Retry
from support.failed_events import MINA, Deaths, listed, replayed

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
JUNHO = Actor("operator:junho")


async def test_a_replayed_event_is_the_same_row_with_all_its_attempts(hub: Hub, deaths: Deaths) -> None:
    event = await deaths.publish(idempotency_key="k1", max_retries=1, payload=b'{"n": 1}')
    [held] = await deaths.claim()
    await deaths.settle(held, Retry("no answer", timedelta()))
    letter = await deaths.die(event)

    assert await replayed(hub, letter) == {letter: event}

    row = await deaths.event(event)
    assert (row["status"], row["retry_count"], row["processed_at"]) == ("pending", 0, None)
    assert (row["processing_started_at"], row["next_retry_at"]) == (None, None)
    assert '"boom"' in row["error_history"]
    assert await deaths.publish(idempotency_key="k1", max_retries=1, payload=b'{"n": 1}') == event
    [held] = await deaths.claim()
    assert (held.id, held.origin_id, held.attempt, held.payload) == (event, event, 1, {"n": 1})
    await deaths.settle(held)
    [kept] = await listed(hub, state="resolved")
    assert (kept.id, kept.replay_count, kept.resolved_by_actor) == (letter, 1, MINA.name)
    assert kept.replayed_at == kept.resolved_at
    assert await deaths.audited(letter) == [(MINA.name, "dead_letter.replayed", str(letter))]


async def test_who_waits_for_events_hears_a_replay(hub: Hub, deaths: Deaths) -> None:
    _, letter = await deaths.dead()

    with hub.doorbell.listen(Channel.EVENTS) as ear:
        async with hub.transaction() as tx:
            await replay_dead_letters(tx, [letter], MINA)
            assert not ear.take_wakeup()
        assert ear.take_wakeup()


async def test_an_event_that_is_gone_comes_back_under_a_new_id(hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead(
        payload=b'{"n": 1}', priority=2, max_retries=7, ordering_key="o", correlation_id="c"
    )
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)
    [kept] = await listed(hub)
    assert (kept.id, kept.event_id, kept.original_event_id) == (letter, None, event)

    anew = (await replayed(hub, letter))[letter]

    assert anew != event
    [held] = await deaths.claim()
    assert (held.id, held.origin_id, held.attempt) == (anew, event, 1)
    assert (held.event_type, held.source_service, held.payload) == ("order.paid", "minu_find", {"n": 1})
    assert (held.priority, held.max_retries, held.ordering_key, held.correlation_id) == (2, 7, "o", "c")
    await deaths.settle(held, Dead("boom again"))
    again = await deaths.letter(anew)
    async with hub.autocommit() as tx:
        letter_again = await find_dead_letter(tx, again)
    assert (letter_again.original_event_id, letter_again.origin_id, letter_again.death) == (anew, event, 1)
    assert [each["error"] for each in letter_again.error_history or ()] == ["boom", "boom again"]


async def test_the_hubs_rules_hear_of_an_event_once_however_often_it_is_replayed(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    event, letter = await deaths.dead()
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)

    await replayed(hub, letter)

    assert len(await deaths.claim(service="hub")) == 1
    assert len(await deaths.claim()) == 1


async def test_a_broadcasts_dead_delivery_is_replayed_alone(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    broadcast = await deaths.publish(target=None)
    [held] = await deaths.claim()
    await deaths.settle(held, Dead("boom"))
    letter = await deaths.letter(held.id)
    await deaths.owner.execute("delete from public.event_queue where id = $1", held.id)

    anew = (await replayed(hub, letter))[letter]

    assert (await deaths.event(anew))["parent_id"] == broadcast
    assert [each.id for each in await deaths.claim()] == [anew]
    assert len(await deaths.claim(service="minu_keep")) == 1


async def test_one_that_was_for_everybody_reaches_everybody(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_keep', 'pull', '{*}')"
    )
    [event] = await deaths.born_dead(1, target=None)
    letter = await deaths.letter(event)

    anew = (await replayed(hub, letter))[letter]

    [held] = await deaths.claim(service="minu_keep")
    assert (await deaths.event(held.id))["parent_id"] == anew
    assert (await deaths.event(anew))["status"] == "completed"


async def test_a_replayed_event_stands_in_its_line_again(hub: Hub, deaths: Deaths) -> None:
    first, second = [await deaths.publish(ordering_key="o1") for _ in range(2)]
    [held] = await deaths.claim()
    await deaths.settle(held, Dead("boom"))
    letter = await deaths.letter(first)

    await replayed(hub, letter)

    order: list[UUID] = []
    for _ in range(2):
        [held] = await deaths.claim()
        order.append(held.id)
        await deaths.settle(held)
    assert order == [first, second]


async def test_a_held_successor_is_not_overtaken_by_a_replayed_event(hub: Hub, deaths: Deaths) -> None:
    first, second = [await deaths.publish(ordering_key="o1") for _ in range(2)]
    [held] = await deaths.claim()
    await deaths.settle(held, Dead("boom"))
    [held] = await deaths.claim()
    assert held.id == second

    await replayed(hub, await deaths.letter(first))

    assert await deaths.claim() == []
    await deaths.settle(held)
    assert [each.id for each in await deaths.claim()] == [first]


async def test_what_was_dealt_with_cannot_be_replayed_or_resolved_again(hub: Hub, deaths: Deaths) -> None:
    _, one = await deaths.dead()
    _, other = await deaths.dead()
    await replayed(hub, one)
    async with hub.transaction() as tx:
        assert await resolve_dead_letters(tx, [one, other], JUNHO, "known") == [other]

    for letter, told in ((one, "was already replayed by operator:mina"), (other, "was already resolved by")):
        with pytest.raises(Conflict, match=told):
            async with hub.transaction() as tx:
                await replay_dead_letter(tx, letter, MINA)
        with pytest.raises(Conflict, match=told):
            async with hub.transaction() as tx:
                await resolve_dead_letter(tx, letter, MINA, "again")
    assert await replayed(hub, one, other) == {}
    assert len(await deaths.audited(one, other)) == 2


@pytest.mark.parametrize(
    ("meanwhile", "told"),
    [
        ("update public.event_queue set status = 'pending' where id = $1", "is pending"),
        ("update public.event_queue set status = 'completed' where id = $1", "is completed"),
        ("update public.event_queue set expires_at = now() - interval '1 s' where id = $1", "has expired"),
    ],
)
async def test_only_a_failed_event_that_has_not_expired_is_replayed(
    hub: Hub, deaths: Deaths, meanwhile: str, told: str
) -> None:
    event, letter = await deaths.dead()
    await deaths.owner.execute(meanwhile, event)

    with pytest.raises(Conflict, match=told):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)
    assert await replayed(hub, letter) == {}
    assert [each.id for each in await listed(hub)] == [letter]


async def test_a_dead_letter_of_a_removed_service_is_not_replayed(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute("insert into public.services (name) values ('gone')")
    event, letter = await deaths.dead(source="gone")
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)
    await deaths.owner.execute("delete from public.services where name = 'gone'")

    with pytest.raises(Conflict, match="no longer exists"):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)


async def test_two_dead_letters_of_one_event_queue_it_once(hub: Hub, deaths: Deaths) -> None:
    event, first = await deaths.dead()
    await deaths.owner.execute("update public.event_queue set status = 'pending' where id = $1", event)
    second = await deaths.die(event)
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)

    lives = await replayed(hub, first, second)

    assert lives.keys() == {first, second}
    assert len({*lives.values()}) == 1
    assert len(await deaths.claim()) == 1


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
async def test_operators_who_replay_the_same_letters_at_once_revive_each_event_once(
    hub: Hub, deaths: Deaths, *, gone: bool
) -> None:
    events = await deaths.born_dead(100)
    every = [await deaths.letter(event) for event in events]
    if gone:
        await deaths.owner.execute("delete from public.event_queue")

    async def all_of_them(by: Actor, order: list[UUID]) -> int:
        return len(await replayed(hub, *order, by=by))

    async def one_by_one(by: Actor) -> int:
        done = 0
        for letter in every:
            try:
                async with hub.transaction() as tx:
                    await replay_dead_letter(tx, letter, by)
            except Conflict:
                continue
            done += 1
        return done

    done = await asyncio.gather(
        all_of_them(MINA, every),
        all_of_them(JUNHO, every[::-1]),
        one_by_one(MINA),
        one_by_one(JUNHO),
        *(replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), JUNHO) for _ in range(2)),
    )

    assert sum(done) == 100
    assert await deaths.owner.fetchval("select count(*) from public.event_queue where status = 'pending'") == 100
    assert await deaths.owner.fetchval("select count(*) from pabal.event_due") == 100
    assert len(await deaths.audited(*every)) == 100
    assert await deaths.owner.fetchval("select max(replay_count) from public.dead_letter_queue") == 1


async def test_whoever_deletes_events_meanwhile_is_not_waited_for_in_a_circle(hub: Hub, deaths: Deaths) -> None:
    events = await deaths.born_dead(100)
    every = [await deaths.letter(event) for event in events]

    async def delete() -> None:
        for event in events[::-1]:
            await deaths.owner.execute("delete from public.event_queue where id = $1 and status = 'failed'", event)

    await asyncio.gather(delete(), *(replayed(hub, *every[i::3]) for i in range(3)))

    assert await listed(hub) == []
    assert len(await deaths.claim(limit=200)) == 100


async def test_ten_thousand_are_replayed_in_batches_and_in_bounded_memory(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(10_000, payload={"text": "x" * 2_000})
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
    assert await deaths.owner.fetchval("select count(*) from pabal.event_due") == 10_000
    assert (
        await deaths.owner.fetchval("select count(*) from pabal.audit_log where action = 'dead_letter.replayed'")
        == 10_000
    )


async def test_what_dies_meanwhile_is_not_replayed_for_ever(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3)
    await deaths.owner.execute(
        """
        create function another_dies() returns trigger language plpgsql security definer as '
        begin
            insert into public.event_queue (event_type, source_service, target_service, status)
            values (''order.paid'', ''minu_find'', ''minu_build'', ''failed'');
            return null;
        end';
        create trigger another_dies after update on public.dead_letter_queue
            for each row execute function another_dies();
        """
    )

    async with asyncio.timeout(20):
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 3

    assert len(await listed(hub)) == 3


async def test_what_cannot_be_replayed_is_passed_over_and_stays(hub: Hub, deaths: Deaths) -> None:
    events = await deaths.born_dead(3)
    await deaths.owner.execute("update public.event_queue set status = 'completed' where id = $1", events[0])

    async with asyncio.timeout(20):
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 2
        assert await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA) == 0

    assert [each.original_event_id for each in await listed(hub)] == [events[0]]


async def test_a_filter_replays_what_it_matches_and_counts_it_before(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3, "cannot reach 10.0.0.%s", code="net")
    await deaths.born_dead(2, "no such order %s", event_type="order.refunded")
    await deaths.born_dead(1, "no such order %s", event_type="bill_paid", source="minu_keep", target="minu_find")

    async def counted(**said: Any) -> int:
        async with hub.autocommit() as tx:
            tally = await count_replayable_dead_letters(tx, DeadLetterFilter(**said))
        assert isinstance(tally, ReplayCount)
        return tally.count

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
    [left] = await listed(hub)
    assert left.original_event_type == "bill_paid"


async def twice_dead(deaths: Deaths, *, gone: bool) -> tuple[UUID, UUID, UUID]:
    """An event that died, was brought back by hand and died again; perhaps only its two letters are left."""
    event, first = await deaths.dead()
    await deaths.owner.execute("update public.event_queue set status = 'pending' where id = $1", event)
    second = await deaths.die(event)
    if gone:
        await deaths.owner.execute("delete from public.event_queue where id = $1", event)
    return event, first, second


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
async def test_letters_of_one_event_replayed_one_after_another_revive_it_once(
    hub: Hub, deaths: Deaths, *, gone: bool
) -> None:
    event, first, second = await twice_dead(deaths, gone=gone)

    lives = await replayed(hub, second)
    with pytest.raises(Conflict, match="was already replayed by operator:mina"):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, first, JUNHO)

    assert lives.keys() == {first, second}
    [held] = await deaths.claim()
    assert {*lives.values()} == {held.id}
    assert held.origin_id == event
    assert await listed(hub) == []
    assert len(await deaths.audited(first, second)) == 2


async def test_operators_who_replay_different_letters_of_one_event_at_once_revive_it_once(
    hub: Hub, deaths: Deaths
) -> None:
    pairs = [(await twice_dead(deaths, gone=True))[1:] for _ in range(20)]

    await asyncio.gather(*(replayed(hub, letter) for pair in pairs for letter in pair))

    assert len(await deaths.claim(limit=100)) == 20
    assert await listed(hub) == []
