"""Malformed HTTP gets a client error or a closed connection, never a server error, and the hub goes on."""

import asyncio
import random
from itertools import count

import httpx2
import pytest

from pabal.hub import Hub
from support.raw_http import RawClient, raw_client, statuses
from support.server import running_web_server
from support.wait import wait_until

pytestmark = pytest.mark.anyio

CASES = 400
CONCURRENT = 40
ALLOWED_SERVER_ERRORS = {501, 505}
SEEDS = (
    b"GET /healthz HTTP/1.1\r\nhost: hub\r\n\r\n",
    b"GET /console/login HTTP/1.1\r\nhost: hub\r\ncookie: pabal_session=a; b=c\r\naccept-language: en\r\n\r\n",
    b"POST /v1/queue/events HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer a.b.c\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /kakao/webhook HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    b"POST /oauth/token HTTP/1.1\r\nhost: hub\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\na=",
    b"GET /v1/events?cursor=%00%ff&limit=-1 HTTP/1.1\r\nhost: hub\r\nx-request-id: \xe2\x98\x83\r\n\r\n",
    b"OPTIONS * HTTP/1.0\r\n\r\n",
)
TOKENS = (
    *(bytes([byte]) for byte in b'\r\n\0 \t:;,%\\"\xff'),
    *(b"\r\n", b"%00", b"%2e%2e", b"\xe2\x98\x83", b"HTTP/1.1", b"HTTP/9.9", b"0\r\n\r\n", b"ffffffff\r\n"),
    *(b"content-length: 1\r\n", b"content-length: 9999999999\r\n", b"transfer-encoding: chunked\r\n", b"host: b\r\n"),
    *(b"connection: close\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n"),
    *(b"a" * 20_000, b"../" * 50, b"/" * 50, b"{" * 50),
)


def mutate(rng: random.Random) -> bytes:
    """A request with a few random changes, perhaps followed by a second one."""
    data = bytearray(b"".join(rng.choices(SEEDS, k=rng.choice((1, 1, 1, 2, 8)))))
    for _ in range(rng.randint(0, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[position:position] = rng.choice(TOKENS)
            case 1:
                del data[position : position + rng.randint(1, 12)]
            case 2:
                data[position : position + 1] = bytes([rng.randrange(256)])
            case _:
                del data[position:]
    return bytes(data)


async def test_malformed_http_is_never_a_server_error(hub: Hub) -> None:
    rng = random.Random(20260)
    seen: list[int] = []
    async with running_web_server(hub) as (address, server), httpx2.AsyncClient(base_url=address) as web:
        assert web.base_url.port

        async def try_case(client: RawClient, case: bytes) -> None:
            client.send(case)
            response = await client.until_closed()
            failures = {status for status in statuses(response) if status >= 500} - ALLOWED_SERVER_ERRORS
            assert not failures, case
            seen.extend(statuses(response))

        async def run_case(case: bytes) -> None:
            async with raw_client(web.base_url.port or 0) as client:
                await try_case(client, case)

        hours = count(1)
        for _ in range(CASES // CONCURRENT):
            tasks = [asyncio.create_task(run_case(mutate(rng))) for _ in range(CONCURRENT)]
            assert (await web.get("/healthz")).status_code == 200

            def are_all_closed(tasks: list["asyncio.Task[None]"] = tasks) -> bool:
                server.sweep(asyncio.get_running_loop().time() + 3600 * next(hours))  # closes the idle ones
                return all(task.done() for task in tasks)

            await wait_until(are_all_closed)
            await asyncio.gather(*tasks)

        assert (await web.get("/healthz")).status_code == 200
    assert {200, 400} < set(seen)
    assert len(seen) > CASES // 2
