"""Dead letters: one for each death, found by what they share, replayed once, resolved by somebody."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from crowd import pages
from deaths import MINA, Deaths, deaths_of
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.events import letters
from pabal.events import replay as replays
from pabal.events.letters import Filter, Letter
from pabal.events.replay import Tally, count, replay, replay_all, replay_one
from pabal.queue.outcome import DONE, Dead, Retry
from pabal.wiring import Hub, Roads

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
JUNHO = Actor("operator:junho")
AS_THE_HUB = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"


@pytest.fixture
async def deaths(hub: Hub, roads: Roads) -> AsyncGenerator[Deaths]:
    async with deaths_of(hub, roads) as there:
        yield there


async def listed(hub: Hub, chosen: Filter | None = None, state: letters.State = "unresolved") -> list[Letter]:
    async with hub.autocommit() as tx:
        return await letters.every(tx, chosen or Filter(), state, limit=100)


async def replayed(hub: Hub, *ids: UUID, by: Actor = MINA) -> dict[UUID, UUID]:
    async with hub.transaction() as tx:
        return await replay(tx, ids, by)


async def test_each_death_has_one_letter_and_the_second_death_is_the_second(hub: Hub, deaths: Deaths) -> None:
    event, first = await deaths.dead()
    await deaths.owner.execute("update public.event_queue set correlation_id = 'edited' where id = $1", event)
    await replayed(hub, first)
    second = await deaths.die(event, Dead("boom again"))

    found = {each.id: each for each in await listed(hub, state="all")}
    assert {(each.death, each.error_message) for each in found.values()} == {(1, "boom"), (2, "boom again")}
    assert found.keys() == {first, second}
    assert found[first].resolution_notes == "replayed"
    assert found[second].resolved_at is None


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

    with hub.doorbell.hear(Bell.EVENTS) as ear:
        async with hub.transaction() as tx:
            await replay(tx, [letter], MINA)
            assert not ear.heard()
        assert ear.heard()


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
        letter_again = await letters.find(tx, again)
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
        assert await letters.resolve(tx, [one, other], JUNHO, "known") == [other]

    for letter, told in ((one, "was replayed already, by operator:mina"), (other, "was resolved already, by")):
        with pytest.raises(Conflict, match=told):
            async with hub.transaction() as tx:
                await replay_one(tx, letter, MINA)
        with pytest.raises(Conflict, match=told):
            async with hub.transaction() as tx:
                await letters.resolve_one(tx, letter, MINA, "again")
    assert await replayed(hub, one, other) == {}
    assert len(await deaths.audited(one, other)) == 2


@pytest.mark.parametrize(
    ("meanwhile", "told"),
    [
        ("update public.event_queue set status = 'pending' where id = $1", "it is pending"),
        ("update public.event_queue set status = 'completed' where id = $1", "it is completed"),
        ("update public.event_queue set expires_at = now() - interval '1 s' where id = $1", "has expired"),
    ],
)
async def test_an_event_that_lives_has_ended_otherwise_or_has_expired_is_not_replayed(
    hub: Hub, deaths: Deaths, meanwhile: str, told: str
) -> None:
    event, letter = await deaths.dead()
    await deaths.owner.execute(meanwhile, event)

    with pytest.raises(Conflict, match=told):
        async with hub.transaction() as tx:
            await replay_one(tx, letter, MINA)
    assert await replayed(hub, letter) == {}
    assert [each.id for each in await listed(hub)] == [letter]


async def test_a_letter_of_a_service_that_is_gone_is_not_replayed(hub: Hub, deaths: Deaths) -> None:
    await deaths.owner.execute("insert into public.services (name) values ('gone')")
    event, letter = await deaths.dead(source="gone")
    await deaths.owner.execute("delete from public.event_queue where id = $1", event)
    await deaths.owner.execute("delete from public.services where name = 'gone'")

    with pytest.raises(Conflict, match="no longer a service"):
        async with hub.transaction() as tx:
            await replay_one(tx, letter, MINA)


async def test_two_letters_of_one_event_revive_it_once(hub: Hub, deaths: Deaths) -> None:
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
                    await replay_one(tx, letter, by)
            except Conflict:
                continue
            done += 1
        return done

    done = await asyncio.gather(
        all_of_them(MINA, every),
        all_of_them(JUNHO, every[::-1]),
        one_by_one(MINA),
        one_by_one(JUNHO),
        *(replay_all(hub.transaction, Filter(), JUNHO) for _ in range(2)),
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
        done = await replay_all(hub.transaction, Filter(event_type="order.*"), MINA, step=steps.append)
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
        assert await replay_all(hub.transaction, Filter(), MINA) == 3

    assert len(await listed(hub)) == 3


async def test_what_cannot_be_replayed_is_passed_over_and_stays(hub: Hub, deaths: Deaths) -> None:
    events = await deaths.born_dead(3)
    await deaths.owner.execute("update public.event_queue set status = 'completed' where id = $1", events[0])

    async with asyncio.timeout(20):
        assert await replay_all(hub.transaction, Filter(), MINA) == 2
        assert await replay_all(hub.transaction, Filter(), MINA) == 0

    assert [each.original_event_id for each in await listed(hub)] == [events[0]]


async def test_a_filter_replays_what_it_matches_and_counts_it_before(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3, "cannot reach 10.0.0.%s", code="net")
    await deaths.born_dead(2, "no such order %s", event_type="order.refunded")
    await deaths.born_dead(1, "no such order %s", event_type="bill_paid", source="minu_keep", target="minu_find")

    async def counted(**said: Any) -> int:
        async with hub.autocommit() as tx:
            tally = await count(tx, Filter(**said))
        assert isinstance(tally, Tally)
        return tally.count

    assert await counted() == 6
    assert await counted(event_type="order.*") == 5
    assert await counted(event_type="bill%") == await counted(event_type="billxpaid") == 0
    assert await counted(source="minu_keep") == await counted(target="minu_find") == 1
    assert await counted(error_code="net") == await counted(signature="net cannot reach <n>") == 3
    assert await replay_all(hub.transaction, Filter(signature="no such order <n>"), MINA, limit=2) == 2
    assert await replay_all(hub.transaction, Filter(error_code="net"), MINA) == 3
    [left] = await listed(hub)
    assert left.original_event_type == "bill_paid"


async def test_letters_are_listed_by_when_they_failed_and_whether_they_are_resolved(
    hub: Hub, deaths: Deaths, travel: Travel
) -> None:
    _, old = await deaths.dead()
    await travel(timedelta(hours=2))
    _, new = await deaths.dead()
    async with hub.transaction() as tx:
        await letters.resolve(tx, [old], MINA, "known")
        now = await letters.clock(tx)
    hour = timedelta(hours=1)

    async def ids(chosen: Filter, state: letters.State = "all") -> list[UUID]:
        return [each.id for each in await listed(hub, chosen, state)]

    assert await ids(Filter()) == [new, old]
    assert await ids(Filter(since=now - hour)) == [new]
    assert await ids(Filter(until=now - hour)) == [old]
    assert await ids(Filter(), "unresolved") == [new]
    assert await ids(Filter(), "resolved") == [old]
    assert now - datetime.now(UTC) > hour


async def test_groups_say_what_is_broken_and_give_an_example(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    await deaths.born_dead(1, "order %s not found")
    await travel(timedelta(hours=1))
    [newest] = [
        await deaths.letter(event)
        for event in await deaths.born_dead(1, "order 77%s not found\nmore", event_type="order.refunded")
    ]
    *_, last = [await deaths.letter(event) for event in await deaths.born_dead(3, "timed out", code="net")]

    async with hub.autocommit() as tx:
        frequent, rare = await letters.groups(tx, Filter())
        assert await letters.groups(tx, Filter(), "resolved") == []
        [just_one] = await letters.groups(tx, Filter(error_code="net"))

    assert (frequent.signature, frequent.count) == ("net timed out", 3)
    assert (rare.signature, rare.count, rare.example) == ("order <n> not found", 2, newest)
    assert rare.event_types == ["order.paid", "order.refunded"]
    assert rare.last_failed_at - rare.first_failed_at >= timedelta(hours=1)
    assert just_one == frequent
    async with hub.transaction() as tx:
        await letters.resolve(tx, [last], MINA, "known")
        counts = {each.signature: each.count for each in await letters.groups(tx, Filter())}
    assert counts == {"net timed out": 2, "order <n> not found": 2}


async def test_pages_are_complete_and_without_doubles_while_letters_arrive(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(25)  # all at the same moment: the id tells them apart
    wanted = {each.id for each in await listed(hub)}
    seen: list[UUID] = []
    place: tuple[datetime, UUID] | None = None
    for _ in range(20):
        await deaths.born_dead(2)
        async with hub.autocommit() as tx:
            page = await letters.every(tx, Filter(), before=place, limit=4)
        seen += [each.id for each in page]
        if len(page) < 4:
            break
        place = (page[-1].failed_at, page[-1].id)

    assert len(seen) == len({*seen})
    assert {*seen} >= wanted
    assert len({*seen} - wanted) <= 2


async def test_a_resolved_letter_says_by_whom_and_why(hub: Hub, deaths: Deaths) -> None:
    _, letter = await deaths.dead()
    user = await deaths.owner.fetchval("insert into auth.users default values returning id")

    with pytest.raises(Invalid, match="resolved_by"):
        async with hub.transaction() as tx:
            await letters.resolve_one(tx, letter, MINA, "known", resolved_by=new_id())
    async with hub.transaction() as tx:
        told = await letters.resolve_one(tx, letter, MINA, "the shop was closed", resolved_by=user)

    assert (told.resolved_by, told.resolved_by_actor) == (user, MINA.name)
    assert (told.resolution_notes, told.replayed_at) == ("the shop was closed", None)
    assert (await deaths.event(told.original_event_id))["status"] == "failed"
    assert await deaths.audited(letter) == [(MINA.name, "dead_letter.resolved", str(letter))]


async def test_what_is_rolled_back_was_neither_replayed_nor_written_down(hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead()

    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await replay_one(tx, letter, MINA)
            raise ZeroDivisionError

    assert (await deaths.event(event))["status"] == "failed"
    assert await deaths.audited(letter) == []
    assert [each.id for each in await listed(hub)] == [letter]


async def test_nobody_finds_a_letter_that_is_not_there(hub: Hub) -> None:
    async with hub.transaction() as tx:
        for look in (
            letters.find(tx, new_id()),
            replay_one(tx, new_id(), MINA),
            letters.resolve_one(tx, new_id(), MINA, "x"),
        ):
            with pytest.raises(NotFound):
                await look


async def test_a_letter_goes_so_long_after_it_was_resolved_and_never_before(
    hub: Hub, deaths: Deaths, travel: Travel
) -> None:
    _, resolved = await deaths.dead()
    _, open_one = await deaths.dead()
    await travel(timedelta(days=200))
    async with hub.transaction() as tx:
        await letters.resolve(tx, [resolved], MINA, "known")
        assert await letters.purge(tx, timedelta(days=90), 5000) == 0

    await travel(timedelta(days=89, hours=23))
    async with hub.transaction() as tx:
        assert await letters.purge(tx, timedelta(days=90), 5000) == 0
    await travel(timedelta(hours=1, seconds=1))
    assert "purge dead letters" in await hub.chores.run_due()

    assert [each.id for each in await listed(hub, state="all")] == [open_one]


async def test_letters_are_purged_in_batches(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    for event in await deaths.born_dead(5):
        async with hub.transaction() as tx:
            await letters.resolve(tx, [await deaths.letter(event)], MINA, "known")
    await travel(timedelta(days=91))

    async with hub.transaction() as tx:
        assert [await letters.purge(tx, timedelta(days=90), 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_look_at_what_is_open_does_not_read_what_is_resolved(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3000)
    await replay_all(hub.transaction, Filter(), MINA)
    await deaths.born_dead(3, "new %s")
    await deaths.owner.execute("vacuum analyze public.dead_letter_queue")
    now = await deaths.owner.fetchval("select pabal.now()")
    halves, chosen = {"open": True, "ended": False}, Filter().columns()
    looks = (
        (letters.Q.list, {**chosen, **halves, "before": None, "before_id": None, "limit": 50}),
        (letters.Q.list, {**chosen, **halves, "before": now, "before_id": new_id(), "limit": 50}),
        (letters.Q.groups, {**chosen, **halves, "limit": 50}),
        (replays.Q.count, chosen),
        (replays.Q.next, {**chosen, "after": None, "after_id": None, "limit": 50}),
    )

    touched = [await pages(deaths.owner, query, given, prepare=AS_THE_HUB) for query, given in looks]

    assert [rows for _, rows in touched] == [3, 3, 1, 1, 3]
    assert max(read for read, _ in touched) < 20
    everything, _ = await pages(deaths.owner, letters.Q.groups, {**looks[2][1], "ended": True}, prepare=AS_THE_HUB)
    assert everything > 100


async def test_an_open_event_is_not_disturbed_by_its_old_letter(hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead()
    await replayed(hub, letter)
    [held] = await deaths.claim()

    assert await replayed(hub, letter) == {}
    await deaths.settle(held, DONE)

    assert (await deaths.event(event))["status"] == "completed"
