"""Streams that refresh open pages: a limited number per sign-in, counted per application while they are open."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from pabal.console import live
from pabal.console.live import OpenStreamCounter, open_streams_of, refresh_stream
from pabal.hub import Hub
from pabal.operators.operators import Role
from relay.people import add_account, pair_user, send_command
from support.operator import sign_in
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINA = "mina-plusfriend-1"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as where:
        yield where


@asynccontextmanager
async def signed_in_client(hub: Hub, address: str, surface: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client that is signed in to the console, the portal or the chat page, each time as someone else."""
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}, timeout=20) as web:
        match surface:
            case "console":
                signed = await sign_in(hub, web, Role.VIEWER, f"viewer{id(web)}")
                web.headers["cookie"] = f"pabal_session={signed.token}"
            case "portal":
                owner = await add_account(hub, f"owner{id(web)}")
                await web.post("/portal/login", data={"token": owner.token})
            case _:
                user = f"{MINA}{id(web)}"
                await pair_user(hub, user, (await add_account(hub, f"owner{id(web)}")).account)
                [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, user, "/code"))
                await web.post("/chat", data={"code": code})
        yield web


async def open_stream(web: httpx2.AsyncClient, surface: str, streams: AsyncExitStack) -> httpx2.Response:
    return await streams.enter_async_context(web.stream("GET", f"/{surface}/live"))


def request_to(app: Starlette) -> Request:
    return Request({"type": "http", "app": app, "headers": []})


@pytest.mark.parametrize("surface", ["console", "portal", "chat"])
async def test_a_sign_in_has_a_limited_number_of_streams(hub: Hub, address: str, surface: str) -> None:
    async with (
        signed_in_client(hub, address, surface) as web,
        signed_in_client(hub, address, surface) as other,
        AsyncExitStack() as stack,
    ):
        first = AsyncExitStack()
        await open_stream(web, surface, first)
        responses = await asyncio.gather(*(open_stream(web, surface, stack) for _ in range(30)))

        assert [response.status_code for response in responses].count(200) == live.MAX_STREAMS - 1
        refused = next(response for response in responses if response.status_code != 200)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert (await open_stream(other, surface, stack)).status_code == 200

        await first.aclose()

        async def opens_again() -> bool:
            return (await open_stream(web, surface, stack)).status_code == 200

        await wait_until(opens_again)
        assert (await open_stream(web, surface, stack)).status_code == 429
        await stack.aclose()
        await wait_until(opens_again)
        await stack.aclose()


async def test_a_stream_whose_client_disconnects_at_once_is_not_counted(hub: Hub) -> None:
    request = request_to(Starlette())

    async def is_allowed() -> bool:
        return True

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        assert free_streams(open_streams_of(request), "mina") == live.MAX_STREAMS - 1
        raise ConnectionResetError

    for _ in range(live.MAX_STREAMS + 1):
        with pytest.raises(ConnectionResetError):
            await refresh_stream(hub, request, is_allowed, "mina")({"type": "http"}, receive, send)

    assert free_streams(open_streams_of(request), "mina") == live.MAX_STREAMS


async def test_two_applications_in_one_process_count_their_streams_apart() -> None:
    first, second = (open_streams_of(request_to(Starlette())) for _ in range(2))
    for _ in range(live.MAX_STREAMS):
        assert first.acquire("mina")

    assert not first.acquire("mina")
    assert second.acquire("mina")


def free_streams(streams: OpenStreamCounter, session_key: str) -> int:
    """How many more streams a sign-in could open."""
    acquired = 0
    while streams.acquire(session_key):
        acquired += 1
    for _ in range(acquired):
        streams.release(session_key)
    return acquired
