import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from http.cookies import Morsel, SimpleCookie
from itertools import count

import httpx2
import pytest

from pabal.console.login import LOGIN_FORM_COOKIE, OPERATOR_COOKIE, SIGN_INS_PER_ADDRESS, SIGN_INS_PER_NAME
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators import sessions
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings
from support.server import serving

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
[SESSIONS] = parse_queries("-- name: sessions\nselect count(*) from pabal.operator_sessions")


@pytest.fixture(autouse=True)
async def _admin(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await ensure_first_operator(tx, PASSWORD)


def hidden(page: httpx2.Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def cookie(answer: httpx2.Response, name: str) -> "Morsel[str]":
    jar = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    return jar[name]


async def enter(
    web: httpx2.AsyncClient, password: str = PASSWORD, name: str = "admin", **headers: str
) -> httpx2.Response:
    form = hidden(await web.get("/console/login"), "csrf_token")
    return await web.post(
        "/console/login", data={"csrf_token": form, "name": name, "password": password}, headers=headers or None
    )


async def signed_in(hub: Hub) -> int:
    async with hub.autocommit() as tx:
        return await tx.value(SESSIONS)


async def test_the_way_in_is_shown_with_relative_addresses(web: httpx2.AsyncClient) -> None:
    home, closed = await web.get("/"), await web.get("/console")

    assert (home.status_code, home.headers["location"]) == (307, "/console")
    assert (closed.status_code, closed.headers["location"]) == (303, "/console/login")
    assert (await web.get("/console/live")).headers["location"] == "/console/login"
    assert (await web.get("/console/")).headers["location"] == "/console"


async def test_signing_in_opens_the_console(web: httpx2.AsyncClient) -> None:
    answer = await enter(web)

    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    token = cookie(answer, OPERATOR_COOKIE)
    assert token["httponly"]
    assert (token["samesite"], token["path"], token["secure"]) == ("lax", "/console", "")
    assert int(token["max-age"]) == sessions.SESSION_LIFETIME.total_seconds()
    page = await web.get("/console")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert (await web.get("/console/login")).headers["location"] == "/console"


async def test_behind_https_the_cookie_is_secure_and_the_public_address_is_home(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        page = await web.get("/console/login")
        form = {"csrf_token": hidden(page, "csrf_token"), "name": "admin", "password": PASSWORD}
        kept = f"{LOGIN_FORM_COOKIE}={cookie(page, LOGIN_FORM_COOKIE).value}"
        origins = ("https://hub.example.org", "https://evil.example")
        home, elsewhere = [
            await web.post("/console/login", data=form, headers={"cookie": kept, "origin": each}) for each in origins
        ]

    assert (home.status_code, elsewhere.status_code) == (303, 403)
    assert cookie(home, OPERATOR_COOKIE)["secure"]


async def test_a_wrong_name_and_a_wrong_password_look_the_same(hub: Hub, web: httpx2.AsyncClient) -> None:
    wrong_password, wrong_name = await enter(web, "wrong horse"), await enter(web, name="nobody")

    assert (wrong_password.status_code, wrong_name.status_code) == (401, 401)
    assert wrong_password.text == wrong_name.text
    assert await signed_in(hub) == 0


async def test_a_form_from_another_browser_or_site_is_refused(hub: Hub, web: httpx2.AsyncClient) -> None:
    form = {"csrf_token": hidden(await web.get("/console/login"), "csrf_token"), "name": "admin", "password": PASSWORD}
    own_cookie = f"{LOGIN_FORM_COOKIE}={web.cookies[LOGIN_FORM_COOKIE]}"
    web.cookies.clear()

    origins = ("https://evil.example", "x", "https://", "http://[", "javascript:")
    for headers in (
        {},
        {"cookie": f"{LOGIN_FORM_COOKIE}=another"},
        *({"cookie": own_cookie, "origin": origin} for origin in origins),
    ):
        answer = await web.post("/console/login", data=form, headers=headers)
        assert answer.status_code == 403
    without = await web.post("/console/login", data=form | {"csrf_token": "\u00e9"}, headers={"cookie": own_cookie})
    assert without.status_code == 403
    assert await signed_in(hub) == 0


async def test_too_many_attempts_must_wait_even_with_the_right_password(
    hub: Hub, web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    tried = [(await enter(web, "wrong horse")).status_code for _ in range(SIGN_INS_PER_ADDRESS.count)]

    late = await enter(web)

    assert tried == [401] * SIGN_INS_PER_ADDRESS.count
    assert late.status_code == 429
    assert 1 <= int(late.headers["retry-after"]) <= 30
    await travel(timedelta(seconds=int(late.headers["retry-after"])))
    assert (await enter(web)).status_code == 303


async def test_tries_to_one_name_are_counted_wherever_they_come_from(
    database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the case of the name, and whether anybody has it: who must wait does not learn which names there are."""
    monkeypatch.setattr("pabal.console.login.SIGN_INS_PER_NAME", replace(SIGN_INS_PER_NAME, count=3))
    behind = settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    async with (
        open_hub(behind, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        addresses = (f"192.0.2.{n}" for n in count(1))

        async def tried(name: str, password: str) -> httpx2.Response:
            return await enter(web, password, name, **{"x-forwarded-for": next(addresses)})

        wrong = [await tried(name, "wrong horse") for name in ("admin", "Admin", "ADMIN", "nobody", "nobody", "nobody")]
        known, unknown = await tried("admin", PASSWORD), await tried("nobody", PASSWORD)
        other = await tried("somebody", "wrong horse")

    assert [each.status_code for each in wrong] == [401] * 6
    assert (known.status_code, unknown.status_code, other.status_code) == (429, 429, 401)
    assert known.text == unknown.text
    assert SIGN_INS_PER_NAME.count > SIGN_INS_PER_ADDRESS.count


async def test_what_no_form_of_ours_brings_is_refused_calmly(web: httpx2.AsyncClient) -> None:
    form = hidden(await web.get("/console/login"), "csrf_token")

    nul = await web.post("/console/login", data={"csrf_token": form, "name": "ad\0min", "password": "\0"})
    huge = await web.post("/console/login", content=b"x" * 70_000)
    empty = await web.post("/console/login")

    assert (nul.status_code, huge.status_code, empty.status_code) == (401, 413, 403)


async def test_signing_out_needs_the_pages_own_secret(hub: Hub, web: httpx2.AsyncClient) -> None:
    await enter(web)
    csrf = hidden(await web.get("/console"), "csrf_token")

    for wrong in ({}, {"csrf_token": "0" * 64}, {"csrf_token": "\u00e9"}):
        await web.post("/console/logout", data=wrong)
        assert await signed_in(hub) == 1

    left = await web.post("/console/logout", data={"csrf_token": csrf})
    assert left.headers["location"] == "/console/login"
    assert await signed_in(hub) == 0
    assert (await web.get("/console")).status_code == 303


async def test_a_stolen_cookie_is_worth_nothing_after_the_session_ended(
    web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    token = cookie(await enter(web), OPERATOR_COOKIE).value

    await travel(sessions.SESSION_LIFETIME)

    assert (await web.get("/console", headers={"cookie": f"{OPERATOR_COOKIE}={token}"})).status_code == 303


@pytest.mark.parametrize(
    ("asked", "word"),
    [("ko-KR,ko;q=0.9", "로그인"), ("en-GB", "Sign in"), ("fr, en", "Sign in"), ("fr", "로그인")],
)
async def test_the_console_speaks_the_browsers_language(web: httpx2.AsyncClient, asked: str, word: str) -> None:
    assert word in (await web.get("/console/login", headers={"accept-language": asked})).text


async def test_a_chosen_language_stays(web: httpx2.AsyncClient) -> None:
    korean = {"accept-language": "ko"}
    await web.post("/console/language", headers=korean)

    page = await web.get("/console/login", headers=korean)

    assert "Sign in" in page.text
    assert '<html lang="en">' in page.text


async def test_a_page_that_is_not_there_is_a_page(web: httpx2.AsyncClient) -> None:
    answer = await web.get("/console/nowhere", headers={"accept-language": "en"})

    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Page not found" in answer.text


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    """A browser without pictures: it keeps cookies and follows nothing by itself."""
    async with serving(hub) as address, httpx2.AsyncClient(base_url=address, follow_redirects=False) as client:
        yield client
