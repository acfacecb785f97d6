"""Slow and oversized requests are cut off without affecting other clients."""

import asyncio

import httpx2
import pytest

from pabal.hub import Hub
from pabal.web import endpoint, server

pytestmark = pytest.mark.anyio


async def send_raw(web: httpx2.AsyncClient, *pieces: bytes) -> bytes:
    """Send the pieces and read until the hub closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.base_url.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)  # let the server read it
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_an_endless_head_is_rejected(web: httpx2.AsyncClient) -> None:
    response = await send_raw(web, b"GET /healthz HTTP/1.1\r\nhost: hub\r\nx-long: " + b"a" * 500_000)

    assert response == b"" or response.startswith(b"HTTP/1.1 400")
    assert (await web.get("/healthz")).status_code == 200


async def test_a_body_sent_with_its_head_does_not_count_as_head(web: httpx2.AsyncClient) -> None:
    body = b"a" * 200_000
    head = b"POST /v1/queue/events HTTP/1.1\r\nhost: hub\r\ncontent-length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", web.base_url.port)
    try:
        writer.write(head + body)  # in one write, so that the server reads both at once
        async with asyncio.timeout(10):
            response = await reader.readline()
    finally:
        writer.close()

    assert response.startswith(b"HTTP/1.1 401")


async def test_a_slow_head_times_out(web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.1)

    assert await send_raw(web, b"GET /healthz HTTP/1.1\r\nhost:") == b""
    assert await send_raw(web, b"") == b""


async def test_a_slow_head_on_a_kept_alive_connection_times_out(
    web: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.3)

    response = await send_raw(web, b"GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\nGET /healthz HTTP/1.1\r\nhost:")

    assert response.count(b"HTTP/1.1 200") == 1


async def test_a_missing_body_times_out(web: httpx2.AsyncClient, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT", 0.1)

    response = await send_raw(
        web, b"POST /console/login HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\nname="
    )

    assert response.startswith(b"HTTP/1.1 400")
    assert b"did not arrive" in response
