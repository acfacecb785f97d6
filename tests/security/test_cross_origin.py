"""Pages of PABAL_ALLOWED_ORIGINS, and only those, may call the routes of people, and never with cookies."""

import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx2
import pytest
from structlog.testing import capture_logs

from pabal.api.routes import ROUTES
from pabal.core.errors import InvalidSettings
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal.web.route import Route
from support.inbox import Inbox
from support.oauth_client import bearer
from support.server import serve_hub
from support.statement_log import run_statement_log
from support.wait import wait_until

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.org"
FOREIGN = (
    "https://evil.example",
    "null",
    "http://app.example.org",
    "https://app.example.org:8443",
    "https://app.example.org.evil.example",
    "https://APP.example.org",
    "*",
)
FOR_BROWSERS = {
    ("GET", "/v1/toasts"),
    ("POST", "/v1/toasts/ticket"),
    ("POST", "/v1/toasts/read"),
    ("GET", "/v1/toasts/stream"),
    ("POST", "/v1/toasts/read"),
    ("POST", "/v1/toasts/{id}/seen"),
    ("POST", "/v1/toasts/{id}/read"),
    ("POST", "/v1/toasts/{id}/archive"),
    ("GET", "/v1/preferences/{user_id}"),
    ("PUT", "/v1/preferences/{user_id}"),
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_origins": [PAGE]})


def example_path(route: Route) -> str:
    return re.sub(r"{\w+}", str(UUID(int=7)), route.path)


def cors_headers(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def preflight(web: httpx2.AsyncClient, path: str, origin: str, method: str) -> httpx2.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization",
    }
    return await web.options(path, headers=headers)


async def test_pages_may_call_the_routes_of_people_and_no_others(web: httpx2.AsyncClient) -> None:
    offered = {
        (route.method, route.path)
        for route in ROUTES
        if (await preflight(web, example_path(route), PAGE, route.method)).status_code == 204
    }

    assert offered == FOR_BROWSERS
    assert offered == {(route.method, route.path) for route in ROUTES if route.cross_origin}


async def test_a_preflight_allows_the_method_and_the_headers_but_no_cookies(web: httpx2.AsyncClient) -> None:
    response = await preflight(web, "/v1/toasts", PAGE, "GET")

    assert cors_headers(response) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET",
        "access-control-allow-headers": "authorization, content-type, last-event-id, x-request-id",
        "access-control-max-age": "600",
        "access-control-expose-headers": "retry-after, x-request-id",
    }
    assert response.headers["vary"] == "origin"
    assert response.content == b""


async def test_other_methods_and_paths_are_not_offered(web: httpx2.AsyncClient) -> None:
    for path, method in (("/v1/toasts", "DELETE"), ("/v1/toasts", "POST"), ("/v1/nothing", "GET"), ("/console", "GET")):
        response = await preflight(web, path, PAGE, method)
        assert response.status_code in {404, 405}, path
        assert cors_headers(response).keys() <= {"access-control-allow-origin", "access-control-expose-headers"}
        assert "access-control-allow-methods" not in response.headers


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_that_is_not_allowed_reads_nothing(web: httpx2.AsyncClient, inbox: Inbox, origin: str) -> None:
    refused = await preflight(web, "/v1/toasts", origin, "GET")
    read = await web.get("/v1/toasts", headers=bearer(await inbox.token()) | {"origin": origin})

    assert (refused.status_code, cors_headers(refused)) == (405, {})
    assert (read.status_code, cors_headers(read)) == (200, {})
    assert read.headers["vary"] == "origin", "a cache must not show the response to an allowed page, or the reverse"


async def test_an_allowed_page_reads_responses_and_errors(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    header = bearer(await inbox.token()) | {"origin": PAGE}
    responses = {
        200: await web.get("/v1/toasts", headers=header),
        201: await web.post("/v1/toasts/ticket", headers=header),
        400: await web.get("/v1/toasts", params={"limit": "x"}, headers=header),
        401: await web.get("/v1/toasts", headers={"origin": PAGE}),
        404: await web.post(f"/v1/toasts/{UUID(int=7)}/read", headers=header),
    }

    for status, response in responses.items():
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in response.headers
        assert response.headers["cache-control"] == "no-store"


async def test_an_allowed_page_reads_a_stream_that_it_opens_with_a_ticket(
    web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    issued = await web.post("/v1/toasts/ticket", headers=bearer(await inbox.token()) | {"origin": PAGE})
    query = {"ticket": issued.json()["ticket"]}
    with capture_logs() as logs:
        async with web.stream("GET", "/v1/toasts/stream", params=query, headers={"origin": PAGE}) as response:
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == PAGE
        await wait_until(lambda: any(entry["event"] == "request answered" for entry in logs))

    assert query["ticket"] not in str(logs)


async def test_routes_with_cookies_and_services_get_no_permission(web: httpx2.AsyncClient) -> None:
    for path in ("/me", "/me/stream", "/console/login", "/v1/queue/events", "/v1/notifications", "/health", "/nothing"):
        assert cors_headers(await web.get(path, headers={"origin": PAGE})) == {}, path


async def test_a_cookie_of_an_allowed_page_changes_nothing(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    toast = await inbox.insert_toast()
    headers = {"cookie": f"pabal_me={await inbox.cookie()}", "origin": PAGE}

    assert (await web.post(f"/v1/toasts/{toast}/read", headers=headers)).status_code == 403
    assert (await web.post("/v1/toasts/ticket", headers=headers)).status_code == 403


async def test_preflights_need_no_database(database_urls: DatabaseUrls, settings: Settings) -> None:
    async with (
        run_statement_log(database_urls.main) as (log, url),
        open_hub(settings, replace(database_urls, main=url)) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        log.statements.clear()
        for _ in range(20):
            assert (await preflight(web, "/v1/toasts", PAGE, "GET")).status_code == 204
        preflights = [*log.statements]
        await web.get("/v1/toasts", headers={"authorization": "Bearer x", "origin": PAGE})

    assert preflights == []
    assert any("person_tokens" in statement for statement in log.statements)


async def test_without_the_setting_no_page_of_another_origin_is_allowed(
    database_urls: DatabaseUrls, settings: Settings, inbox: Inbox
) -> None:
    closed = settings.model_copy(update={"allowed_origins": []})
    async with (
        open_hub(closed, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        assert (await preflight(web, "/v1/toasts", PAGE, "GET")).status_code == 405
        header = bearer(await inbox.token()) | {"origin": PAGE}
        assert cors_headers(await web.get("/v1/toasts", headers=header)) == {}
        assert (await web.post("/v1/toasts/ticket", headers=header)).json()["code"] == "foreign_origin"


async def test_the_script_for_other_pages_may_be_loaded_by_all_of_them(web: httpx2.AsyncClient) -> None:
    for path in ("/static/toasts.js", "/static/toasts/inbox.js", "/static/toasts/style.js", "/static/toasts/texts.js"):
        response = await web.get(path, headers={"origin": "https://evil.example"})

        assert response.status_code == 200, path
        assert response.headers["content-type"].startswith("text/javascript")
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-credentials" not in response.headers
        unchanged = await web.get(path, headers={"if-none-match": response.headers["etag"]})
        assert unchanged.status_code == 304
    assert (await web.get("/static/../console.py")).status_code == 404
    assert (await web.get("/static/")).status_code == 404


@pytest.mark.parametrize(
    ("value", "origins"),
    [
        ("https://App.Example.org/", ["https://app.example.org"]),
        ("https://a.example:443, http://b.example:80", ["https://a.example", "http://b.example"]),
        ("http://127.0.0.1:9000,http://[::1]:9000", ["http://127.0.0.1:9000", "http://[::1]:9000"]),
    ],
)
def test_origins_are_compared_as_browsers_write_them(value: str, origins: list[str]) -> None:
    values: dict[str, Any] = {"allowed_origins": value}

    assert Settings(_env_file=None, **values).allowed_origins == origins  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "value",
    [
        "*",
        "null",
        "app.example.org",
        "https://*",
        "https://*.example.org",
        "https://a.example/path",
        "https://u@a.example",
        "file:///x",
    ],
)
def test_only_exact_origins_are_accepted(value: str) -> None:
    values: dict[str, Any] = {"allowed_origins": value}

    with pytest.raises(InvalidSettings, match=r"PABAL_ALLOWED_ORIGINS: .* is not an origin"):
        Settings(_env_file=None, **values)  # pyright: ignore[reportCallIssue]
