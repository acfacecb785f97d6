"""A claim and plain SQL that changes the same event at the same time."""

import asyncio

import pytest

from support.failed_events import EventQueue
from support.wait import wait_until

pytestmark = pytest.mark.anyio

# The claim asks for the time when its snapshot is taken and its rows are not locked yet.
WAITING_CLOCK = """
create or replace function pabal.now() returns timestamptz language plpgsql volatile as
    'begin perform pg_advisory_lock_shared(1); perform pg_advisory_unlock_shared(1); return pg_catalog.now(); end'
"""


@pytest.mark.parametrize(
    ("change", "claimed_payloads"),
    [("payload = '{\"n\": 2}'", ['{"n": 2}']), ("status = 'cancelled', processed_at = now()", [])],
)
async def test_an_event_that_changes_during_the_claim_is_claimed_as_it_is_then(
    event_queue: EventQueue, change: str, claimed_payloads: list[str]
) -> None:
    owner = event_queue.owner
    event = await event_queue.publish(payload=b'{"n": 1}')
    await owner.execute(WAITING_CLOCK)
    await owner.execute("select pg_advisory_lock(1)")
    claim = asyncio.create_task(event_queue.claim())

    async def is_waiting() -> bool:
        return await owner.fetchval("select count(*) from pg_locks where not granted") == 1

    await wait_until(is_waiting)
    await owner.execute(f"update public.event_queue set {change} where id = $1", event)
    await owner.execute("select pg_advisory_unlock(1)")

    assert [claimed.payload_json for claimed in await claim] == claimed_payloads
    row = await event_queue.load_event(event)
    assert row["status"] == ("processing" if claimed_payloads else "cancelled")
