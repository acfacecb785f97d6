"""The streams that keep pages alive: so many for each who is signed in, counted as long as they live and no longer."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest

from pabal.console import live
from pabal.console.live import refresh_stream
from pabal.hub import Hub
from pabal.operators.operators import Role
from relay.people import an_owner, pair, write
from support.operator import sign_in
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

MINA = "mina-plusfriend-1"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serving(hub) as where:
        yield where


@asynccontextmanager
async def a_browser(hub: Hub, address: str, room: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """One that is signed in to a room, each as somebody else."""
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}, timeout=20) as web:
        match room:
            case "console":
                signed = await sign_in(hub, web, Role.VIEWER, f"viewer{id(web)}")
                web.headers["cookie"] = f"pabal_session={signed.token}"
            case "portal":
                owner = await an_owner(hub, f"owner{id(web)}")
                await web.post("/portal/login", data={"token": owner.token})
            case _:
                user = f"{MINA}{id(web)}"
                await pair(hub, user, (await an_owner(hub, f"owner{id(web)}")).account)
                [code] = re.findall(r"/chat\?code=([\w-]+)", await write(hub, user, "/code"))
                await web.post("/chat", data={"code": code})
        yield web


async def opened(web: httpx2.AsyncClient, room: str, streams: AsyncExitStack) -> httpx2.Response:
    return await streams.enter_async_context(web.stream("GET", f"/{room}/live"))


@pytest.mark.parametrize("room", ["console", "portal", "chat"])
async def test_each_has_so_many_streams_and_another_when_one_ends(hub: Hub, address: str, room: str) -> None:
    async with a_browser(hub, address, room) as web, a_browser(hub, address, room) as other, AsyncExitStack() as stack:
        first = AsyncExitStack()
        await opened(web, room, first)
        crowd = await asyncio.gather(*(opened(web, room, stack) for _ in range(30)))

        assert [each.status_code for each in crowd].count(200) == live.MAX_STREAMS - 1
        refused = next(each for each in crowd if each.status_code != 200)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert (await opened(other, room, stack)).status_code == 200

        await first.aclose()

        async def again() -> bool:
            return (await opened(web, room, stack)).status_code == 200

        await until(again)
        assert (await opened(web, room, stack)).status_code == 429
        await stack.aclose()
        await until(lambda: not live.OPEN_STREAMS)


async def test_a_stream_whose_reader_is_gone_before_it_begins_is_not_counted(hub: Hub) -> None:
    async def let() -> bool:
        return True

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        assert live.OPEN_STREAMS["somebody"] == 1
        raise ConnectionResetError

    for _ in range(live.MAX_STREAMS + 1):
        with pytest.raises(ConnectionResetError):
            await refresh_stream(hub, let, "somebody")({"type": "http"}, receive, send)

    assert "somebody" not in live.OPEN_STREAMS
