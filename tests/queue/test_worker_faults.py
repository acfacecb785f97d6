"""A worker when a handler, a lease, the network or its own shutdown fails."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pabal.events.consume.lane import ClaimedEvent
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.outcome import DONE, Outcome, Retry
from pabal.settings import Settings
from support.fault_proxy import run_fault_proxy
from support.lane_under_test import Events, Travel
from support.wait import wait_until
from support.worker import make_worker, run_worker, wait_for_states

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    owner = await asyncpg.connect(database_urls.direct)
    yield Events(hub, owner, travel)
    owner.terminate()


class SlowHandler:
    """A handler that records when it starts and ends when the test allows it."""

    def __init__(self) -> None:
        self.started: list[ClaimedEvent] = []
        self.cancelled: list[ClaimedEvent] = []
        self.may_end = asyncio.Event()

    async def __call__(self, event: ClaimedEvent) -> Outcome:
        self.started.append(event)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(event)
            raise
        return DONE

    async def has_started(self, count: int = 1) -> None:
        await wait_until(lambda: len(self.started) == count)


async def lock_wait_exists(events: Events) -> bool:
    return await events.owner.fetchval("select count(*) from pg_locks where not granted") > 0


@asynccontextmanager
async def blocked_settle(events: Events, database_urls: DatabaseUrls, handle: SlowHandler) -> AsyncGenerator[None]:
    """Let the handler end, while its settle waits for a row lock until the block ends."""
    other = await asyncpg.connect(database_urls.direct)
    try:
        async with other.transaction():
            await other.execute("select from public.event_queue for update")
            handle.may_end.set()

            await wait_until(lambda: lock_wait_exists(events))
            yield
    finally:
        other.terminate()


async def test_a_handler_that_awaits_a_cancelled_future_has_failed(hub: Hub, events: Events) -> None:
    """The handler itself was not cancelled, only what it awaited: its row must not be held forever."""
    await events.put(1, max_retries=0)

    async def handle(_event: ClaimedEvent) -> Outcome:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner
        return DONE

    async with run_worker(hub, handle):
        await wait_for_states(events, failed=1)


async def test_a_row_whose_outcome_is_refused_stays_leased_and_the_others_are_settled(hub: Hub, events: Events) -> None:
    [refused] = await events.put(1)
    await events.put(10)

    async def handle(event: ClaimedEvent) -> Outcome:
        return Retry("beyond PostgreSQL's last timestamp", timedelta.max) if event.id == refused else DONE

    async with run_worker(hub, handle) as worker:
        await wait_for_states(events, completed=10, processing=1)
        await wait_until(lambda: worker.in_flight == 0)


async def test_stopping_waits_for_a_settle_in_progress(hub: Hub, events: Events, database_urls: DatabaseUrls) -> None:
    await events.put()
    handle = SlowHandler()

    async with run_worker(hub, handle) as worker:
        await handle.has_started()
        async with blocked_settle(events, database_urls, handle):
            worker.stop()
            for _ in range(30):  # each query lets the worker run; it keeps waiting
                assert await lock_wait_exists(events)

    assert await events.states() == {"completed": 1}


async def test_a_cancelled_worker_cancels_its_handlers(hub: Hub, events: Events) -> None:
    await events.put(3)
    handle = SlowHandler()

    task = asyncio.create_task(make_worker(hub, handle).run())
    await handle.has_started(3)
    task.cancel()

    await wait_until(lambda: len(handle.cancelled) == 3)
    assert task.cancelled()


async def test_an_event_lost_and_claimed_again_by_the_same_worker_is_handled_by_the_second_claim_alone(
    hub: Hub, events: Events
) -> None:
    """As after an outage longer than the lease: the first handler is cancelled, which does not end the second."""
    await events.put()
    handle = SlowHandler()

    async with run_worker(hub, handle, hold=HOUR, poll_interval=timedelta(milliseconds=20)) as worker:
        await handle.has_started()
        await events.travel(hours=1)
        await handle.has_started(2)
        await wait_until(lambda: handle.cancelled == handle.started[:1])
        assert worker.in_flight == 1
        handle.may_end.set()
        await wait_for_states(events, completed=1)

    assert [event.attempt for event in handle.started] == [1, 2]


async def test_a_settle_whose_response_is_lost_counts_once(
    events: Events, database_urls: DatabaseUrls, settings: Settings
) -> None:
    """The connection breaks after the commit and before the response: settling again finds the event completed."""
    await events.put()
    handle = SlowHandler()

    async with (
        run_fault_proxy(database_urls.main) as (proxy, proxy_url),
        open_hub(settings, DatabaseUrls(proxy_url, database_urls.direct)) as hub,
        run_worker(hub, handle) as worker,
    ):
        await handle.has_started()
        async with blocked_settle(events, database_urls, handle):
            proxy.drop_bytes()
        await wait_for_states(events, completed=1)
        proxy.reset()
        proxy.pass_bytes()
        await wait_until(lambda: worker.in_flight == 0)
        await events.put()
        await wait_for_states(events, completed=2)

    assert len(handle.started) == 2
    assert [event.attempt for event in handle.started] == [1, 1]


async def test_a_settle_that_never_arrived_is_sent_again(
    events: Events, database_urls: DatabaseUrls, settings: Settings
) -> None:
    await events.put()
    handle = SlowHandler()

    async with (
        run_fault_proxy(database_urls.main) as (proxy, proxy_url),
        open_hub(settings, DatabaseUrls(proxy_url, database_urls.direct)) as hub,
        run_worker(hub, handle) as worker,
    ):
        await handle.has_started()
        proxy.drop_bytes()
        handle.may_end.set()
        await wait_until(lambda: hub.db.connections_in_use() > 0)
        proxy.reset()
        assert await events.states() == {"processing": 1}
        proxy.pass_bytes()
        await wait_for_states(events, completed=1)
        await wait_until(lambda: worker.in_flight == 0)

    assert len(handle.started) == 1


async def test_a_handler_that_hangs_is_cancelled_and_its_attempt_counted(hub: Hub, events: Events) -> None:
    await events.put(1, max_retries=0)

    async def hang(_event: ClaimedEvent) -> Outcome:
        await asyncio.Event().wait()
        return DONE

    async with run_worker(hub, hang, handler_timeout=timedelta(milliseconds=50)):
        await wait_for_states(events, failed=1)

    assert await events.owner.fetchval("select error_code from public.dead_letter_queue") == "timeout"


@pytest.mark.parametrize("payload", ['{"n": 1' + "0" * 400 + ".5}", '{"deep": ' + "[" * 3000 + "]" * 3000 + "}"])
async def test_a_payload_that_is_hard_to_decode_does_not_stop_the_worker(
    hub: Hub, events: Events, payload: str
) -> None:
    await events.owner.execute(
        "insert into public.event_queue (event_type, source_service, target_service, payload) "
        "values ('order.paid', 'minu_find', 'minu_build', $1::text::jsonb)",
        payload,
    )
    await events.put(3)

    async def handle(_event: ClaimedEvent) -> Outcome:
        return DONE

    async with run_worker(hub, handle):
        await wait_for_states(events, completed=4)


async def test_a_handler_that_returns_no_outcome_fails_with_a_clear_error(hub: Hub, events: Events) -> None:
    await events.put(1, max_retries=0)

    async def return_none(_event: ClaimedEvent) -> Any:
        return None

    async with run_worker(hub, return_none):
        await wait_for_states(events, failed=1)

    error = await events.owner.fetchval("select error_message from public.dead_letter_queue")
    assert "returned NoneType instead of an outcome" in error


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("a lone surrogate: \ud800"), UnprintableError()])
async def test_an_error_whose_text_cannot_be_stored_still_becomes_a_dead_letter(
    hub: Hub, events: Events, error: Exception
) -> None:
    await events.put(1, max_retries=0)

    async def handle(_event: ClaimedEvent) -> Outcome:
        raise error

    async with run_worker(hub, handle) as worker:
        await wait_for_states(events, failed=1)
        await wait_until(lambda: worker.in_flight == 0)

    message = await events.owner.fetchval("select error_message from public.dead_letter_queue")
    assert message.startswith(f"{type(error).__name__}: ")
