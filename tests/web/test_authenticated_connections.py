"""Which requests prove who their client is, so that the connection no longer counts as anonymous."""

import asyncio
import resource
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import SecretStr

from pabal.console.portal.login import PORTAL_COOKIE
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role
from pabal.relay.web_sessions import create_portal_session
from pabal.settings import Settings
from pabal.web.auth import PERSON_COOKIE
from pabal.web.server.server import WebServer
from relay.people import TESTER, RelayAccount
from relay.skills import skill_payload
from support.inbox import Inbox
from support.oauth_client import bearer, register_oauth_service
from support.operator import sign_in
from support.pabal_process import fresh_folder, run_hub
from support.raw_http import get, raw_client, statuses
from support.server import running_web_server
from support.wait import wait_until

pytestmark = pytest.mark.anyio

FEW_FILES = 1024
SOCKETS = 1200
TRICKLE = b"POST /kakao/webhook HTTP/1.1\r\nhost: hub\r\ncontent-length: 100\r\n\r\n{"


@asynccontextmanager
async def fresh_connection(hub: Hub) -> AsyncGenerator[tuple[httpx2.AsyncClient, WebServer]]:
    """A client with one connection, and the server to look at it."""
    async with running_web_server(hub) as (address, server), httpx2.AsyncClient(base_url=address) as client:
        yield client, server
        assert len(server.table) == 1


async def test_a_service_token_authenticates_a_connection(hub: Hub, web: httpx2.AsyncClient) -> None:
    token = (await (await register_oauth_service(hub, web, "shop", "write")).tokens())["access_token"]
    async with fresh_connection(hub) as (client, server):
        event = {"type": "order.paid", "payload": {}}
        assert (await client.post("/v1/queue/events", json=event, headers=bearer("wrong"))).status_code == 401
        assert server.table.anonymous_count == 1
        assert (await client.post("/v1/queue/events", json=event, headers=bearer(token))).status_code < 500
        assert server.table.anonymous_count == 0


async def test_a_relay_token_authenticates_a_connection(hub: Hub, paired_account: RelayAccount) -> None:
    async with fresh_connection(hub) as (client, server):
        assert (await client.get("/v1/messages?wait=0", headers=bearer("prt_wrong"))).status_code == 401
        assert server.table.anonymous_count == 1
        assert (await client.get("/v1/messages?wait=0", headers=paired_account.bearer)).status_code == 200
        assert server.table.anonymous_count == 0


async def test_a_relay_stream_does_not_count_as_anonymous(hub: Hub, paired_account: RelayAccount) -> None:
    async with (
        fresh_connection(hub) as (client, server),
        client.stream("GET", "/v1/events", headers=paired_account.bearer) as response,
    ):
        assert response.status_code == 200
        assert server.table.anonymous_count == 0


async def test_the_webhook_secret_authenticates_a_connection(database_urls: DatabaseUrls, settings: Settings) -> None:
    guarded = settings.model_copy(update={"webhook_secret": SecretStr("hush")})
    async with open_hub(guarded, database_urls) as hub, fresh_connection(hub) as (client, server):
        assert (await client.post("/kakao/webhook", json=skill_payload("hi"))).status_code == 401
        assert server.table.anonymous_count == 1
        headers = {"x-pabal-secret": "hush"}
        assert (await client.post("/kakao/webhook", json=skill_payload("hi"), headers=headers)).status_code == 200
        assert server.table.anonymous_count == 0


async def test_an_open_webhook_stays_anonymous(database_urls: DatabaseUrls, settings: Settings) -> None:
    opened = settings.model_copy(update={"webhook_secret": None, "webhook_open": True})
    async with open_hub(opened, database_urls) as hub, fresh_connection(hub) as (client, server):
        assert (await client.post("/kakao/webhook", json=skill_payload("hi"))).status_code == 200
        assert server.table.anonymous_count == 1


async def test_the_cookie_of_an_operator_authenticates_a_connection(hub: Hub) -> None:
    async with fresh_connection(hub) as (client, server):
        signed = await sign_in(hub, client, Role.ADMIN)
        assert (await client.get("/console/login")).status_code == 200
        assert server.table.anonymous_count == 1
        assert (await signed.get("/console")).status_code == 200
        assert server.table.anonymous_count == 0


async def test_the_cookie_of_a_bot_owner_authenticates_a_connection(hub: Hub, paired_account: RelayAccount) -> None:
    async with hub.transaction() as tx:
        cookie = await create_portal_session(tx, paired_account.token, TESTER)
    async with fresh_connection(hub) as (client, server):
        await client.get("/portal")
        assert server.table.anonymous_count == 1
        assert (await client.get("/portal", headers={"cookie": f"{PORTAL_COOKIE}={cookie}"})).status_code == 200
        assert server.table.anonymous_count == 0


async def test_the_cookie_of_a_person_authenticates_a_connection(hub: Hub, inbox: Inbox) -> None:
    cookie = await inbox.cookie()
    async with fresh_connection(hub) as (client, server):
        assert (await client.get("/me", headers={"cookie": f"{PERSON_COOKIE}=wrong"})).status_code == 401
        assert server.table.anonymous_count == 1
        assert (await client.get("/me", headers={"cookie": f"{PERSON_COOKIE}={cookie}"})).status_code == 200
        assert server.table.anonymous_count == 0


async def test_the_metrics_count_connections(hub: Hub) -> None:
    async with fresh_connection(hub) as (client, _):
        text = (await client.get("/metrics")).text

    assert 'pabal_http_connections{state="anonymous"} 1.0' in text
    assert 'pabal_http_connections_closed_total{reason="address_limit"} 0.0' in text


@contextmanager
def room_for_sockets() -> Generator[None]:
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))


async def is_served(port: int) -> bool:
    """Whether a new connection of the flooding address gets a response."""
    async with raw_client(port) as client:
        client.send(get("/healthz"))
        try:
            return statuses(await client.response_head()) == [200]
        except (ConnectionResetError, asyncio.IncompleteReadError):
            return False


async def test_a_hub_with_1024_files_survives_more_silent_sockets(database_urls: DatabaseUrls) -> None:
    assert database_urls.direct
    environment = {"PABAL_DATABASE_URL": database_urls.main, "PABAL_DATABASE_DIRECT_URL": database_urls.direct}
    with (
        room_for_sockets(),
        fresh_folder() as folder,
        run_hub(folder, "serve", FEW_FILES, **environment) as hub,
    ):
        port = urlsplit(hub.address).port or 0
        async with AsyncExitStack() as stack:
            for _ in range(SOCKETS):
                client = await stack.enter_async_context(raw_client(port))
                client.send(TRICKLE)
            async with raw_client(port, "127.0.0.2") as client:
                client.send(get("/healthz"))
                assert statuses(await client.response_head()) == [200]
        async with asyncio.timeout(30):
            while not await is_served(port):  # until the closed sockets are noticed
                continue
        await wait_until(lambda: "connections refused" in hub.log.read_text())
