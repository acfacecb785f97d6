"""Somebody who never comes to the point is shown the door, and nobody else notices."""

import asyncio

import httpx2
import pytest

from pabal.hub import Hub
from pabal.web import endpoint, server

pytestmark = pytest.mark.anyio


async def speak(web: httpx2.AsyncClient, *said: bytes) -> bytes:
    """Say this, piece by piece, and hear everything until the hub hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.base_url.port)
    try:
        for piece in said:
            writer.write(piece)
            await asyncio.sleep(0)  # so that the hub's side may read it
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_head_without_end_is_refused(web: httpx2.AsyncClient) -> None:
    answer = await speak(web, b"GET /healthz HTTP/1.1\r\nhost: hub\r\nx-long: " + b"a" * 500_000)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert (await web.get("/healthz")).status_code == 200


async def test_a_body_that_comes_with_its_head_is_not_counted_as_head(web: httpx2.AsyncClient) -> None:
    body = b"a" * 200_000
    head = b"POST /v1/queue/events HTTP/1.1\r\nhost: hub\r\ncontent-length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", web.base_url.port)
    try:
        writer.write(head + body)  # in one breath: the hub reads more than a head's worth at once
        async with asyncio.timeout(10):
            answer = await reader.readline()
    finally:
        writer.close()

    assert answer.startswith(b"HTTP/1.1 401")


async def test_a_head_that_takes_too_long_is_not_waited_for(
    web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.1)

    assert await speak(web, b"GET /healthz HTTP/1.1\r\nhost:") == b""
    assert await speak(web, b"") == b""


async def test_a_slow_head_on_a_kept_connection_is_not_waited_for_either(
    web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.3)

    answer = await speak(web, b"GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\nGET /healthz HTTP/1.1\r\nhost:")

    assert answer.count(b"HTTP/1.1 200") == 1


async def test_a_body_that_does_not_come_is_not_waited_for(
    web: httpx2.AsyncClient, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT", 0.1)

    answer = await speak(
        web, b"POST /console/login HTTP/1.1\r\nhost: hub\r\nconnection: close\r\ncontent-length: 100\r\n\r\nname="
    )

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"did not arrive" in answer
