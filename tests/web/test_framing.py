"""Requests that two HTTP servers could read differently are refused, so that none can be smuggled past a proxy."""

import httpx2
import pytest

from support.raw_http import edge_server, exchange, get, statuses

pytestmark = pytest.mark.anyio

POST = b"POST /body HTTP/1.1\r\nhost: hub\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: hub\r\n\r\n"


@pytest.mark.parametrize("path", ["/healthz", "/v1/queue/events", "/console/login", "/static/nothing", "/nothing"])
@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n", b"host: a\r\nHost: a\r\n"])
async def test_a_request_needs_exactly_one_host_header(web: httpx2.AsyncClient, path: str, hosts: bytes) -> None:
    assert web.base_url.port
    request = b"GET %s HTTP/1.1\r\n%sconnection: close\r\n\r\n" % (path.encode(), hosts)

    assert statuses(await exchange(web.base_url.port, request)) == [400]


async def test_http_1_0_needs_no_host_header_but_may_not_have_two() -> None:
    async with edge_server() as edge:
        without = await exchange(edge.port, b"GET / HTTP/1.0\r\n\r\n")
        doubled = await exchange(edge.port, b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n")

    assert statuses(without) == [200]
    assert statuses(doubled) == [400]


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ncontent-length: 5\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"content-length: 5, 5\r\n\r\n",
        b"content-length: +5\r\n\r\n",
        b"content-length: -5\r\n\r\n",
        b"content-length: 0x5\r\n\r\n",
        b"content-length: \r\n\r\n",
        b"content-length: 99999999999999999999999\r\n\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        b"transfer-encoding: chunked, identity\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n",
        b"transfer-encoding: \x0bchunked\r\n\r\n",
        b"transfer-encoding:\r\n chunked\r\n\r\n",
        b"x: a\r\n content-length: 5\r\n\r\n",
        b"x: a\nb: c\r\n\r\n",
        b"x: a\rb: c\r\n\r\n",
        b"x: a\0b\r\n\r\n",
        b": a\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"transfer-encoding: chunked\r\n\r\n0x5\r\n",
        b"transfer-encoding: chunked\r\n\r\n5;a\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-5\r\n",
        b"transfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
    ],
)
async def test_an_ambiguous_length_is_refused(head: bytes) -> None:
    async with edge_server() as edge:
        response = await exchange(edge.port, POST + head + b"hello" + SMUGGLED)

    assert statuses(response) == [400]
    assert "/smuggled" not in edge.handled


@pytest.mark.parametrize("coding", [b"identity", b"xchunked", b"gzip", b"gzip, chunked"])
async def test_an_unknown_transfer_encoding_is_refused_before_the_request_is_handled(coding: bytes) -> None:
    async with edge_server() as edge:
        response = await exchange(edge.port, POST + b"transfer-encoding: %s\r\n\r\n0\r\n\r\n" % coding + SMUGGLED)

    assert statuses(response) == [501]
    assert edge.handled == []


async def test_http_1_0_has_no_transfer_encoding() -> None:
    request = b"POST /body HTTP/1.0\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, request + SMUGGLED)) == [400]

    assert edge.handled == []


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/0.9"])
async def test_another_version_of_http_is_refused(version: str) -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, f"GET / {version}\r\nhost: hub\r\n\r\n".encode())) == [505]


@pytest.mark.parametrize("target", ["http://hub", "hub:443", "/\xff", "http://[::1", "?"])
async def test_a_malformed_target_is_refused(target: str) -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, get(target, "connection: close"))) == [400]


async def test_nothing_after_a_closing_request_is_handled() -> None:
    async with edge_server() as edge:
        assert statuses(await exchange(edge.port, get("/", "connection: close") + SMUGGLED)) == [200]

    assert edge.handled == ["/"]
