"""HTTP client: one POST, and whether it was sent, answered or neither."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from outside.fake_network import ALLOWED_ORIGINS
from pabal.core.errors import Invalid
from pabal.outside import http
from pabal.outside.dns import RESOLVER_THREADS
from pabal.outside.http import HttpClient, HttpResponse, NoResponse, NotSent, NotSentCause
from pabal.outside.ssrf import AllowedOrigins
from support.receiver import (
    Receiver,
    Responder,
    close_connection,
    close_early,
    hang,
    redirect_to,
    reset_connection,
    respond_with,
    run_receiver,
    send_raw,
    stop_reading,
)
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=10)
SHORT = timedelta(seconds=0.3)
MAX_SECONDS = 3.0


async def test_a_post_arrives_unchanged_and_returns_the_response(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = respond_with(201, b'{"ok":1}', {"X-Thing": "a"})

    response = await outside.post(remote.url, b"\x00body", {"content-type": "text/x"}, time_limit=LONG)

    assert response == HttpResponse(201, {"content-length": "8", "x-thing": "a"}, b'{"ok":1}')
    [request] = remote.requests
    assert (request.method, request.target, request.body) == ("POST", "/hook", b"\x00body")
    assert (
        request.headers.items()
        >= {
            "host": f"127.0.0.1:{remote.port}",
            "content-type": "text/x",
            "content-length": "5",
            "accept-encoding": "identity",
        }.items()
    )


async def test_connections_are_kept_and_cookies_are_not(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = respond_with(headers={"set-cookie": "a=b; path=/"})

    for _ in range(5):
        await outside.post(remote.url, b"", {}, time_limit=LONG)

    assert [request.connection for request in remote.requests] == [1] * 5
    assert all("cookie" not in request.headers for request in remote.requests)


async def test_a_connection_closed_by_the_server_is_replaced(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = respond_with(keep=False)
    await outside.post(remote.url, b"", {}, time_limit=LONG)
    await wait_until(lambda: remote.open == 0)

    assert isinstance(await outside.post(remote.url, b"", {}, time_limit=LONG), HttpResponse)
    assert remote.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(outside: HttpClient, remote: Receiver, status: int) -> None:
    async with run_receiver() as other:
        remote.responder = redirect_to(other.url, status)

        response = await outside.post(remote.url, b"", {}, time_limit=LONG)

        assert isinstance(response, HttpResponse)
        assert response.status == status
        assert (len(remote.requests), other.connections) == (1, 0)


async def test_proxies_of_the_environment_are_ignored(remote: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")

        async with HttpClient(ALLOWED_ORIGINS) as outside:
            assert isinstance(await outside.post(remote.url, b"", {}, time_limit=LONG), HttpResponse)

        assert (len(remote.requests), proxy.connections) == (1, 0)


async def test_slow_lookups_of_one_client_do_not_block_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, release, getaddrinfo = Counter[str](), threading.Event(), socket.getaddrinfo

    def slow_getaddrinfo(host: str, port: int, **options: Any) -> Any:
        lookups[host.rpartition(".")[2]] += 1
        if host.endswith(".silent"):
            release.wait()
            raise socket.gaierror
        return getaddrinfo(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow_getaddrinfo)
    async with HttpClient(AllowedOrigins()) as first, HttpClient(AllowedOrigins.of(["http://localhost"])) as second:
        waiting = [
            asyncio.create_task(first.check_url(f"https://a{number}.silent")) for number in range(2 * RESOLVER_THREADS)
        ]
        try:
            await wait_until(lambda: lookups["silent"] == RESOLVER_THREADS)
            async with asyncio.timeout(15):
                destination = await second.check_url("http://localhost:1")
        finally:
            release.set()
            results = await asyncio.gather(*waiting, return_exceptions=True)

    assert (destination.host, lookups["localhost"]) == ("localhost", 1)
    assert {type(result) for result in results} == {Invalid}


@pytest.mark.parametrize(
    ("responder", "error"),
    [
        (hang, "no response within 0.3 s"),
        (stop_reading, "no response within 0.3 s"),
        (close_connection, "the response is empty or not valid HTTP"),
        (send_raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "the response is empty or not valid HTTP"),
        (send_raw(b"HTTP/1.1 200 OK\r\nhalf-a-hea"), "the response is empty or not valid HTTP"),
        (send_raw(b"HTTP/1.1 100 Continue\r\n\r\n"), "the response is empty or not valid HTTP"),
        (send_raw(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000), "the response is empty or not valid HTTP"),
        (reset_connection, "the connection was lost"),
        (close_early, None),
    ],
    ids=["hangs", "deaf", "closes", "ssh", "half a head", "only 100", "endless head", "resets", "closes early"],
)
async def test_a_sent_request_without_a_valid_response_is_unknown(
    outside: HttpClient, remote: Receiver, responder: Responder, error: str | None
) -> None:
    """Closing at the first byte leaves data unread, so the client sees a close or a reset."""
    remote.responder = responder
    started = time.monotonic()

    response = await outside.post(
        remote.url, bytes(8 * 1024 * 1024), {}, time_limit=SHORT if responder in {hang, stop_reading} else LONG
    )

    assert isinstance(response, NoResponse)
    assert error is None or response.error == error
    assert time.monotonic() - started < MAX_SECONDS


async def closed_port(_remote: Receiver) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}/"


async def behind_tls(remote: Receiver) -> str:
    remote.responder = hang
    return f"https://127.0.0.1:{remote.port}/"


async def forbidden_address(remote: Receiver) -> str:
    return f"http://127.0.0.2:{remote.port}/"


async def without_address(remote: Receiver) -> str:
    return f"http://hooks.house:{remote.port}/"


@pytest.mark.parametrize(
    ("make_url", "error", "cause"),
    [
        (closed_port, "connection failed", NotSentCause.RECEIVER),
        (behind_tls, "no response within 0.3 s", NotSentCause.RECEIVER),
        (forbidden_address, "url: does not begin with https://", NotSentCause.URL),
        (without_address, "the host does not resolve", NotSentCause.RECEIVER),
    ],
)
async def test_a_failed_connection_is_not_sent(
    remote: Receiver, make_url: Callable[[Receiver], Awaitable[str]], error: str, cause: NotSentCause
) -> None:
    async def empty(_host: str, _port: int) -> list[str]:
        return []

    async with HttpClient(ALLOWED_ORIGINS, lookup=empty) as outside:
        response = await outside.post(await make_url(remote), b"", {}, time_limit=SHORT)

    assert response == NotSent(error, cause)
    assert remote.requests == []


async def test_a_lookup_that_hangs_is_not_sent() -> None:
    async def lost(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with HttpClient(ALLOWED_ORIGINS, lookup=lost) as outside:
        assert isinstance(await outside.post("http://hooks.house/", b"", {}, time_limit=SHORT), NotSent)


async def test_a_header_with_a_line_break_is_not_sent(outside: HttpClient, remote: Receiver) -> None:
    response = await outside.post(remote.url, b"", {"x": "a\r\nx-evil: b"}, time_limit=LONG)

    assert response == NotSent("the request headers are not valid HTTP", NotSentCause.REQUEST)
    assert isinstance(await outside.post(remote.url, b"", {}, time_limit=LONG), HttpResponse)
    assert ["x-evil" in request.headers for request in remote.requests] == [False]


async def test_a_timeout_while_waiting_for_a_connection_is_not_sent(
    remote: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    remote.responder = hang
    async with HttpClient(ALLOWED_ORIGINS) as outside, asyncio.TaskGroup() as tasks:
        holder = tasks.create_task(outside.post(remote.url, b"first", {}, time_limit=LONG))
        await remote.wait_for_requests(1)

        assert isinstance(await outside.post(remote.url, b"second", {}, time_limit=SHORT), NotSent)
        holder.cancel()

    assert [request.body for request in remote.requests] == [b"first"]


async def test_a_cancelled_call_closes_its_connection(outside: HttpClient, remote: Receiver) -> None:
    remote.responder = hang
    caller = asyncio.create_task(outside.post(remote.url, b"", {}, time_limit=LONG))
    await remote.wait_for_requests(1)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await wait_until(lambda: remote.open == 0)


async def test_closing_the_client_closes_kept_connections(remote: Receiver) -> None:
    async with HttpClient(ALLOWED_ORIGINS) as outside:
        await outside.post(remote.url, b"", {}, time_limit=LONG)
        assert remote.open == 1

    await wait_until(lambda: remote.open == 0)
