"""Concurrent publishes share requests, and each caller gets what it would get alone."""

import asyncio
import copy
import json
import pickle
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from client.connections import AwaitableClient, Connect, HubAddress
from conftest import connection
from pabal.hub import DatabaseUrls
from pabal_client import (
    AsyncClient,
    ConflictError,
    HubUnavailableError,
    RateLimitError,
    ValidationFailedError,
    gathering,
)
from pabal_client.gathering import MAX_GATHERED, MAX_REQUESTS, MAX_SLOW_REQUESTS, PublishQueue, QueuedPublish
from support.receiver import Receiver, Responder, hang, respond_after, respond_with, run_receiver
from support.wait import wait_until

pytestmark = pytest.mark.anyio

HOUR = 3600.0
HANG_TIMEOUT = 10.0
"""Seconds after which a publish counts as hanging."""
AT = "2025-01-01T00:00:00Z"
TOKEN = respond_with(200, b'{"access_token": "a", "expires_in": 3600}')
PUBLISHED = respond_with(202, json.dumps({"id": str(uuid4()), "status": "pending", "created_at": AT}).encode())


@pytest.fixture
async def server() -> AsyncGenerator[Receiver]:
    async with run_receiver() as fake:
        fake.script.append(TOKEN)
        fake.responder = PUBLISHED
        yield fake


@pytest.fixture
def address(server: Receiver) -> HubAddress:
    return HubAddress(f"http://127.0.0.1:{server.port}", "shop", "pbs_secret")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request counts as slow."""
    monkeypatch.setattr(gathering, "SLOW_REQUEST", HOUR)


def batch_of(*items: dict[str, Any]) -> Responder:
    return respond_with(200, json.dumps({"results": items}).encode())


def recorded() -> dict[str, Any]:
    return {"status": 202, "id": str(uuid4()), "event_status": "pending", "created_at": AT}


def waiting_count(client: AsyncClient | AwaitableClient) -> int:
    owner: Any = client.client if isinstance(client, AwaitableClient) else client
    return len(owner._gatherer._queue._waiting)


class Occupied:
    """As many requests as may run, which the server answers when told: the first, then the others."""

    def __init__(self) -> None:
        self._first, self._others = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, server: Receiver, client: Any) -> None:
        for number in range(MAX_REQUESTS):
            server.script.append(respond_after(self._others if number else self._first, PUBLISHED))
            self._tasks.append(asyncio.create_task(client.publish("a.first")))
            await server.wait_for_requests(2 + number)

    def is_done(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def finish_first(self) -> None:
        self._first.set()
        await self._tasks[0]

    async def finish(self) -> None:
        self._first.set()
        self._others.set()
        await asyncio.gather(*self._tasks)


async def occupy(server: Receiver, client: Any) -> Occupied:
    occupied = Occupied()
    await occupied.start(server, client)
    return occupied


async def queue(client: Any, count: int) -> list["asyncio.Task[Any]"]:
    """Publish events that wait for the running requests, in this order."""
    tasks: list[asyncio.Task[Any]] = []
    for number in range(count):
        tasks.append(asyncio.create_task(client.publish("a.b", {"n": number})))
        await wait_until(lambda: waiting_count(client) == len(tasks))
    return tasks


async def test_every_caller_gets_its_own_event(connect: Connect, shop: HubAddress, database_urls: DatabaseUrls) -> None:
    async with connect(shop) as client:
        events = await asyncio.gather(*(client.publish("a.b", {"n": n}, idempotency_key=f"k{n}") for n in range(100)))
        again = await asyncio.gather(*(client.publish("a.b", {"n": n}, idempotency_key=f"k{n}") for n in range(100)))

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select id, status, created_at, payload from event_queue where event_type = 'a.b'")
    ids = {json.loads(row["payload"])["n"]: row["id"] for row in rows}
    created = {row["id"]: (row["status"], row["created_at"]) for row in rows}
    assert [event.id for event in events] == [ids[n] for n in range(100)]
    assert [(event.status, event.created_at) for event in events] == [created[event.id] for event in events]
    assert again == events


@pytest.mark.usefixtures("patient")
async def test_events_that_wait_for_a_request_go_together(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    items = [recorded() for _ in range(3)]
    async with connect(address) as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.responder = batch_of(*items)
        await occupied.finish_first()
        results = await asyncio.gather(*waiting)
        await occupied.finish()

    [sent] = [request for request in server.requests if request.target == "/v1/queue/events/batch"]
    assert [event["payload"] for event in json.loads(sent.body)["events"]] == [{"n": n} for n in range(3)]
    assert [str(result.id) for result in results] == [item["id"] for item in items]


async def test_a_slow_request_does_not_hold_up_other_events(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    async with connect(address) as client:
        occupied = await occupy(server, client)
        other = await client.publish("a.b")
        assert not occupied.is_done()
        await occupied.finish()

    assert other.status == "pending"


@pytest.mark.usefixtures("patient")
async def test_a_refused_event_fails_alone_and_as_it_would_in_a_request_of_its_own(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    mistakes = [{"field": "priority", "message": "is too large"}]
    refusal = {"code": "invalid", "detail": "priority: is too large", "mistakes": mistakes}
    async with connect(address) as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.script.append(batch_of(recorded(), {"status": 400, "code": "invalid"}, recorded()))
        server.responder = respond_with(400, json.dumps(refusal).encode())
        await occupied.finish_first()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await occupied.finish()

    assert [type(result).__name__ for result in results] == [
        "PublishedEvent",
        "ValidationFailedError",
        "PublishedEvent",
    ]
    assert isinstance(results[1], ValidationFailedError)
    assert results[1].mistakes == mistakes


async def test_each_error_of_concurrent_events_reaches_its_own_caller(connect: Connect, shop: HubAddress) -> None:
    async with connect(shop) as client:
        await client.publish("a.b", {"n": 0}, idempotency_key="taken")
        results: list[Any] = await asyncio.gather(
            *(client.publish("a.b", {"n": n}) for n in range(20)),
            client.publish("a.b", {"n": 1}, idempotency_key="taken"),
            client.publish("a.b", priority=11),
            *(client.publish("a.b", {"n": n}) for n in range(20)),
            return_exceptions=True,
        )

    assert {n: type(result) for n, result in enumerate(results) if isinstance(result, Exception)} == {
        20: ConflictError,
        21: ValidationFailedError,
    }
    assert [mistake["field"] for mistake in results[21].mistakes] == ["priority"]
    assert len({result.id for n, result in enumerate(results) if n not in {20, 21}}) == 40


@pytest.mark.usefixtures("patient")
async def test_an_error_of_the_whole_request_is_raised_to_each_caller_as_its_own_exception(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    async with connect(address) as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.responder = respond_with(429, b'{"code": "too_many", "detail": "slowly"}', {"retry-after": "3600"})
        await occupied.finish_first()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await occupied.finish()

    errors = [result for result in results if isinstance(result, RateLimitError)]
    assert len({id(error) for error in errors}) == 3
    assert [(error.retry_after, error.code) for error in errors] == [(3600.0, "too_many")] * 3
    assert len(server.requests) == 1 + MAX_REQUESTS + 1


@pytest.mark.usefixtures("patient")
async def test_an_error_of_a_part_does_not_reach_the_callers_of_published_events(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    """The hub takes smaller requests than the client sends, and then limits the rate."""
    async with connect(address) as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 4)
        server.script.append(respond_with(413, b'{"code": "too_large", "detail": "smaller"}'))
        server.script.append(batch_of(recorded(), recorded()))
        server.responder = respond_with(429, b'{"code": "too_many", "detail": "slowly"}', {"retry-after": "3600"})
        await occupied.finish_first()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await occupied.finish()

    assert [type(result).__name__ for result in results] == ["PublishedEvent"] * 2 + ["RateLimitError"] * 2
    assert len(server.requests) == 1 + MAX_REQUESTS + 3


@pytest.mark.usefixtures("patient")
async def test_events_of_a_cancelled_sender_are_sent_by_another_caller(server: Receiver, address: HubAddress) -> None:
    async with address.client() as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.responder = hang
        await occupied.finish_first()
        [*_, lost] = await server.wait_for_requests(4)
        server.responder = batch_of(recorded(), recorded())
        waiting[0].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await occupied.finish()

    drafts = json.loads(lost.body)["events"]
    assert json.loads(server.requests[-1].body)["events"] == drafts[1:], "not the same events and keys"
    assert len(drafts) == 3
    assert isinstance(results[0], asyncio.CancelledError)
    assert not any(isinstance(result, BaseException) for result in results[1:])


@pytest.mark.usefixtures("patient")
async def test_an_event_whose_caller_gave_up_is_not_left_to_it_by_a_cancelled_sender(
    server: Receiver, address: HubAddress
) -> None:
    async with address.client() as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.responder = hang
        await occupied.finish_first()
        await server.wait_for_requests(4)
        server.responder = PUBLISHED
        for task in (waiting[1], waiting[0]):
            task.cancel()
            await asyncio.wait([task])
        async with asyncio.timeout(HANG_TIMEOUT):
            result = await waiting[2]
        await occupied.finish()

    assert result.status == "pending"
    assert client._gatherer._queue._requests == 0, "a request that no caller sends is counted"  # pyright: ignore[reportPrivateUsage]


@pytest.mark.usefixtures("patient")
async def test_an_event_whose_caller_gave_up_while_it_waited_is_not_sent(server: Receiver, address: HubAddress) -> None:
    async with address.client() as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 2)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        await occupied.finish_first()
        await waiting[1]
        await occupied.finish()

    assert [json.loads(request.body)["payload"] for request in server.requests[3:]] == [{"n": 1}]


@pytest.mark.usefixtures("patient")
async def test_an_older_hub_that_reports_only_ids_is_asked_for_each_event(
    server: Receiver, address: HubAddress
) -> None:
    async with address.client() as client:
        occupied = await occupy(server, client)
        waiting = await queue(client, 3)
        server.script.append(batch_of(*({"status": 202, "id": str(uuid4())} for _ in range(3))))
        await occupied.finish_first()
        results = await asyncio.gather(*waiting)
        await occupied.finish()

    assert [result.status for result in results] == ["pending"] * 3


def test_a_request_carries_no_more_than_fits() -> None:
    line = PublishQueue()
    publishes = [
        QueuedPublish(msgspec.Raw(b'{"text": "%s"}' % (b"x" * 300_000)), lambda: None) for _ in range(MAX_REQUESTS + 5)
    ]
    for publish in publishes:
        line.join(publish)

    assert [publish.is_sender for publish in publishes] == [True] * MAX_REQUESTS + [False] * 5
    assert line.take_batch(publishes[0]) == [publishes[0], *publishes[MAX_REQUESTS : MAX_REQUESTS + 2]]

    small = PublishQueue()
    many = [QueuedPublish(msgspec.Raw(b"{}"), lambda: None) for _ in range(MAX_REQUESTS + MAX_GATHERED + 5)]
    for publish in many:
        small.join(publish)
    assert len(small.take_batch(many[0])) == MAX_GATHERED


def test_a_slow_hub_gets_a_bounded_number_of_requests() -> None:
    line = PublishQueue()
    publishes = [QueuedPublish(msgspec.Raw(b"{}"), lambda: None) for _ in range(MAX_SLOW_REQUESTS + 3)]
    for publish in publishes:
        line.join(publish)
        line.start_beside()

    assert sum(publish.is_sender for publish in publishes) == MAX_SLOW_REQUESTS
    assert line.head is publishes[MAX_SLOW_REQUESTS]


def pickled(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("duplicate", [copy.copy, pickled])
def test_an_error_can_be_copied(duplicate: Any) -> None:
    limited = RateLimitError(429, "too_many", "slowly", [{"field": "a"}])
    limited.retry_after = 7.0
    away = HubUnavailableError("no response", 3.0)

    same, same_away = duplicate(limited), duplicate(away)

    assert (same.status, same.code, same.detail, same.mistakes, same.retry_after) == (
        429,
        "too_many",
        "slowly",
        [{"field": "a"}],
        7.0,
    )
    assert (str(same), str(same_away), same_away.retry_after) == (str(limited), "no response", 3.0)
