"""Clients with a faulty hub: busy, slow, broken, or another server."""

import asyncio
import json
from collections.abc import AsyncGenerator
from urllib.parse import parse_qs
from uuid import uuid4

import pytest

from client.connections import Connect, HubAddress
from pabal_client import HubUnavailableError
from support.receiver import Receiver, Responder, hang, reset_connection, respond_after, respond_with, run_receiver

pytestmark = pytest.mark.anyio

PUBLISHED = respond_with(
    202, json.dumps({"id": str(uuid4()), "status": "pending", "created_at": "2025-01-01T00:00:00Z"}).encode()
)


def tokens(life: int = 3600, refresh: str | None = None) -> Responder:
    return respond_with(200, json.dumps({"access_token": "a", "expires_in": life, "refresh_token": refresh}).encode())


@pytest.fixture
async def server() -> AsyncGenerator[Receiver]:
    async with run_receiver() as fake:
        fake.responder = PUBLISHED
        yield fake


@pytest.fixture
def address(server: Receiver) -> HubAddress:
    return HubAddress(f"http://127.0.0.1:{server.port}", "shop", "pbs_secret")


async def test_a_retry_sends_the_same_event(connect: Connect, server: Receiver, address: HubAddress) -> None:
    busy = respond_with(503, headers={"retry-after": "0"})
    server.script.extend([busy, tokens(), busy, respond_with(429, headers={"retry-after": "0"}), PUBLISHED])
    async with connect(address) as client:
        await client.publish("order.placed", {"n": 1})

    bodies = {request.body for request in server.requests if request.target == "/v1/queue/events"}
    assert [request.target for request in server.requests] == ["/oauth/token"] * 2 + ["/v1/queue/events"] * 3
    assert len(bodies) == 1
    assert json.loads(bodies.pop())["idempotency_key"]


async def test_a_request_without_a_response_times_out(connect: Connect, server: Receiver, address: HubAddress) -> None:
    server.script.extend([tokens(), hang, PUBLISHED])
    async with connect(address, timeout=0.5) as client:  # the token comes sooner even on a busy machine
        await client.publish("order.placed")

    assert len({request.body for request in server.requests[1:]}) == 1
    assert len(server.requests) == 3


async def test_a_long_poll_extends_the_request_timeout(connect: Connect, server: Receiver, address: HubAddress) -> None:
    release = asyncio.Event()
    server.script.extend([tokens(), respond_after(release, respond_with(200, b'{"events": []}'))])
    async with connect(address, timeout=0.3) as client:
        looking = asyncio.create_task(client.claim(wait=20.0))
        await server.wait_for_requests(2)
        with pytest.raises(TimeoutError):  # much longer than any other call may take, and it still waits
            async with asyncio.timeout(1):
                await asyncio.shield(looking)
        release.set()

        assert await looking == []
    assert json.loads(server.requests[1].body) == {"limit": 10, "wait": 20_000, "lease_seconds": 30}


async def test_calls_do_not_wait_for_each_other(connect: Connect, server: Receiver, address: HubAddress) -> None:
    release = asyncio.Event()
    server.script.append(tokens())
    server.responder = respond_after(release, respond_with(200, b"{}"))
    async with connect(address) as client:
        reading = [asyncio.create_task(client.get_event(uuid4())) for _ in range(4)]
        await server.wait_for_requests(5)
        release.set()
        await asyncio.gather(*reading)

    assert [request.target for request in server.requests].count("/oauth/token") == 1


async def test_an_expiring_token_is_refreshed(connect: Connect, server: Receiver, address: HubAddress) -> None:
    server.script.extend([tokens(0, "pbr_1"), PUBLISHED, tokens(3600, "pbr_2"), PUBLISHED, PUBLISHED])
    async with connect(address) as client:
        for _ in range(3):
            await client.publish("order.placed")

    forms = [parse_qs(sent.body.decode()) for sent in server.requests if sent.target == "/oauth/token"]
    assert forms == [
        {"grant_type": ["client_credentials"]},
        {"grant_type": ["refresh_token"], "refresh_token": ["pbr_1"]},
    ]


@pytest.mark.parametrize(
    "responder", [reset_connection, respond_with(503), respond_with(400, b'{"error": "invalid_grant"}')]
)
async def test_a_refresh_token_is_sent_only_once(
    connect: Connect, server: Receiver, address: HubAddress, responder: Responder
) -> None:
    server.script.extend([tokens(0, "pbr_1"), PUBLISHED, responder, tokens(3600, "pbr_2"), PUBLISHED])
    async with connect(address) as client:
        for _ in range(2):
            await client.publish("order.placed")

    forms = [parse_qs(sent.body.decode()) for sent in server.requests if sent.target == "/oauth/token"]
    assert [form["grant_type"] for form in forms] == [["client_credentials"], ["refresh_token"], ["client_credentials"]]


async def test_a_token_that_is_rejected_twice_raises(connect: Connect, server: Receiver, address: HubAddress) -> None:
    refused = respond_with(401, b'{"code": "invalid_token", "detail": "no"}')
    server.script.extend([tokens(), refused, tokens(), refused])
    async with connect(address) as client:
        with pytest.raises(Exception, match="401 invalid_token"):
            await client.publish("order.placed")

    assert len(server.requests) == 4


@pytest.mark.parametrize("body", [b"<html>Welcome", b"[]", b"\xff", b"{}"])
async def test_a_response_that_is_not_from_a_hub_is_an_error(
    connect: Connect, server: Receiver, address: HubAddress, body: bytes
) -> None:
    server.script.extend([tokens(), respond_with(200, body)])
    async with connect(address) as client:
        with pytest.raises(HubUnavailableError, match="not from a hub"):
            await client.publish("order.placed")


async def test_a_body_never_exceeds_the_limit_of_the_hub(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    three = [{"status": 202, "id": str(uuid4())}] * 3
    server.script.append(tokens())
    server.responder = respond_with(200, json.dumps({"results": three}).encode())
    async with connect(address) as client:
        await client.publish_many([{"event_type": "a.b", "payload": {"text": "x" * 300_000}}] * 9)

    assert len(server.requests) == 4
    assert max(len(request.body) for request in server.requests) < 1_048_576


async def test_a_batch_response_with_missing_results_is_an_error(
    connect: Connect, server: Receiver, address: HubAddress
) -> None:
    server.script.extend([tokens(), respond_with(200, b'{"results": []}')])
    async with connect(address) as client:
        with pytest.raises(HubUnavailableError, match="sent 1 events, got 0 results"):
            await client.publish_many([{"event_type": "a.b"}])


async def test_a_redirect_is_not_followed_with_a_token(connect: Connect, server: Receiver, address: HubAddress) -> None:
    server.script.extend([tokens(), respond_with(307, headers={"location": "/elsewhere"})])
    async with connect(address) as client:
        with pytest.raises(Exception, match="307 refused"):
            await client.publish("order.placed")

    assert [request.target for request in server.requests] == ["/oauth/token", "/v1/queue/events"]
