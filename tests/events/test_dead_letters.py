"""Dead letters: one per failed event, filtered, grouped, resolved and purged."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import new_id
from pabal.events.dead_letters import dead_letters, replay
from pabal.events.dead_letters.dead_letters import (
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
from pabal.events.dead_letters.replay import replay_dead_letter, replay_matching_dead_letters
from pabal.hub import Hub
from pabal.queue.outcome import DONE, Dead
from support.failed_events import MINA, EventQueue, read_dead_letters, replay_as_operator
from support.large_tables import count_pages

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
GENERIC_PLAN = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"


async def test_each_failure_of_an_event_has_its_own_dead_letter(hub: Hub, event_queue: EventQueue) -> None:
    event, first = await event_queue.publish_failed()
    await event_queue.owner.execute("update public.event_queue set correlation_id = 'edited' where id = $1", event)
    await replay_as_operator(hub, first)
    second = await event_queue.fail(event, Dead("boom again"))

    letters = {dead_letter.id: dead_letter for dead_letter in await read_dead_letters(hub, state="all")}
    assert {(dead_letter.death, dead_letter.error_message) for dead_letter in letters.values()} == {
        (1, "boom"),
        (2, "boom again"),
    }
    assert letters.keys() == {first, second}
    assert letters[first].resolution_notes == "replayed"
    assert letters[second].resolved_at is None


async def test_dead_letters_are_filtered_by_time_and_state(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    _, old = await event_queue.publish_failed()
    await travel(timedelta(hours=2))
    _, new = await event_queue.publish_failed()
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [old], MINA, "known")
        now = await database_now(tx)
    hour = timedelta(hours=1)

    async def ids(letter_filter: DeadLetterFilter, state: DeadLetterState = "all") -> list[UUID]:
        return [letter.id for letter in await read_dead_letters(hub, letter_filter, state)]

    assert await ids(DeadLetterFilter()) == [new, old]
    assert await ids(DeadLetterFilter(since=now - hour)) == [new]
    assert await ids(DeadLetterFilter(until=now - hour)) == [old]
    assert await ids(DeadLetterFilter(), "unresolved") == [new]
    assert await ids(DeadLetterFilter(), "resolved") == [old]
    assert now - datetime.now(UTC) > hour


async def test_groups_have_a_signature_a_count_and_an_example(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    await event_queue.insert_failed(1, "order %s not found")
    await travel(timedelta(hours=1))
    [newest] = [
        await event_queue.find_dead_letter(event)
        for event in await event_queue.insert_failed(1, "order 77%s not found\nmore", event_type="order.refunded")
    ]
    *_, last = [
        await event_queue.find_dead_letter(event)
        for event in await event_queue.insert_failed(3, "timed out", code="net")
    ]

    async with hub.autocommit() as tx:
        frequent, rare = await group_dead_letters(tx, DeadLetterFilter())
        assert await group_dead_letters(tx, DeadLetterFilter(), "resolved") == []
        [only_group] = await group_dead_letters(tx, DeadLetterFilter(error_code="net"))

    assert (frequent.signature, frequent.count) == ("net timed out", 3)
    assert (rare.signature, rare.count, rare.example) == ("order <n> not found", 2, newest)
    assert rare.event_types == ["order.paid", "order.refunded"]
    assert rare.last_failed_at - rare.first_failed_at >= timedelta(hours=1)
    assert only_group == frequent
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [last], MINA, "known")
        counts = {group.signature: group.count for group in await group_dead_letters(tx, DeadLetterFilter())}
    assert counts == {"net timed out": 2, "order <n> not found": 2}


async def test_pages_have_no_gaps_or_duplicates_while_dead_letters_arrive(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(25)  # all with the same timestamp, so the order is by id
    expected = {letter.id for letter in await read_dead_letters(hub)}
    listed_ids: list[UUID] = []
    position: tuple[datetime, UUID] | None = None
    for _ in range(20):
        await event_queue.insert_failed(2)
        async with hub.autocommit() as tx:
            page = await list_dead_letters(tx, DeadLetterFilter(), before=position, limit=4)
        listed_ids += [letter.id for letter in page]
        if len(page) < 4:
            break
        position = (page[-1].failed_at, page[-1].id)

    assert len(listed_ids) == len({*listed_ids})
    assert {*listed_ids} >= expected
    assert len({*listed_ids} - expected) <= 2


async def test_a_resolved_dead_letter_has_actor_and_notes(hub: Hub, event_queue: EventQueue) -> None:
    _, letter = await event_queue.publish_failed()
    user = await event_queue.owner.fetchval("insert into auth.users default values returning id")

    with pytest.raises(Invalid, match="resolved_by"):
        async with hub.transaction() as tx:
            await resolve_dead_letter(tx, letter, MINA, "known", resolved_by=new_id())
    async with hub.transaction() as tx:
        resolved = await resolve_dead_letter(tx, letter, MINA, "the shop was closed", resolved_by=user)

    assert (resolved.resolved_by, resolved.resolved_by_actor) == (user, MINA.name)
    assert (resolved.resolution_notes, resolved.replayed_at) == ("the shop was closed", None)
    assert (await event_queue.load_event(resolved.original_event_id))["status"] == "failed"
    assert await event_queue.audit_entries(letter) == [(MINA.name, "dead_letter.resolved", str(letter))]


async def test_a_rolled_back_replay_leaves_no_trace(hub: Hub, event_queue: EventQueue) -> None:
    event, letter = await event_queue.publish_failed()

    with pytest.raises(ZeroDivisionError):
        async with hub.transaction() as tx:
            await replay_dead_letter(tx, letter, MINA)
            raise ZeroDivisionError

    assert (await event_queue.load_event(event))["status"] == "failed"
    assert await event_queue.audit_entries(letter) == []
    assert [dead_letter.id for dead_letter in await read_dead_letters(hub)] == [letter]


async def test_an_unknown_dead_letter_is_not_found(hub: Hub) -> None:
    async with hub.transaction() as tx:
        for action in (
            find_dead_letter(tx, new_id()),
            replay_dead_letter(tx, new_id(), MINA),
            resolve_dead_letter(tx, new_id(), MINA, "x"),
        ):
            with pytest.raises(NotFound):
                await action


async def test_a_dead_letter_is_purged_only_after_its_retention(
    hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    _, resolved = await event_queue.publish_failed()
    _, unresolved = await event_queue.publish_failed()
    await travel(timedelta(days=200))
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [resolved], MINA, "known")
        assert await purge_dead_letters(tx, timedelta(days=90), 5000) == 0

    await travel(timedelta(days=89, hours=23))
    async with hub.transaction() as tx:
        assert await purge_dead_letters(tx, timedelta(days=90), 5000) == 0
    await travel(timedelta(hours=1, seconds=1))
    assert "purge dead letters" in await hub.chores.run_due()

    assert [letter.id for letter in await read_dead_letters(hub, state="all")] == [unresolved]


async def test_dead_letters_are_purged_in_batches(hub: Hub, event_queue: EventQueue, travel: Travel) -> None:
    for event in await event_queue.insert_failed(5):
        async with hub.transaction() as tx:
            await resolve_dead_letters(tx, [await event_queue.find_dead_letter(event)], MINA, "known")
    await travel(timedelta(days=91))

    async with hub.transaction() as tx:
        assert [await purge_dead_letters(tx, timedelta(days=90), 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_list_of_unresolved_dead_letters_does_not_read_resolved_ones(hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3000)
    await replay_matching_dead_letters(hub.transaction, DeadLetterFilter(), MINA)
    await event_queue.insert_failed(3, "new %s")
    await event_queue.owner.execute("vacuum analyze public.dead_letter_queue")
    now = await event_queue.owner.fetchval("select pabal.now()")
    states, letter_filter = {"open": True, "ended": False}, DeadLetterFilter().columns()
    queries = (
        (
            dead_letters.Q.list_dead_letters,
            {**letter_filter, **states, "before": None, "before_id": None, "limit": 50, "no_limit": None},
        ),
        (
            dead_letters.Q.list_dead_letters,
            {**letter_filter, **states, "before": now, "before_id": new_id(), "limit": 50, "no_limit": None},
        ),
        (dead_letters.Q.group_dead_letters, {**letter_filter, **states, "limit": 50, "scan_limit": None}),
        (replay.Q.count_replayable_dead_letters, letter_filter),
        (replay.Q.list_next_dead_letters, {**letter_filter, "after": None, "after_id": None, "limit": 50}),
    )

    reads = [
        await count_pages(event_queue.owner, query, parameters, prepare=GENERIC_PLAN) for query, parameters in queries
    ]

    assert [rows for _, rows in reads] == [3, 3, 1, 1, 3]
    assert max(pages_read for pages_read, _ in reads) < 20
    all_pages, _ = await count_pages(
        event_queue.owner, dead_letters.Q.group_dead_letters, {**queries[2][1], "ended": True}, prepare=GENERIC_PLAN
    )
    assert all_pages > 100


async def test_a_page_of_a_large_table_reads_one_page(event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3000)
    await event_queue.owner.execute(
        "update public.dead_letter_queue set failed_at = failed_at - (random() * 86400) * interval '1 s'"
    )
    await event_queue.owner.execute("vacuum analyze public.dead_letter_queue")
    position = {**DeadLetterFilter().columns(), "before": None, "before_id": None, "limit": 20, "no_limit": None}
    queries = ({**position, "open": True, "ended": False}, {**position, "open": True, "ended": True})

    reads = [
        await count_pages(event_queue.owner, dead_letters.Q.list_dead_letters, parameters, prepare=GENERIC_PLAN)
        for parameters in queries
    ]

    assert [rows for _, rows in reads] == [20, 20]
    assert max(pages_read for pages_read, _ in reads) < 100  # bounded by the page, not by the table


async def test_a_replayed_dead_letter_does_not_affect_its_open_event(hub: Hub, event_queue: EventQueue) -> None:
    event, letter = await event_queue.publish_failed()
    await replay_as_operator(hub, letter)
    [held] = await event_queue.claim()

    assert await replay_as_operator(hub, letter) == {}
    await event_queue.settle(held, DONE)

    assert (await event_queue.load_event(event))["status"] == "completed"
