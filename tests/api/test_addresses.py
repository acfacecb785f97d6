"""Rate limits per address: an IPv6 network counts as one address."""

from collections.abc import AsyncGenerator
from itertools import count

import httpx2
import pytest

from pabal.console.access import login
from pabal.console.access.csrf import CSRF_FIELD
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay import web_sessions
from pabal.relay.pairing import sessions
from pabal.settings import Settings
from pabal.tokens import issue
from support.clusters import open_connection
from support.relay_log import open_message_log
from support.server import serve_hub

pytestmark = pytest.mark.anyio

STILL = (
    "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
    "return timestamptz '2030-01-01'"
)


@pytest.fixture
async def hub(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    """Behind a proxy that says who calls, where no time passes."""
    async with open_connection(database_urls.direct or database_urls.main) as owner:
        await owner.execute(STILL)
    behind = settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    async with open_hub(behind, database_urls) as opened:
        yield opened


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, headers={"origin": address}, timeout=30) as client,
    ):
        yield client


async def send_request(web: httpx2.AsyncClient, door: str, address: str) -> int:
    """Come to a door from an address, with nothing that opens it; what it answers."""
    form = {
        "/console/login": {CSRF_FIELD: "f", "name": "nobody", "password": "wrong horse"},
        "/portal/login": {"token": "guess"},
        "/v1/sessions/create": {},
        "/oauth/token": {"grant_type": "client_credentials", "client_id": "nobody", "client_secret": "guess"},
    }[door]
    headers = {"x-forwarded-for": address, "cookie": f"{login.LOGIN_FORM_COOKIE}=f"}
    return (await web.post(door, data=form or None, headers=headers)).status_code


@pytest.mark.parametrize(
    ("door", "most", "otherwise"),
    [
        ("/console/login", login.SIGN_INS_PER_ADDRESS.count, 401),
        ("/portal/login", web_sessions.PORTAL_SIGN_IN_LIMIT.count, 401),
        ("/v1/sessions/create", sessions.NEW_SESSION_LIMIT.count, 200),
        ("/oauth/token", issue.FAILURES_PER_ADDRESS.count, 401),
    ],
)
async def test_an_ipv6_network_is_limited_as_one_address(
    web: httpx2.AsyncClient, door: str, most: int, otherwise: int
) -> None:
    tried = [await send_request(web, door, f"2001:db8:0:1:{n:x}::{n:x}") for n in range(most + 3)]

    assert tried == [otherwise] * most + [429] * 3
    assert await send_request(web, door, "2001:db8:0:2::1") == otherwise
    assert await send_request(web, door, "192.0.2.7") == otherwise


async def test_refusals_of_the_portal_are_audited_at_a_limited_rate(
    web: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    addresses = (f"2001:db8:0:{n:x}::1" for n in count())
    for _ in range(login.SIGN_IN_FAILURE_RECORDS.count + 10):
        assert await send_request(web, "/portal/login", next(addresses)) == 401
    await send_request(web, "/console/login", next(addresses))

    async with open_message_log(database_urls) as message_log:
        audit_log = [action for _, action in await message_log.audit_actions()]
    assert audit_log == ["portal.refused"] * login.SIGN_IN_FAILURE_RECORDS.count + ["operator.sign_in_failed"]
