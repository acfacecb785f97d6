"""Handlers that run in the transaction that settles their events, when an event, a handler or a shutdown fails."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from pabal.db.tx import Tx
from pabal.events.consume.lane import ClaimedEvent
from pabal.events.consume.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.outcome import DONE, Outcome
from support.lane_under_test import Events, Travel
from support.wait import wait_until
from support.worker import run_worker, wait_for_states

pytestmark = pytest.mark.anyio

REFUSE = """
create function public.refuse_settle() returns trigger language plpgsql as $$
begin raise exception 'refused' using errcode = 'check_violation'; end $$;
"""


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    owner = await asyncpg.connect(database_urls.direct)
    yield Events(hub, owner, travel)
    owner.terminate()


@asynccontextmanager
async def settling_is_refused(events: Events, event_id: object) -> AsyncGenerator[None]:
    """The database refuses every outcome of this event during the block."""
    await events.owner.execute(REFUSE)
    await events.owner.execute(
        "create trigger refuse_settle before update on public.event_queue for each row"
        f" when (old.id = '{event_id}' and old.lease is not null) execute function public.refuse_settle()"
    )
    try:
        yield
    finally:
        await events.owner.execute("drop function public.refuse_settle() cascade")


async def complete(_tx: Tx, batch: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
    return [DONE for _ in batch]


async def test_an_event_whose_outcome_is_refused_stays_leased_and_the_others_are_settled(
    hub: Hub, events: Events
) -> None:
    ids = await events.put(10)

    async with settling_is_refused(events, ids[4]):
        async with run_worker(hub, TransactionalHandler(hub.db, complete).handle) as worker:
            await wait_for_states(events, completed=9, processing=1)
            await wait_until(lambda: worker.in_flight == 0)
        retries = await events.owner.fetchval("select sum(retry_count) from public.event_queue")

    assert retries == 0


async def test_stopping_rolls_back_a_batch_that_does_not_end_and_releases_its_events(hub: Hub, events: Events) -> None:
    await events.put(3)
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(_tx: Tx, _batch: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    async with asyncio.timeout(5):
        async with run_worker(
            hub, TransactionalHandler(hub.db, hang).handle, shutdown_grace=timedelta(milliseconds=50)
        ) as worker:
            await started.wait()
            worker.stop()

    assert cancelled.is_set()
    assert await events.states() == {"pending": 3}


async def test_a_handler_that_is_cancelled_by_what_it_awaits_fails_its_events(hub: Hub, events: Events) -> None:
    await events.put()

    async def cancel(_tx: Tx, _batch: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        raise asyncio.CancelledError

    async def has_failed() -> bool:
        return await events.owner.fetchval("select error_code from public.event_queue") == "CancelledError"

    async with run_worker(hub, TransactionalHandler(hub.db, cancel).handle):
        await wait_until(has_failed)
