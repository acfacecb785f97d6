"""Two services and two chat users in front of a served hub."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from client.bot_user import User
from client.connections import AwaitableClient, Connect, HubAddress, LossyProxy
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal_client import Client
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, run_fake_kakao
from support.oauth_client import register_oauth_service
from support.relay_rows import Chat, Owner


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect(kind: str) -> Connect:
    """Runs each test with both clients."""

    @asynccontextmanager
    async def connect_client(address: HubAddress, **options: Any) -> AsyncGenerator[Any]:
        if kind == "async":
            async with address.client(**options) as client:
                yield client
        else:
            with Client(address.url, address.service, address.secret, **options) as client:
                yield AwaitableClient(client)

    return connect_client


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> HubAddress:
    service = await register_oauth_service(hub, web, "shop", "write")
    return HubAddress(str(web.base_url), service.name, service.secret)


@pytest.fixture
async def billing(hub: Hub, web: httpx2.AsyncClient) -> HubAddress:
    service = await register_oauth_service(hub, web, "billing", "write")
    return HubAddress(str(web.base_url), service.name, service.secret)


@pytest.fixture
async def line(web: httpx2.AsyncClient) -> AsyncGenerator[tuple[LossyProxy, str]]:
    """A proxy to the hub, and its URL."""
    parts = urlsplit(str(web.base_url))
    assert parts.hostname
    assert parts.port
    proxy = LossyProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.reset()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def fake_kakao() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as server:
        yield server


@pytest.fixture
async def chat(database_urls: DatabaseUrls) -> AsyncGenerator[Chat]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        yield Chat(db)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    """An account with two users."""
    owner = await chat.owner()
    for user in ("mina", "jun"):
        await chat.conversation(owner, user)
    return owner


@pytest.fixture
def mina(web: httpx2.AsyncClient, fake_kakao: FakeKakao) -> User:
    return User(web, fake_kakao, "mina")


@pytest.fixture
def jun(web: httpx2.AsyncClient, fake_kakao: FakeKakao) -> User:
    return User(web, fake_kakao, "jun")
