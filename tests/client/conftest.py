"""Two services in front of a served hub."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from client.ways import Connect, Line, Threaded, Way
from pabal.client import Client
from pabal.hub import Hub
from support.oauth_client import enrol


@pytest.fixture(params=["awaits", "waits"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect(kind: str) -> Connect:
    """Both clients, one after the other, under the same sentences."""

    @asynccontextmanager
    async def opened(way: Way, **how: Any) -> AsyncGenerator[Any]:
        if kind == "awaits":
            async with way.client(**how) as client:
                yield client
        else:
            with Client(way.address, way.service, way.secret, **how) as client:
                yield Threaded(client)

    return opened


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Way:
    there = await enrol(hub, web, "shop", "write")
    return Way(str(web.base_url), there.name, there.secret)


@pytest.fixture
async def billing(hub: Hub, web: httpx2.AsyncClient) -> Way:
    there = await enrol(hub, web, "billing", "write")
    return Way(str(web.base_url), there.name, there.secret)


@pytest.fixture
async def line(web: httpx2.AsyncClient) -> AsyncGenerator[tuple[Line, str]]:
    """A line to the hub, and the address at its near end."""
    where = urlsplit(str(web.base_url))
    assert where.hostname
    assert where.port
    between = Line(where.hostname, where.port)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    try:
        yield between, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        between.reset()
