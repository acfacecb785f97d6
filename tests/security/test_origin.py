"""Pages of other sites change nothing, and pages with cookies are served only under known host names."""

import re
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import httpx2
import pytest
from starlette.routing import Route as StarletteRoute

from pabal.api.routes import ROUTES
from pabal.console.routes import console_routes
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.web.origin import is_known_host
from relay.skills import skill_payload
from support.server import serve_hub
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio

FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "same-site"},
)
SAFE = {"GET", "HEAD"}


def all_routes(hub: Hub) -> list[tuple[str, str]]:
    """Method and path of every route of the API and of the web pages."""
    pages = [route for route in console_routes(hub) if isinstance(route, StarletteRoute)]
    table = [(route.method, route.path) for route in ROUTES]
    table += [(method, page.path) for page in pages for method in sorted(page.methods or ())]
    return [(method, re.sub(r"{\w+(:\w+)?}", str(UUID(int=7)), path)) for method, path in table]


async def test_no_route_that_changes_something_accepts_a_page_of_another_site(
    hub: Hub, web: httpx2.AsyncClient
) -> None:
    changing = [(method, path) for method, path in all_routes(hub) if method not in SAFE]
    assert len(changing) > 60

    accepted = [
        (method, path, headers)
        for method, path in changing
        for headers in FOREIGN
        if (await web.request(method, path, headers=headers)).status_code != 403
    ]

    assert accepted == []


async def test_the_refusal_has_the_format_of_the_route(web: httpx2.AsyncClient) -> None:
    paths = ("/kakao/webhook", "/oauth/token", "/v1/toasts/x/seen", "/console/login", "/portal/login")
    responses = [await web.post(path, headers={**FOREIGN[0], "accept-language": "en"}) for path in paths]

    relay, oauth, problem, console, portal = responses
    assert relay.json()["code"] == "FOREIGN_ORIGIN"
    assert oauth.json()["error"] == "invalid_request"
    assert problem.json()["code"] == "foreign_origin"
    assert "This request came from another site." in console.text
    assert "This request came from another site." in portal.text


async def test_clients_that_are_no_browsers_and_bearer_tokens_are_not_affected(web: httpx2.AsyncClient) -> None:
    bearer = {"authorization": "Bearer not-a-token"}
    statuses = [
        (await web.post("/kakao/webhook", json=skill_payload("hello"), headers=WEBHOOK_HEADERS)).status_code,
        (await web.post("/v1/sessions/create")).status_code,
        (await web.post("/v1/queue/events", json={}, headers=bearer | FOREIGN[0])).status_code,
        (await web.get("/health", headers=FOREIGN[0])).status_code,
    ]

    assert statuses == [200, 200, 401, 200]


async def test_pages_with_cookies_are_served_only_under_known_hosts(hub: Hub, web: httpx2.AsyncClient) -> None:
    evil = {"host": "evil.example", "accept-language": "en"}
    pages = ("/console", "/console/login", "/console/health", "/portal", "/portal/login", "/chat", "/me", "/me/inbox")
    for path in pages:
        response = await web.get(path, headers=evil)
        assert response.status_code == 403, path
        assert "set-cookie" not in response.headers
    assert "PABAL_ALLOWED_HOSTS" in (await web.get("/console/login", headers=evil)).text
    for path in ("/health", "/metrics", "/openapi.json"):
        assert (await web.get(path, headers=evil)).status_code == 200, path
    webhook = await web.post(
        "/kakao/webhook", json=skill_payload("hello"), headers=WEBHOOK_HEADERS | {"host": "evil.example"}
    )
    assert webhook.status_code == 200, "the secret is proof enough"


async def test_a_persons_cookie_is_read_only_under_a_known_host(web: httpx2.AsyncClient) -> None:
    headers = {"cookie": "pabal_me=x", "host": "evil.example"}

    assert (await web.get("/v1/toasts", headers=headers)).json()["code"] == "unknown_host"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8700", True),
        ("[::1]:8700", True),
        ("192.168.0.7", True),
        ("localhost:8700", True),
        ("LOCALHOST", True),
        ("hub.localhost", True),
        ("hub.example.org", True),
        ("Hub.Example.org:443", True),
        ("hub.local", True),
        ("hub.local:8700", True),
        ("other.local:9000", True),
        ("other.local:9001", False),
        ("hub.example.org.evil.example", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_known_hosts_are_addresses_localhost_and_configured_names(host: str, known: bool) -> None:
    values: dict[str, Any] = {"public_url": "https://hub.example.org", "allowed_hosts": "hub.local, other.local:9000"}
    settings = Settings(_env_file=None, **values)  # pyright: ignore[reportCallIssue]

    assert is_known_host(host.lower(), settings) is known


class TestPublicUrl:
    @pytest.fixture
    async def public_web(self, database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
        changes = {"public_url": "https://hub.example.org", "allowed_hosts": ["hub.local"]}
        async with (
            open_hub(settings.model_copy(update=changes), database_urls) as hub,
            serve_hub(hub) as address,
            httpx2.AsyncClient(base_url=address) as client,
        ):
            yield client

    async def test_with_https_every_response_requires_it(
        self, public_web: httpx2.AsyncClient, web: httpx2.AsyncClient
    ) -> None:
        for path in ("/health", "/console/login", "/console/static/pabal.css", "/nothing"):
            assert (await public_web.get(path)).headers["strict-transport-security"] == "max-age=31536000", path
            assert "strict-transport-security" not in (await web.get(path)).headers

    async def test_its_own_origin_is_accepted_although_the_proxy_changes_the_host(
        self, public_web: httpx2.AsyncClient
    ) -> None:
        for origin in ("https://hub.example.org", "https://hub.local"):
            response = await public_web.post("/v1/sessions/create", headers={"origin": origin})
            assert response.status_code == 200
