"""A hub in a bad mood: busy, slow, broken, or not a hub at all."""

import asyncio
import json
from collections.abc import AsyncGenerator
from urllib.parse import parse_qs
from uuid import uuid4

import pytest

from client.ways import Connect, Way
from pabal.client import HubUnavailableError
from support.receiver import Mood, Receiver, answers, hangs, receiver, resets, slow

pytestmark = pytest.mark.anyio

PUBLISHED = answers(
    202, json.dumps({"id": str(uuid4()), "status": "pending", "created_at": "2025-01-01T00:00:00Z"}).encode()
)


def tokens(life: int = 3600, refresh: str | None = None) -> Mood:
    return answers(200, json.dumps({"access_token": "a", "expires_in": life, "refresh_token": refresh}).encode())


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        one.mood = PUBLISHED
        yield one


@pytest.fixture
def way(there: Receiver) -> Way:
    return Way(f"http://127.0.0.1:{there.port}", "shop", "pbs_secret")


async def test_a_busy_hub_is_asked_again_with_the_same_event(connect: Connect, there: Receiver, way: Way) -> None:
    busy = answers(503, headers={"retry-after": "0"})
    there.script.extend([busy, tokens(), busy, answers(429, headers={"retry-after": "0"}), PUBLISHED])
    async with connect(way) as client:
        await client.publish("order.placed", {"n": 1})

    bodies = {request.body for request in there.requests if request.target == "/v1/queue/events"}
    assert [request.target for request in there.requests] == ["/oauth/token"] * 2 + ["/v1/queue/events"] * 3
    assert len(bodies) == 1
    assert json.loads(bodies.pop())["idempotency_key"]


async def test_a_hub_that_says_nothing_is_left_after_a_while(connect: Connect, there: Receiver, way: Way) -> None:
    there.script.extend([tokens(), hangs, PUBLISHED])
    async with connect(way, timeout=0.5) as client:  # the token comes sooner even on a busy machine
        await client.publish("order.placed")

    assert len({request.body for request in there.requests[1:]}) == 1
    assert len(there.requests) == 3


async def test_a_long_poll_is_given_its_time(connect: Connect, there: Receiver, way: Way) -> None:
    release = asyncio.Event()
    there.script.extend([tokens(), slow(release, answers(200, b'{"events": []}'))])
    async with connect(way, timeout=0.3) as client:
        looking = asyncio.create_task(client.claim(wait=20.0))
        await there.received(2)
        with pytest.raises(TimeoutError):  # much longer than any other call may take, and it still waits
            async with asyncio.timeout(1):
                await asyncio.shield(looking)
        release.set()

        assert await looking == []
    assert json.loads(there.requests[1].body) == {"limit": 10, "wait": 20_000, "lease_seconds": 30}


async def test_calls_do_not_wait_for_each_other(connect: Connect, there: Receiver, way: Way) -> None:
    release = asyncio.Event()
    there.script.append(tokens())
    there.mood = slow(release, PUBLISHED)
    async with connect(way) as client:
        publishing = [asyncio.create_task(client.publish("order.placed")) for _ in range(4)]
        await there.received(5)
        release.set()
        await asyncio.gather(*publishing)

    assert [request.target for request in there.requests].count("/oauth/token") == 1


async def test_a_token_that_ends_is_refreshed(connect: Connect, there: Receiver, way: Way) -> None:
    there.script.extend([tokens(0, "pbr_1"), PUBLISHED, tokens(3600, "pbr_2"), PUBLISHED, PUBLISHED])
    async with connect(way) as client:
        for _ in range(3):
            await client.publish("order.placed")

    forms = [parse_qs(each.body.decode()) for each in there.requests if each.target == "/oauth/token"]
    assert forms == [
        {"grant_type": ["client_credentials"]},
        {"grant_type": ["refresh_token"], "refresh_token": ["pbr_1"]},
    ]


@pytest.mark.parametrize("mood", [resets, answers(503), answers(400, b'{"error": "invalid_grant"}')])
async def test_a_refresh_token_is_shown_once_whatever_comes_of_it(
    connect: Connect, there: Receiver, way: Way, mood: Mood
) -> None:
    there.script.extend([tokens(0, "pbr_1"), PUBLISHED, mood, tokens(3600, "pbr_2"), PUBLISHED])
    async with connect(way) as client:
        for _ in range(2):
            await client.publish("order.placed")

    forms = [parse_qs(each.body.decode()) for each in there.requests if each.target == "/oauth/token"]
    assert [form["grant_type"] for form in forms] == [["client_credentials"], ["refresh_token"], ["client_credentials"]]


async def test_a_token_that_is_refused_again_is_not_asked_for_for_ever(
    connect: Connect, there: Receiver, way: Way
) -> None:
    refused = answers(401, b'{"code": "invalid_token", "detail": "no"}')
    there.script.extend([tokens(), refused, tokens(), refused])
    async with connect(way) as client:
        with pytest.raises(Exception, match="401 invalid_token"):
            await client.publish("order.placed")

    assert len(there.requests) == 4


@pytest.mark.parametrize("body", [b"<html>Welcome", b"[]", b"\xff", b"{}"])
async def test_somebody_who_is_no_hub_is_found_out(connect: Connect, there: Receiver, way: Way, body: bytes) -> None:
    there.script.extend([tokens(), answers(200, body)])
    async with connect(way) as client:
        with pytest.raises(HubUnavailableError, match="not a hub's"):
            await client.publish("order.placed")


async def test_a_body_is_never_heavier_than_a_hub_takes(connect: Connect, there: Receiver, way: Way) -> None:
    three = [{"status": 202, "id": str(uuid4())}] * 3
    there.script.append(tokens())
    there.mood = answers(200, json.dumps({"results": three}).encode())
    async with connect(way) as client:
        await client.publish_many([{"event_type": "a.b", "payload": {"text": "x" * 300_000}}] * 9)

    assert len(there.requests) == 4
    assert max(len(request.body) for request in there.requests) < 1_048_576


async def test_a_batch_that_is_answered_in_part_is_not_believed(connect: Connect, there: Receiver, way: Way) -> None:
    there.script.extend([tokens(), answers(200, b'{"results": []}')])
    async with connect(way) as client:
        with pytest.raises(HubUnavailableError, match="1 events, and an answer about 0"):
            await client.publish_many([{"event_type": "a.b"}])


async def test_a_redirect_is_not_followed_with_a_token(connect: Connect, there: Receiver, way: Way) -> None:
    there.script.extend([tokens(), answers(307, headers={"location": "/elsewhere"})])
    async with connect(way) as client:
        with pytest.raises(Exception, match="307 refused"):
            await client.publish("order.placed")

    assert [request.target for request in there.requests] == ["/oauth/token", "/v1/queue/events"]
