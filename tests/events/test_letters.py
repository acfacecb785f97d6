"""Dead letters: one for each death, found by what they share, resolved by somebody."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import new_id
from pabal.events import dead_letters, replay
from pabal.events.dead_letters import (
    DeadLetterFilter,
    DeadLetterState,
    database_now,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    purge_dead_letters,
    resolve_dead_letter,
    resolve_dead_letters,
)
from pabal.events.replay import replay_dead_letter, replay_matching_dead_letters
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead
from support.failed_events import MINA, Deaths, listed, replayed
from support.large_tables import pages

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
AS_THE_HUB = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"


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


async def test_letters_are_listed_by_when_they_failed_and_whether_they_are_resolved(
    hub: Hub, deaths: Deaths, travel: Travel
) -> None:
    _, old = await deaths.dead()
    await travel(timedelta(hours=2))
    _, new = await deaths.dead()
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [old], MINA, "known")
        now = await database_now(tx)
    hour = timedelta(hours=1)

    async def ids(chosen: DeadLetterFilter, state: DeadLetterState = "all") -> list[UUID]:
        return [each.id for each in await listed(hub, chosen, state)]

    assert await ids(DeadLetterFilter()) == [new, old]
    assert await ids(DeadLetterFilter(since=now - hour)) == [new]
    assert await ids(DeadLetterFilter(until=now - hour)) == [old]
    assert await ids(DeadLetterFilter(), "unresolved") == [new]
    assert await ids(DeadLetterFilter(), "resolved") == [old]
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
        frequent, rare = await group_dead_letters(tx, DeadLetterFilter())
        assert await group_dead_letters(tx, DeadLetterFilter(), "resolved") == []
        [just_one] = await group_dead_letters(tx, DeadLetterFilter(error_code="net"))

    assert (frequent.signature, frequent.count) == ("net timed out", 3)
    assert (rare.signature, rare.count, rare.example) == ("order <n> not found", 2, newest)
    assert rare.event_types == ["order.paid", "order.refunded"]
    assert rare.last_failed_at - rare.first_failed_at >= timedelta(hours=1)
    assert just_one == frequent
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [last], MINA, "known")
        counts = {each.signature: each.count for each in await group_dead_letters(tx, DeadLetterFilter())}
    assert counts == {"net timed out": 2, "order <n> not found": 2}


async def test_pages_are_complete_and_without_doubles_while_letters_arrive(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(25)  # all at the same moment: the id tells them apart
    wanted = {each.id for each in await listed(hub)}
    seen: list[UUID] = []
    place: tuple[datetime, UUID] | None = None
    for _ in range(20):
        await deaths.born_dead(2)
        async with hub.autocommit() as tx:
            page = await list_dead_letters(tx, DeadLetterFilter(), before=place, limit=4)
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
            await resolve_dead_letter(tx, letter, MINA, "known", resolved_by=new_id())
    async with hub.transaction() as tx:
        told = await resolve_dead_letter(tx, letter, MINA, "the shop was closed", resolved_by=user)

    assert (told.resolved_by, told.resolved_by_actor) == (user, MINA.name)
    assert (told.resolution_notes, told.replayed_at) == ("the shop was closed", None)
    assert (await deaths.event(told.original_event_id))["status"] == "failed"
    assert await deaths.audited(letter) == [(MINA.name, "dead_letter.resolved", str(letter))]


async def test_what_is_rolled_back_was_neither_replayed_nor_written_down(hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead()

    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)
            raise ZeroDivisionError

    assert (await deaths.event(event))["status"] == "failed"
    assert await deaths.audited(letter) == []
    assert [each.id for each in await listed(hub)] == [letter]


async def test_nobody_finds_a_letter_that_is_not_there(hub: Hub) -> None:
    async with hub.transaction() as tx:
        for look in (
            find_dead_letter(tx, new_id()),
            replay_dead_letter(tx, new_id(), MINA),
            resolve_dead_letter(tx, new_id(), MINA, "x"),
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
        await resolve_dead_letters(tx, [resolved], MINA, "known")
        assert await purge_dead_letters(tx, timedelta(days=90), 5000) == 0

    await travel(timedelta(days=89, hours=23))
    async with hub.transaction() as tx:
        assert await purge_dead_letters(tx, timedelta(days=90), 5000) == 0
    await travel(timedelta(hours=1, seconds=1))
    assert "purge dead letters" in await hub.chores.run_due()

    assert [each.id for each in await listed(hub, state="all")] == [open_one]


async def test_letters_are_purged_in_batches(hub: Hub, deaths: Deaths, travel: Travel) -> None:
    for event in await deaths.born_dead(5):
        async with hub.transaction() as tx:
            await resolve_dead_letters(tx, [await deaths.letter(event)], MINA, "known")
    await travel(timedelta(days=91))

    async with hub.transaction() as tx:
        assert [await purge_dead_letters(tx, timedelta(days=90), 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_list_of_unresolved_dead_letters_does_not_read_resolved_ones(hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3000)
    await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA)
    await deaths.born_dead(3, "new %s")
    await deaths.owner.execute("vacuum analyze public.dead_letter_queue")
    now = await deaths.owner.fetchval("select pabal.now()")
    halves, chosen = {"open": True, "ended": False}, DeadLetterFilter().columns()
    looks = (
        (
            dead_letters.Q.list_dead_letters,
            {**chosen, **halves, "before": None, "before_id": None, "limit": 50, "no_limit": None},
        ),
        (
            dead_letters.Q.list_dead_letters,
            {**chosen, **halves, "before": now, "before_id": new_id(), "limit": 50, "no_limit": None},
        ),
        (dead_letters.Q.group_dead_letters, {**chosen, **halves, "limit": 50, "scan_limit": None}),
        (replay.Q.count_replayable_dead_letters, chosen),
        (replay.Q.list_next_dead_letters, {**chosen, "after": None, "after_id": None, "limit": 50}),
    )

    touched = [await pages(deaths.owner, query, given, prepare=AS_THE_HUB) for query, given in looks]

    assert [rows for _, rows in touched] == [3, 3, 1, 1, 3]
    assert max(read for read, _ in touched) < 20
    everything, _ = await pages(
        deaths.owner, dead_letters.Q.group_dead_letters, {**looks[2][1], "ended": True}, prepare=AS_THE_HUB
    )
    assert everything > 100


async def test_a_page_of_a_large_table_reads_one_page(deaths: Deaths) -> None:
    await deaths.born_dead(3000)
    await deaths.owner.execute(
        "update public.dead_letter_queue set failed_at = failed_at - (random() * 86400) * interval '1 s'"
    )
    await deaths.owner.execute("vacuum analyze public.dead_letter_queue")
    place = {**DeadLetterFilter().columns(), "before": None, "before_id": None, "limit": 20, "no_limit": None}
    looks = ({**place, "open": True, "ended": False}, {**place, "open": True, "ended": True})

    touched = [
        await pages(deaths.owner, dead_letters.Q.list_dead_letters, given, prepare=AS_THE_HUB) for given in looks
    ]

    assert [rows for _, rows in touched] == [20, 20]
    assert max(read for read, _ in touched) < 100  # as many as there are rows, not as many as the table has


async def test_an_open_event_is_not_disturbed_by_its_old_letter(hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead()
    await replayed(hub, letter)
    [held] = await deaths.claim()

    assert await replayed(hub, letter) == {}
    await deaths.settle(held, DONE)

    assert (await deaths.event(event))["status"] == "completed"
