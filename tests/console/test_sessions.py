import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from http.cookies import Morsel, SimpleCookie

import httpx2
import pytest

from pabal.console.access.login import (
    FAILED_SIGN_INS_PER_NAME,
    LOGIN_FORM_COOKIE,
    OPERATOR_COOKIE,
    SIGN_INS_PER_ADDRESS,
)
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators import sessions
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings
from support.server import serve_hub

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
[SESSIONS] = parse_queries("-- name: sessions\nselect count(*) from pabal.operator_sessions")


@pytest.fixture(autouse=True)
async def _admin(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await ensure_first_operator(tx, PASSWORD)


def hidden_field(page: httpx2.Response, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]+)"', page.text)
    assert match, page.text
    return match[1]


def cookie(reply: httpx2.Response, name: str) -> "Morsel[str]":
    jar = SimpleCookie()
    for header in reply.headers.get_list("set-cookie"):
        jar.load(header)
    return jar[name]


async def enter(
    web: httpx2.AsyncClient, password: str = PASSWORD, name: str = "admin", **headers: str
) -> httpx2.Response:
    form = hidden_field(await web.get("/console/login"), "csrf_token")
    return await web.post(
        "/console/login", data={"csrf_token": form, "name": name, "password": password}, headers=headers or None
    )


async def signed_in(hub: Hub) -> int:
    async with hub.autocommit() as tx:
        return await tx.value(SESSIONS)


async def test_the_sign_in_page_uses_relative_urls(web: httpx2.AsyncClient) -> None:
    home, closed = await web.get("/"), await web.get("/console")

    assert (home.status_code, home.headers["location"]) == (307, "/console")
    assert (closed.status_code, closed.headers["location"]) == (303, "/console/login")
    assert (await web.get("/console/live")).headers["location"] == "/console/login"
    assert (await web.get("/console/")).headers["location"] == "/console"


async def test_signing_in_opens_the_console(web: httpx2.AsyncClient) -> None:
    reply = await enter(web)

    assert (reply.status_code, reply.headers["location"]) == (303, "/console")
    token = cookie(reply, OPERATOR_COOKIE)
    assert token["httponly"]
    assert (token["samesite"], token["path"], token["secure"]) == ("lax", "/console", "")
    assert int(token["max-age"]) == sessions.SESSION_LIFETIME.total_seconds()
    page = await web.get("/console")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert (await web.get("/console/login")).headers["location"] == "/console"


async def test_behind_https_the_cookie_is_secure_and_the_public_url_is_the_origin(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        page = await web.get("/console/login")
        form = {"csrf_token": hidden_field(page, "csrf_token"), "name": "admin", "password": PASSWORD}
        form_cookie = f"{LOGIN_FORM_COOKIE}={cookie(page, LOGIN_FORM_COOKIE).value}"
        origins = ("https://hub.example.org", "https://evil.example")
        home, elsewhere = [
            await web.post("/console/login", data=form, headers={"cookie": form_cookie, "origin": origin})
            for origin in origins
        ]

    assert (home.status_code, elsewhere.status_code) == (303, 403)
    assert cookie(home, OPERATOR_COOKIE)["secure"]


async def test_a_wrong_name_and_a_wrong_password_look_the_same(hub: Hub, web: httpx2.AsyncClient) -> None:
    wrong_password, wrong_name = await enter(web, "wrong horse"), await enter(web, name="nobody")

    assert (wrong_password.status_code, wrong_name.status_code) == (401, 401)
    assert wrong_password.text == wrong_name.text
    assert await signed_in(hub) == 0


async def test_a_sign_in_form_of_another_browser_or_site_is_refused(hub: Hub, web: httpx2.AsyncClient) -> None:
    form = {
        "csrf_token": hidden_field(await web.get("/console/login"), "csrf_token"),
        "name": "admin",
        "password": PASSWORD,
    }
    own_cookie = f"{LOGIN_FORM_COOKIE}={web.cookies[LOGIN_FORM_COOKIE]}"
    web.cookies.clear()

    origins = ("https://evil.example", "x", "https://", "http://[", "javascript:")
    for headers in (
        {},
        {"cookie": f"{LOGIN_FORM_COOKIE}=another"},
        *({"cookie": own_cookie, "origin": origin} for origin in origins),
    ):
        reply = await web.post("/console/login", data=form, headers=headers)
        assert reply.status_code == 403
    without = await web.post("/console/login", data=form | {"csrf_token": "\u00e9"}, headers={"cookie": own_cookie})
    assert without.status_code == 403
    assert await signed_in(hub) == 0


async def test_the_rate_limit_applies_even_to_the_right_password(
    hub: Hub, web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    attempts = [(await enter(web, "wrong horse")).status_code for _ in range(SIGN_INS_PER_ADDRESS.count)]

    late = await enter(web)

    assert attempts == [401] * SIGN_INS_PER_ADDRESS.count
    assert late.status_code == 429
    assert 1 <= int(late.headers["retry-after"]) <= 30
    await travel(timedelta(seconds=int(late.headers["retry-after"])))
    assert (await enter(web)).status_code == 303


async def test_failures_on_one_name_hold_only_the_addresses_that_failed(
    database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers cannot lock an operator out by name. For unknown names the same holds, so it does not reveal names."""
    monkeypatch.setattr(
        "pabal.console.access.login.FAILED_SIGN_INS_PER_NAME", replace(FAILED_SIGN_INS_PER_NAME, count=3)
    )
    behind = settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    async with (
        open_hub(behind, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)

        async def attempt(name: str, password: str, client: int) -> httpx2.Response:
            return await enter(web, password, name, **{"x-forwarded-for": f"192.0.2.{client}"})

        names = ("admin", "Admin", "ADMIN", "nobody", "nobody", "nobody")
        wrong = [await attempt(name, "wrong horse", client) for client, name in enumerate(names)]
        held = [await attempt(name, PASSWORD, 0) for name in ("admin", "nobody")]
        other_name = await attempt("somebody", "wrong horse", 0)
        fresh = [await attempt(name, PASSWORD, client) for client, name in ((100, "nobody"), (101, "admin"))]

    assert [response.status_code for response in wrong] == [401] * 6
    assert [response.status_code for response in held] == [429, 429]
    assert held[0].text == held[1].text
    assert other_name.status_code == 401
    assert [response.status_code for response in fresh] == [401, 303]
    assert FAILED_SIGN_INS_PER_NAME.count > SIGN_INS_PER_ADDRESS.count


async def test_malformed_sign_in_forms_are_refused(web: httpx2.AsyncClient) -> None:
    form = hidden_field(await web.get("/console/login"), "csrf_token")

    nul = await web.post("/console/login", data={"csrf_token": form, "name": "ad\0min", "password": "\0"})
    huge = await web.post("/console/login", content=b"x" * 70_000)
    empty = await web.post("/console/login")

    assert (nul.status_code, huge.status_code, empty.status_code) == (401, 413, 403)


async def test_signing_out_requires_the_csrf_token(hub: Hub, web: httpx2.AsyncClient) -> None:
    await enter(web)
    csrf = hidden_field(await web.get("/console"), "csrf_token")

    for wrong in ({}, {"csrf_token": "0" * 64}, {"csrf_token": "\u00e9"}):
        await web.post("/console/logout", data=wrong)
        assert await signed_in(hub) == 1

    signed_out = await web.post("/console/logout", data={"csrf_token": csrf})
    assert signed_out.headers["location"] == "/console/login"
    assert await signed_in(hub) == 0
    assert (await web.get("/console")).status_code == 303


async def test_a_cookie_is_invalid_after_its_session_ended(
    web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    token = cookie(await enter(web), OPERATOR_COOKIE).value

    await travel(sessions.SESSION_LIFETIME)

    assert (await web.get("/console", headers={"cookie": f"{OPERATOR_COOKIE}={token}"})).status_code == 303


@pytest.mark.parametrize(
    ("accepted", "word"),
    [("ko-KR,ko;q=0.9", "로그인"), ("en-GB", "Sign in"), ("fr, en", "Sign in"), ("fr", "로그인")],
)
async def test_the_console_uses_the_language_of_the_browser(web: httpx2.AsyncClient, accepted: str, word: str) -> None:
    assert word in (await web.get("/console/login", headers={"accept-language": accepted})).text


async def test_a_selected_language_is_remembered(web: httpx2.AsyncClient) -> None:
    korean = {"accept-language": "ko"}
    await web.post("/console/language", headers=korean)

    page = await web.get("/console/login", headers=korean)

    assert "Sign in" in page.text
    assert '<html lang="en">' in page.text


async def test_not_found_is_a_page(web: httpx2.AsyncClient) -> None:
    reply = await web.get("/console/nowhere", headers={"accept-language": "en"})

    assert (reply.status_code, reply.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Page not found" in reply.text


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client that keeps cookies and follows no redirects."""
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address, follow_redirects=False) as client:
        yield client
