"""Consuming: concurrency, lease extension, shutdown and network errors."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from client.connections import HubAddress, LossyProxy
from conftest import connection
from pabal.hub import DatabaseUrls, Hub
from pabal_client import AsyncClient, Client, Dead, PermissionDeniedError, PulledEvent, Retry, Snooze
from support.oauth_client import register_oauth_service
from support.subscriptions import load_event, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def run_consumer(
    address: HubAddress, handle: Callable[[PulledEvent], Any], **options: Any
) -> AsyncGenerator[asyncio.Event]:
    """Run a consumer during a block; the yielded event stops it."""
    stop = asyncio.Event()
    async with address.client() as client:
        task = asyncio.create_task(client.consume(handle, stop=stop, wait=0.2, **options))
        try:
            yield stop
        finally:
            stop.set()
            await task


async def publish_many(address: HubAddress, many: int = 1, event_type: str = "order.placed", **more: Any) -> list[UUID]:
    async with address.client() as client:
        items = await client.publish_many(
            [{"event_type": event_type, "payload": {"n": n}, "target": "billing", **more} for n in range(many)]
        )
    return [item.id for item in items if item.id]


async def states(database_urls: DatabaseUrls) -> dict[str, int]:
    async with connection(database_urls.main) as database:
        rows = await database.fetch("select status from event_queue where target_service = 'billing'")
    return dict(Counter(row["status"] for row in rows))


async def test_events_are_handled_all_at_once_and_settled_together(
    hub: Hub, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    all_started, started = asyncio.Event(), set[int]()

    async def handle(event: PulledEvent) -> None:
        started.add(event.payload["n"])
        if len(started) == 5:
            all_started.set()
        await all_started.wait()

    await publish_many(shop, 5)
    async with run_consumer(billing, handle, concurrency=5):
        await wait_until(lambda: has_states(database_urls, completed=5))


async def has_states(database_urls: DatabaseUrls, **expected: int) -> bool:
    return await states(database_urls) == expected


async def test_no_more_is_claimed_than_the_concurrency_allows(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    release, most, now = asyncio.Event(), 0, 0

    async def handle(_event: PulledEvent) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1

    await publish_many(shop, 7)
    async with run_consumer(billing, handle, concurrency=2, limit=1000):
        await wait_until(lambda: now == 2)
        assert await has_states(database_urls, processing=2, pending=5)
        release.set()
        await wait_until(lambda: has_states(database_urls, completed=7))

    assert most == 2


async def test_the_outcome_of_a_handler_settles_its_event(hub: Hub, shop: HubAddress, billing: HubAddress) -> None:
    async def handle(event: PulledEvent) -> object:
        match event.event_type:
            case "say.dead":
                return Dead("never")
            case "say.retry":
                raise Retry("not yet", delay=600)
            case "say.snooze":
                raise Snooze("not available", delay=600)
            case "say.odd":
                raise ValueError("a\0b")
            case _:
                return "anything"

    rows = {
        word: (await publish_many(shop, 1, f"say.{word}", max_retries=0 if word == "odd" else 3))[0]
        for word in ("dead", "retry", "snooze", "odd", "done")
    }
    async with run_consumer(billing, handle):
        done = await wait_for_status(hub, rows["done"], "completed")
        dead = await wait_for_status(hub, rows["dead"], "failed")
        odd = await wait_for_status(hub, rows["odd"], "failed")
        await wait_until(lambda: is_pending_with_error(hub, rows["retry"], "not yet"))
        await wait_until(lambda: is_pending_with_error(hub, rows["snooze"], "not available"))

    assert done.last_error is None
    assert dead.last_error == "never"
    assert (odd.last_error, odd.error_code) == ("ValueError: a\ufffdb", "ValueError")
    assert [len((await load_event(hub, rows[word])).error_history or ()) for word in ("retry", "snooze")] == [1, 0]


async def is_pending_with_error(hub: Hub, row: UUID, why: str) -> bool:
    row_now = await load_event(hub, row)
    return row_now.status == "pending" and row_now.last_error == why


@pytest.mark.parametrize("kind", ["function", "awaiting object"])
async def test_a_handler_may_be_a_plain_function_or_any_callable(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress, kind: str
) -> None:
    both, seen = threading.Barrier(2, timeout=10), list[int]()

    class Handler:
        async def __call__(self, event: PulledEvent) -> None:
            await asyncio.sleep(0)
            seen.append(event.payload["n"])

    def handle(event: PulledEvent) -> None:
        both.wait()  # only a second thread can open it
        seen.append(event.payload["n"])

    await publish_many(shop, 2)
    async with run_consumer(billing, handle if kind == "function" else Handler(), concurrency=2):
        await wait_until(lambda: has_states(database_urls, completed=2))

    assert sorted(seen) == [0, 1]


async def test_a_lease_is_extended_while_its_handler_runs(
    hub: Hub, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    release = asyncio.Event()

    async def handle(_event: PulledEvent) -> None:
        await release.wait()

    [row] = await publish_many(shop)
    async with run_consumer(billing, handle, lease=5), connection(database_urls.main) as database:
        await wait_until(lambda: has_states(database_urls, processing=1))
        first = await database.fetchval("select until from pabal.event_leases")

        async def moved() -> bool:
            return await database.fetchval("select until from pabal.event_leases") > first

        await wait_until(moved)
        release.set()
        done = await wait_for_status(hub, row, "completed")

    assert done.retry_count == 0


async def test_a_handler_whose_event_is_lost_is_cancelled(
    hub: Hub, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_event: PulledEvent) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    [row] = await publish_many(shop)
    async with run_consumer(billing, handle, lease=5, grace=0.1) as stop:
        await started.wait()
        async with shop.client() as seller:
            await seller.cancel(row)
        await wait_until(cancelled.is_set)
        assert not stop.is_set()

    assert (await load_event(hub, row)).status == "cancelled"


async def test_stopping_lets_handlers_finish(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_event: PulledEvent) -> None:
        started.set()
        await release.wait()

    await publish_many(shop)
    async with run_consumer(billing, handle) as stop:
        await started.wait()
        stop.set()
        asyncio.get_running_loop().call_later(0.5, release.set)  # after its last look for events

    assert await states(database_urls) == {"completed": 1}


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_unfinished_events_are_released_without_counting_an_attempt(
    hub: Hub, shop: HubAddress, billing: HubAddress, how: str
) -> None:
    started = asyncio.Event()

    async def handle(_event: PulledEvent) -> None:
        started.set()
        await asyncio.Event().wait()

    [row] = await publish_many(shop)
    stop = asyncio.Event()
    async with billing.client() as client:
        task = asyncio.create_task(client.consume(handle, stop=stop, wait=0.2, grace=0.05))
        await started.wait()
        if how == "stopped":
            stop.set()
            await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        back = await load_event(hub, row)
        again = await client.claim()

    assert (back.status, back.retry_count, back.last_error) == ("pending", 0, "released")
    assert [claimed.id for claimed in again] == [row]


async def test_a_consumer_survives_a_bad_network(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress, line: tuple[LossyProxy, str]
) -> None:
    between, address = line
    handled: list[UUID] = []

    async def handle(event: PulledEvent) -> None:
        handled.append(event.id)
        if len(handled) in {10, 20, 30}:
            between.reset()

    rows = await publish_many(shop, 40)
    async with run_consumer(HubAddress(address, billing.service, billing.secret), handle, concurrency=3, lease=5):
        await wait_until(lambda: has_states(database_urls, completed=40), within=30)

    assert {*handled} == {*rows}


async def test_consuming_without_the_permission_raises(hub: Hub, web: httpx2.AsyncClient, shop: HubAddress) -> None:
    reader = await register_oauth_service(hub, web, "reader", "events:read")
    async with AsyncClient(shop.url, reader.name, reader.secret) as client:
        with pytest.raises(PermissionDeniedError):
            await client.consume(print)


async def test_the_sync_client_consumes_in_threads_until_it_is_stopped(
    hub: Hub, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    seen: list[int] = []
    stop = threading.Event()
    together = threading.Barrier(3, stop.set)

    def handle(event: PulledEvent) -> object:
        seen.append(event.payload["n"])
        together.wait(15.0)
        if event.payload["n"] == 1:
            raise Dead("never")
        return None

    rows = await publish_many(shop, 3)

    def consume() -> None:
        with Client(billing.url, billing.service, billing.secret) as client:
            client.consume(handle, wait=0.1, concurrency=3, stop=stop)

    await asyncio.to_thread(consume)

    assert sorted(seen) == [0, 1, 2]
    assert await states(database_urls) == {"completed": 2, "failed": 1}
    assert (await load_event(hub, rows[1])).last_error == "never"


class CtrlC(threading.Event):
    """A stop that is never set: the thread that waits for it is interrupted when a handler runs."""

    def __init__(self, started: threading.Event) -> None:
        super().__init__()
        self.started = started

    def wait(self, timeout: float | None = None) -> bool:
        if self.started.wait(timeout):
            raise KeyboardInterrupt
        return False


async def test_an_interrupted_client_releases_its_events(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress
) -> None:
    started, ended = threading.Event(), threading.Event()

    def handle(_event: PulledEvent) -> object:
        started.set()
        return ended.wait(30.0)

    await publish_many(shop, 3)

    def consume() -> list[PulledEvent]:
        with Client(billing.url, billing.service, billing.secret) as client:
            with pytest.raises(KeyboardInterrupt):
                client.consume(handle, wait=0.1, grace=0.1, stop=CtrlC(started))
            ended.set()
            return client.claim()

    again = await asyncio.to_thread(consume)

    assert [event.retry_count for event in again] == [0, 0, 0]


async def test_the_sync_consumer_raises_its_error(hub: Hub, web: httpx2.AsyncClient, shop: HubAddress) -> None:
    reader = await register_oauth_service(hub, web, "reader", "events:read")

    def consume() -> None:
        with Client(shop.url, reader.name, reader.secret) as client:
            client.consume(print)

    with pytest.raises(PermissionDeniedError):
        await asyncio.to_thread(consume)


def raise_stop_iteration(_event: PulledEvent) -> object:
    return next(iter(()))


def retry_with_an_exception(_event: PulledEvent) -> None:
    raise Retry(ValueError("closed"))  # pyright: ignore[reportArgumentType] a likely mistake


def retry_with_a_timedelta(_event: PulledEvent) -> None:
    raise Retry("closed", delay=timedelta(minutes=5))  # pyright: ignore[reportArgumentType] a likely mistake


@pytest.mark.parametrize(
    ("handle", "error"),
    [
        (raise_stop_iteration, "StopIteration"),
        (retry_with_an_exception, "closed"),
        (retry_with_a_timedelta, "TypeError"),
    ],
)
async def test_an_odd_exception_of_a_handler_is_a_failed_attempt(
    hub: Hub, shop: HubAddress, billing: HubAddress, handle: Callable[[PulledEvent], object], error: str
) -> None:
    """It never keeps its slot and its lease."""
    [event_id] = await publish_many(shop)

    async def has_failed() -> bool:
        return bool((await load_event(hub, event_id)).last_error)

    async with run_consumer(billing, handle):
        await wait_until(has_failed)

    assert error in str((await load_event(hub, event_id)).last_error)


def test_a_sync_consumer_without_an_event_loop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as when the process has too many open files."""

    def fail_to_open() -> None:
        raise OSError("Too many open files")

    errors: list[BaseException] = []

    def consume() -> None:
        try:
            Client("http://127.0.0.1:1", "billing", "secret").consume(print)
        except OSError as error:
            errors.append(error)

    monkeypatch.setattr(asyncio, "new_event_loop", fail_to_open)
    monkeypatch.setattr(asyncio.events, "new_event_loop", fail_to_open)
    caller = threading.Thread(target=consume, daemon=True)
    caller.start()
    caller.join(10)

    assert [str(error) for error in errors] == ["Too many open files"]
