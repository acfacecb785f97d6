"""Events that a consumer claims with plain SQL, as the specification's columns allow."""

from datetime import timedelta
from uuid import UUID

import pytest

from pabal.events.consume.lane import LANE, EventClaimFilter
from pabal.events.repair.plain_claims import Q, return_plain_claims
from pabal.events.repair.repair import repair_event_tables
from support.failed_events import EventQueue
from support.lane_under_test import Travel
from support.large_tables import count_pages

pytestmark = pytest.mark.anyio

LIFE = timedelta(minutes=5)
PLAIN_CLAIM = """
update public.event_queue set status = 'processing', processor_id = 'script', processing_started_at = pabal.now()
where id = $1
"""

PLAIN_SEARCH = """
select id from public.event_queue where target_service = 'minu_build' and status = 'pending'
order by priority, created_at for update skip locked
"""


async def find_pending(event_queue: EventQueue) -> list[UUID]:
    """The first half of a consumer's transaction, as the specification writes its consumers."""
    return [row["id"] for row in await event_queue.owner.fetch(PLAIN_SEARCH)]


async def return_claims(event_queue: EventQueue) -> int:
    async with event_queue.hub.transaction() as tx:
        return await return_plain_claims(tx, LIFE, 100)


async def claim_ids(event_queue: EventQueue) -> list[UUID]:
    return [event.id for event in await event_queue.claim()]


async def test_an_unfinished_plain_claim_comes_back_and_counts_as_an_attempt(
    event_queue: EventQueue, travel: Travel
) -> None:
    event = await event_queue.publish()
    await event_queue.owner.execute(PLAIN_CLAIM, event)

    assert await claim_ids(event_queue) == []
    await travel(LIFE - timedelta(seconds=10))
    assert await return_claims(event_queue) == 0
    await travel(timedelta(seconds=11))
    assert await return_claims(event_queue) == 1

    [claimed] = await event_queue.claim()
    row = await event_queue.load_event(event)
    assert (claimed.id, row["retry_count"]) == (event, 1)
    assert row["last_error"] == "claimed with plain SQL and not finished in time"


async def test_a_plain_claim_without_a_start_time_comes_back_too(event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish(ordering_key="k")
    behind = await event_queue.publish(ordering_key="k")
    await event_queue.owner.execute("update public.event_queue set status = 'processing' where id = $1", event)

    await travel(LIFE + timedelta(seconds=1))
    await return_claims(event_queue)

    assert await claim_ids(event_queue) == [event], "its ordering key still holds the next one back"
    assert (await event_queue.load_event(behind))["status"] == "pending"


async def test_the_last_attempt_of_a_plain_claim_becomes_a_dead_letter(event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish(max_retries=0)
    await event_queue.owner.execute(PLAIN_CLAIM, event)
    await travel(LIFE + timedelta(seconds=1))
    await return_claims(event_queue)

    assert await claim_ids(event_queue) == []
    assert (await event_queue.load_event(event))["status"] == "failed"
    assert await event_queue.find_dead_letter(event)


async def test_a_claim_of_the_hub_is_left_alone(event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish()
    [claimed] = await event_queue.claim()

    await travel(LIFE * 2)

    assert await return_claims(event_queue) == 0
    row = await event_queue.load_event(event)
    assert (row["status"], row["lease"]) == ("processing", claimed.lease)


async def test_a_plain_consumer_does_not_find_what_a_worker_holds(event_queue: EventQueue) -> None:
    held, free = await event_queue.publish(), await event_queue.publish()
    async with event_queue.hub.transaction() as tx:
        [claimed] = await LANE.claim(tx, 1, LIFE, "worker", EventClaimFilter("minu_build"))
    assert claimed.id == held

    async with event_queue.owner.transaction():
        assert await find_pending(event_queue) == [free]
    assert (await event_queue.load_event(held))["status"] == "processing"


async def test_a_worker_skips_what_a_plain_consumer_has_locked(event_queue: EventQueue) -> None:
    locked = await event_queue.publish()
    async with event_queue.owner.transaction():
        assert await find_pending(event_queue) == [locked]
        free = await event_queue.publish()
        assert await claim_ids(event_queue) == [free]
        await event_queue.owner.execute(PLAIN_CLAIM, locked)

    assert await claim_ids(event_queue) == []
    row = await event_queue.load_event(locked)
    assert (row["status"], row["processor_id"], row["lease"]) == ("processing", "script", None)


async def test_the_chore_returns_plain_claims(event_queue: EventQueue, travel: Travel) -> None:
    event = await event_queue.publish()
    await event_queue.owner.execute(PLAIN_CLAIM, event)
    await travel(LIFE + timedelta(seconds=1))

    await event_queue.hub.chores.run_due()

    assert await claim_ids(event_queue) == [event]


async def test_an_event_inserted_in_processing_comes_back_too(event_queue: EventQueue, travel: Travel) -> None:
    event: UUID = await event_queue.owner.fetchval(
        """
        insert into public.event_queue (event_type, source_service, target_service, status)
        values ('order.paid', 'minu_find', 'minu_build', 'processing')
        returning id
        """
    )
    async with event_queue.hub.transaction() as tx:
        await repair_event_tables(tx, 0)
    await travel(LIFE + timedelta(seconds=1))

    assert await return_claims(event_queue) == 1
    assert await claim_ids(event_queue) == [event]


MAX_PAGES = 100
"""A few index descents. The ten thousand finished events are on more than a thousand pages."""
FINISHED_EVENTS = """
insert into public.event_queue (event_type, source_service, target_service, status, payload)
select 'order.paid', 'minu_find', 'minu_build', 'pending', jsonb_build_object('note', repeat('x', 300))
from generate_series(1, 10000);
select brin_summarize_new_values(c.oid) from pg_class c where c.relname = 'idx_event_queue_status';
update public.event_queue set status = 'processing';
update public.event_queue set status = 'completed', processed_at = pabal.now();
analyze public.event_queue;
"""


async def test_finished_events_are_not_read_to_find_plain_claims(event_queue: EventQueue, travel: Travel) -> None:
    await event_queue.owner.execute(FINISHED_EVENTS)
    event = await event_queue.publish()
    await event_queue.owner.execute(PLAIN_CLAIM, event)

    pages, _ = await count_pages(event_queue.owner, Q.return_plain_claims, {"hold": LIFE, "batch": 5000})
    assert pages < MAX_PAGES

    await travel(LIFE + timedelta(seconds=1))
    assert await return_claims(event_queue) == 1


async def test_only_current_plain_claims_are_listed(event_queue: EventQueue) -> None:
    ids = [await event_queue.publish() for _ in range(4)]
    completed, returned, deleted, held = ids
    for event in ids:
        await event_queue.owner.execute(PLAIN_CLAIM, event)
    await event_queue.owner.execute(
        "update public.event_queue set status = 'completed', processed_at = pabal.now() where id = $1", completed
    )
    await event_queue.owner.execute("update public.event_queue set status = 'pending' where id = $1", returned)
    await event_queue.owner.execute("delete from public.event_queue where id = $1", deleted)
    assert await claim_ids(event_queue) == [returned]

    await return_claims(event_queue)

    listed = await event_queue.owner.fetch("select id from pabal.plain_claims")
    assert [row["id"] for row in listed] == [held]
