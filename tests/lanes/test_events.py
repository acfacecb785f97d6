"""Guarantees of the event lane: order within a key, no starvation, plain SQL, repair."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.db.errors import RetryableError
from pabal.db.queries import parse_queries
from pabal.events.consume.lane import LANE, oldest_first_quota
from pabal.events.repair.repair import REPAIRED_TABLES, advance_ordered_events, repair_event_tables
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Dead, Retry
from support.clusters import open_connection
from support.lane_under_test import Events, Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

[WAITING, PUT] = parse_queries("""
-- name: waiting
select count(*) from pg_locks where not granted
-- name: put
insert into public.event_queue (id, event_type, source_service, target_service, ordering_key)
values (pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', :key) returning id
""")


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID


@pytest.fixture
async def events(hub: Hub, owner: Any, travel: Travel) -> Events:
    return Events(hub, owner, travel)


async def run_advance_chore(hub: Hub) -> int:
    async with hub.transaction() as tx:
        return await advance_ordered_events(tx, 5000)


async def run_repair(hub: Hub) -> int:
    async with hub.transaction() as tx:
        return await repair_event_tables(tx, 5000)


async def is_blocked_by_lock(hub: Hub) -> bool:
    async with hub.autocommit() as tx:
        return await tx.value(WAITING) > 0


async def lane_counts(events: Events) -> tuple[int, int, int]:
    row = await events.owner.fetchrow(
        "select (select count(*) from pabal.event_due), (select coalesce(sum(held), 0) from pabal.event_leases), "
        "(select count(*) from pabal.event_order)"
    )
    assert row is not None
    return tuple(row)


class TestOrderWithinAKey:
    async def test_events_of_a_key_are_claimed_one_at_a_time_in_order(self, events: Events) -> None:
        ids = await events.put(5, ordering_key="order-1")
        seen: list[Any] = []
        while claimed := await events.claim():
            [event] = claimed
            assert await events.claim() == []
            seen.append(event.id)
            await events.settle(event, DONE)

        assert seen == ids

    async def test_keys_do_not_wait_for_each_other(self, events: Events) -> None:
        for key in "abc":
            await events.put(2, ordering_key=key)
        await events.put(1)

        assert sorted(str(event.ordering_key) for event in await events.claim()) == ["None", "a", "b", "c"]

    async def test_a_retrying_first_event_blocks_its_key_and_a_dead_one_does_not(self, events: Events) -> None:
        first, second = await events.put(2, ordering_key="k")
        [head] = await events.claim()
        await events.settle(head, Retry("not yet", timedelta(minutes=1)))
        assert await events.claim() == []

        await events.travel(minutes=1)
        [head] = await events.claim()
        assert head.id == first
        await events.settle(head, Dead("never"))

        assert [event.id for event in await events.claim()] == [second]

    async def test_a_cancelled_or_deleted_first_event_frees_its_key(self, events: Events) -> None:
        first, second, third = await events.put(3, ordering_key="k")
        await events.owner.execute("update public.event_queue set status = 'cancelled' where id = $1", first)
        await events.owner.execute("delete from public.event_queue where id = $1", second)

        assert [event.id for event in await events.claim()] == [third]

    async def test_a_key_is_ordered_per_target(self, events: Events) -> None:
        await events.put(1, ordering_key="k")
        await events.put(1, ordering_key="k", target="minu_keep")

        assert len(await events.claim()) == 1
        assert len(await events.claim(service="minu_keep")) == 1

    async def test_the_first_event_is_claimed_first_again_after_a_crash(self, events: Events) -> None:
        first, _ = await events.put(2, ordering_key="k")
        await events.claim(hold=timedelta(minutes=1))
        await events.travel(minutes=1)

        assert [event.id for event in await events.claim()] == [first]

    async def test_concurrent_claims_and_publishers_keep_the_order(self, events: Events, hub: Hub) -> None:
        """Publishers commit out of order while events end: one at a time is delivered, and all are."""
        holding: Counter[str] = Counter()
        seen: dict[str, list[int]] = {key: [] for key in "abcd"}
        total, handled = 4 * 4 * 12, 0

        async def publish() -> None:
            for _ in range(12):
                for key in "abcd":
                    async with hub.transaction() as tx:
                        await tx.all(Row, PUT, key=key)

        async def work() -> None:
            nonlocal handled
            while handled < total:
                try:
                    claimed = await events.claim(limit=3)
                except RetryableError:  # two claims at the same time: the second is repeated
                    continue
                for event in claimed:
                    assert event.ordering_key
                    holding[event.ordering_key] += 1
                    assert holding[event.ordering_key] == 1
                    seen[event.ordering_key].append(event.seq)
                await asyncio.sleep(0)
                for event in claimed:
                    holding[event.ordering_key] -= 1
                settled = await events.settle_all([(event, DONE) for event in claimed])
                handled += len(settled)
                if not claimed:
                    await run_advance_chore(hub)

        async with asyncio.timeout(30):
            await asyncio.gather(*(publish() for _ in range(4)), *(work() for _ in range(4)))

        assert await lane_counts(events) == (0, 0, 0)
        assert sum(map(len, seen.values())) == total

    async def test_an_event_published_while_the_last_one_ends_becomes_due(self, events: Events, hub: Hub) -> None:
        await events.put(1, ordering_key="k")
        [head] = await events.claim()
        async with hub.transaction() as publishing:
            await publishing.all(Row, PUT, key="k")  # sees the first event, so it is not due
            await events.settle(head, DONE)  # cannot see the new event, so makes none due
        assert await events.claim() == []

        await run_advance_chore(hub)

        assert len(await events.claim()) == 1


class TestTwoEndAtOnce:
    """The first event ends while the second is cancelled; the third must still become due."""

    async def test_the_first_event_ends_first(self, events: Events, hub: Hub) -> None:
        _, second, third = await events.put(3, ordering_key="k")
        [head] = await events.claim()
        async with hub.transaction() as settling:
            await events.lane.settle(settling, [Settlement(head, DONE)])
            cancelling = asyncio.create_task(events.owner.execute(events.cancel_sql, second))
            await wait_until(lambda: is_blocked_by_lock(hub))
        await cancelling

        assert [event.id for event in await events.claim()] == [third]

    async def test_the_second_event_ends_first(self, events: Events, hub: Hub) -> None:
        _, second, third = await events.put(3, ordering_key="k")
        [head] = await events.claim()
        async with events.owner.transaction():
            await events.owner.execute(events.cancel_sql, second)
            settling = asyncio.create_task(events.settle(head, DONE))
            await wait_until(lambda: is_blocked_by_lock(hub))
        assert await settling

        await run_advance_chore(hub)
        assert [event.id for event in await events.claim()] == [third]
        assert await run_repair(hub) == 0


class TestStarvation:
    async def test_one_in_eight_claimed_events_is_the_longest_due(self, events: Events) -> None:
        [oldest] = await events.put(1, priority=10)
        await events.travel(seconds=1)
        await events.put(100, priority=1)

        claims = 0
        while True:
            claims += 1
            claimed = await events.claim(limit=8)
            if oldest in {event.id for event in claimed}:
                break
            assert claims < 3
        assert claims == 1

    def test_a_claim_of_one_is_fair_on_average(self) -> None:
        assert sum(oldest_first_quota(1, jitter / 1000) for jitter in range(1000)) == 125
        assert oldest_first_quota(8, 0.99) == 1
        assert oldest_first_quota(20, 0.4) == 3
        assert oldest_first_quota(20, 0.6) == 2

    async def test_a_backlog_of_one_service_does_not_affect_claims_of_another(self, events: Events) -> None:
        await events.put(5000)
        [only_event] = await events.put(1, target="minu_keep")

        assert [event.id for event in await events.claim(service="minu_keep")] == [only_event]

    async def test_services_with_due_events_are_found_without_counting(self, events: Events, hub: Hub) -> None:
        await events.put(100)
        await events.put(1, target="minu_keep", due=timedelta(hours=1))
        async with hub.autocommit() as tx:
            assert await LANE.services_with_due_events(tx, ["minu_build", "minu_keep"]) == ["minu_build"]


class TestPlainSql:
    """Statements that know only event_queue work as its columns promise."""

    async def test_a_status_set_by_plain_sql_is_applied_to_the_lane(self, events: Events) -> None:
        [event] = await events.put()
        await events.owner.execute(
            "update public.event_queue set status = 'processing', processor_id = 'other' where id = $1", event
        )
        assert await events.claim() == []
        await events.owner.execute("update public.event_queue set status = 'pending' where id = $1", event)
        assert len(await events.claim()) == 1

    async def test_a_status_set_by_plain_sql_ends_the_lease(self, events: Events) -> None:
        await events.put()
        [event] = await events.claim()
        await events.owner.execute("update public.event_queue set status = 'completed'")

        assert not await events.settle(event, Retry("too late"))
        assert await events.extend([event]) == {event.id}
        assert await events.states() == {"completed": 1}
        assert await lane_counts(events) == (0, 0, 0)

    async def test_a_new_priority_or_time_applies_at_once(self, events: Events) -> None:
        later, due = await events.put(2)
        await events.owner.execute(
            "update public.event_queue set next_retry_at = pabal.now() + interval '1 hour' where id = $1", later
        )

        assert [event.id for event in await events.claim()] == [due]
        await events.travel(hours=1)
        assert [event.id for event in await events.claim()] == [later]

    async def test_a_new_priority_does_not_end_the_lease(self, events: Events) -> None:
        await events.put()
        [claimed] = await events.claim()
        await events.owner.execute(
            "update public.event_queue set priority = 1, expires_at = pabal.now() + interval '1 day'"
        )

        assert await events.extend([claimed]) == set()
        assert await events.settle(claimed, Retry("again", timedelta()))
        assert [event.priority for event in await events.claim()] == [1]

    async def test_a_deleted_event_is_removed_from_all_tables(self, events: Events) -> None:
        await events.put(3)
        await events.claim(limit=1)
        await events.owner.execute("delete from public.event_queue")

        assert await lane_counts(events) == (0, 0, 0)

    async def test_the_error_history_lists_each_attempt(self, events: Events) -> None:
        await events.put()
        for number in (1, 2):
            [event] = await events.claim()
            await events.settle(event, Retry(f"failure {number}", timedelta(), "E1"))
        history = await events.owner.fetchval("select error_history::text from public.event_queue")

        assert history.count("failure") == 2
        assert '"attempt": 2' in history
        assert '"worker": "tester"' in history


class TestRepair:
    @pytest.mark.parametrize(
        "damage",
        [
            "delete from pabal.event_due",
            "delete from pabal.event_leases",
            "insert into pabal.event_due values (gen_random_uuid(), 'minu_build', 5, pabal.now(), 0)",
            "update pabal.event_leases set held = 77",
            "update pabal.event_due set service = 'minu_keep'",
            "update pabal.event_due set priority = 10",
            "update pabal.event_due set event_type = ''",
            "update pabal.event_order set lease = gen_random_uuid() where id in (select id from pabal.event_due)",
            "delete from pabal.event_order; delete from pabal.event_due",
        ],
    )
    async def test_damaged_tables_are_repaired(self, events: Events, hub: Hub, damage: str) -> None:
        ids = await events.put(6)
        ids += await events.put(2, ordering_key="k")
        await events.claim(limit=2)
        await events.owner.execute(damage)

        assert await run_repair(hub) > 0
        assert await run_repair(hub) == 0

        await events.travel(minutes=2)
        seen: set[Any] = set()
        while claimed := await events.claim(limit=100):
            seen |= {event.id for event in claimed}
            await events.settle_all([(event, DONE) for event in claimed])
            await run_advance_chore(hub)
        assert seen == set(ids)
        assert await lane_counts(events) == (0, 0, 0)

    async def test_intact_tables_need_no_repair(self, events: Events, hub: Hub) -> None:
        await events.put(20)
        await events.put(5, ordering_key="k")
        claimed = await events.claim(limit=10)
        await events.settle_all([(claimed[0], DONE), (claimed[1], Retry("later")), (claimed[2], Dead("no"))])

        assert await run_repair(hub) == 0

    async def test_an_event_that_the_next_advance_makes_due_is_not_damaged(
        self, events: Events, hub: Hub, database_urls: DatabaseUrls
    ) -> None:
        """Its predecessor ended while another transaction held it, so the chore of ordered events makes it due."""
        _, second = await events.put(2, ordering_key="k")
        [first] = await events.claim()
        async with open_connection(database_urls.main) as other, other.transaction():
            await other.execute("select from public.event_queue where id = $1 for no key update", second)
            await events.settle(first, DONE)

        assert await run_repair(hub) == 0
        assert await events.claim() == []
        await run_advance_chore(hub)
        assert [event.id for event in await events.claim()] == [second]

    async def test_a_run_compares_a_slice_and_the_next_continues(self, events: Events, hub: Hub) -> None:
        ids = await events.put(30)
        await events.owner.execute("delete from pabal.event_due")
        sliced = [replace(table, window=7) for table in REPAIRED_TABLES]

        async def repair_slice() -> int:
            async with hub.transaction() as tx:
                return await repair_event_tables(tx, 5000, sliced, recent_slices=0)

        assert [await repair_slice() for _ in range(5)] == [7, 7, 7, 7, 2]
        assert {event.id for event in await events.claim(limit=30)} == {*ids}

        await events.owner.execute("delete from pabal.event_leases")
        assert [await repair_slice() for _ in range(6)] == [7, 7, 7, 7, 2, 0]

    async def test_new_damage_is_repaired_in_a_hub_that_publishes_more_than_a_slice_per_run(
        self, events: Events, hub: Hub
    ) -> None:
        tables = [replace(table, window=20) for table in REPAIRED_TABLES]

        async def repair_busy_hub() -> int:
            await events.put(60)
            async with hub.transaction() as tx:
                return await repair_event_tables(tx, 5000, tables, recent_slices=5, recent_window=20)

        assert [await repair_busy_hub() for _ in range(3)] == [0, 0, 0]
        ids = await events.put(2)
        await events.owner.execute("delete from pabal.event_due where id = any($1)", ids)

        assert sum([await repair_busy_hub() for _ in range(3)]) == len(ids)
        assert await events.owner.fetchval("select count(*) from pabal.event_due where id = any($1)", ids) == len(ids)

    async def test_a_run_compares_so_many_recent_events_and_the_next_continues(self, events: Events, hub: Hub) -> None:
        await events.put(30)
        await events.owner.execute("delete from pabal.event_due")

        async def repair_recent() -> int:
            async with hub.transaction() as tx:
                return await repair_event_tables(tx, 5000, (), recent_slices=2, recent_window=7)

        assert [await repair_recent() for _ in range(4)] == [14, 14, 2, 0]

    async def test_older_events_and_ids_that_are_not_made_from_a_time_are_not_recent(
        self, events: Events, hub: Hub
    ) -> None:
        await events.owner.execute(
            "insert into public.event_queue (id, event_type, source_service, target_service) "
            "select id, 'order.paid', 'minu_find', 'minu_build' from unnest($1::uuid[]) as n (id)",
            [UUID(int=number) for number in range(10)] + [UUID(int=(1 << 128) - 1 - number) for number in range(30)],
        )
        [recent] = await events.put(1)
        await events.owner.execute("delete from pabal.event_due")

        async with hub.transaction() as tx:
            await repair_event_tables(tx, 5000, (), recent_slices=3, recent_window=5)
        rows = await events.owner.fetch("select id from pabal.event_due")

        assert len(rows) <= 5
        assert recent in {row["id"] for row in rows}
        assert await events.owner.fetchval("select count(*) from pabal.event_repair_positions") == 0

    async def test_a_partly_expired_lease_counts_the_events_still_held(
        self, events: Events, hub: Hub, database_urls: DatabaseUrls
    ) -> None:
        await events.put(3)
        [locked, *others] = await events.claim(limit=3)
        await events.travel(minutes=2)

        async with open_connection(database_urls.main) as settler, settler.transaction():
            await settler.execute("select from public.event_queue where id = $1 for no key update", locked.id)
            async with hub.autocommit() as tx:
                assert await LANE.revive(tx, 10) == len(others)

        assert await lane_counts(events) == (len(others), 1, 0)
        assert await run_repair(hub) == 0
