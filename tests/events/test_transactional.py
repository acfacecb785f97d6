"""Handlers that run in the transaction that settles their events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pabal.db.tx import Tx
from pabal.events.lane import ClaimedEvent
from pabal.events.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.outcome import DONE, Outcome
from support.lane_under_test import Events, Travel
from support.wait import until
from support.worker import settled, working

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
        async with working(hub, TransactionalHandler(hub.db, complete).handle) as worker:
            await settled(events, completed=9, processing=1)
            await until(lambda: worker.in_flight == 0)
        retries = await events.owner.fetchval("select sum(retry_count) from public.event_queue")

    assert retries == 0
