"""Responses on the wire: one write where that is possible, and the same bytes as in several."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from pabal.web.request import IndexedHeaders
from pabal.web.server.server import WebServer
from support.raw_http import exchange, get, statuses

pytestmark = pytest.mark.anyio

CLOSE = "connection: close"
CONTENT_TYPE = (b"content-type", b"text/plain")


class RecordingTransport:
    """Passes everything on to a transport, and keeps what is written."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@asynccontextmanager
async def serving(*messages: dict[str, Any]) -> AsyncGenerator[tuple[int, list[bytes]]]:
    """A server whose application sends these messages; yields its port and what it writes."""
    written: list[bytes] = []

    async def app(_scope: object, receive: Any, send: Any) -> None:
        cycle = receive.__self__
        cycle.transport = RecordingTransport(cycle.transport, written)
        for message in messages:
            await send(message)

    server = WebServer(
        uvicorn.Config(app, loop="none", ws="none", lifespan="off", log_config=None, access_log=False),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1], written
        finally:
            server.stop()
            await task


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [CONTENT_TYPE, *headers]}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def length(count: int) -> tuple[bytes, bytes]:
    return b"content-length", str(count).encode()


async def test_a_response_of_known_length_is_one_write() -> None:
    async with serving(start(length(5)), part(b"hello")) as (port, written):
        response = await exchange(port, get("/", CLOSE))
        assert written == [response]
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert {b"content-type: text/plain", b"content-length: 5", b"connection: close"} <= {*head.split(b"\r\n")}
    assert body == b"hello"


async def test_a_body_in_parts_follows_its_head() -> None:
    async with serving(start(length(10)), part(b"hello", more=True), part(b"again")) as (port, _):
        response = await exchange(port, get("/", CLOSE))
    assert response.endswith(b"\r\n\r\nhelloagain")


async def test_a_stream_starts_before_its_first_part() -> None:
    async with serving(start(), part(b"hello", more=True), part(b"")) as (port, written):
        response = await exchange(port, get("/", CLOSE))
        assert written[0].endswith(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in response
    assert response.endswith(b"5\r\nhello\r\n0\r\n\r\n")


async def test_a_response_to_head_has_no_body() -> None:
    async with serving(start(length(5)), part(b"hello")) as (port, _):
        response = await exchange(port, get("/", CLOSE).replace(b"GET", b"HEAD"))
    assert b"content-length: 5" in response
    assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("body", [b"hell", b"hello!"])
async def test_a_body_of_another_length_ends_the_connection(body: bytes) -> None:
    """A client that reads on would take the next response for the rest of this one."""
    async with serving(start(length(5)), part(body)) as (port, _):
        response = await exchange(port, get("/"))
    assert body not in response or len(body) < len(b"hello")
    assert statuses(response) in ([200], [])


@pytest.mark.parametrize(
    "header",
    [(b"x-name", b"value\r\nset-cookie: a=b"), (b"x-name\r\nset-cookie", b"a=b"), (b"content-type", b"a\r\nb: c")],
)
async def test_a_header_with_a_line_end_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async with serving(start(header, length(5)), part(b"hello")) as (port, _):
        response = await exchange(port, get("/", CLOSE))
    assert b"set-cookie" not in response
    assert statuses(response) == [500]


TOKEN = st.text("abcXYZ-", min_size=1, max_size=4)


@pytest.mark.unit
@given(st.lists(st.tuples(TOKEN.map(lambda name: name.lower().encode()), st.binary(max_size=5)), max_size=8), TOKEN)
def test_indexed_headers_find_the_same_as_a_list(raw: list[tuple[bytes, bytes]], name: str) -> None:
    headers, indexed = Headers(raw=raw), IndexedHeaders(raw)
    for key in [name, *headers]:
        assert indexed.get(key) == headers.get(key)
        assert (key in indexed) == (key in headers)
        assert indexed.getlist(key) == headers.getlist(key)
    assert dict(indexed) == dict(headers)
