"""Every page and every deed there is, read from the tables: a new one is held to this before anybody thinks of it."""

import re
from collections.abc import AsyncGenerator, Iterator

import httpx2
import pytest
from starlette.routing import Mount, Route

from pabal.console.guards import Action, Page
from pabal.console.i18n import TEXTS
from pabal.console.login import OPERATOR_COOKIE
from pabal.console.routes import PAGES, console_routes
from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.operators.operators import Role, find_operator_credentials
from pabal.operators.sessions import (
    authenticate_operator,
    create_operator_session,
    find_operator_session,
    is_operator_session_active,
)
from support.clusters import connected
from support.operator import PASSWORD, Signed
from support.server import serving

pytestmark = pytest.mark.anyio

HERE = {"id": str(new_id()), "name": "shop", "key": "payment.succeeded", "action": "block", "mark": "read", "rest": "x"}
"""What stands for each thing an address names; somebody who names another adds it."""
LOOKS = [each for each in PAGES if isinstance(each, Page)]
DEEDS = [each for each in PAGES if isinstance(each, Action)]
FOR_EVERYBODY = {
    "/console/logout",
    "/console/you/password",
    "/console/you/sessions/end",
    "/console/you/sessions/{id:uuid}/end",
}
"""Deeds a viewer may do: they are about the viewer."""
DOORS = {
    ("GET", "/console/"): 307,
    ("GET", "/console/login"): 200,
    ("POST", "/console/login"): 403,
    ("POST", "/console/language"): 403,
    ("GET", "/console/{rest:path}"): 404,
    ("GET", "/portal/login"): 200,
    ("POST", "/portal/login"): 403,
    ("POST", "/portal/language"): 403,
    ("GET", "/portal/{rest:path}"): 404,
    ("POST", "/chat"): 403,
    ("POST", "/chat/language"): 403,
    ("GET", "/chat/{rest:path}"): 404,
    ("POST", "/me"): 403,
    ("GET", "/me/{rest:path}"): 404,
}
"""All that answers whoever is not signed in, and how, when another site sends it. Everything else turns them away."""
AWAY = {"/console": (303, "/console/login"), "/portal": (303, "/portal/login"), "/chat": (401, ""), "/me": (401, "")}
ELSEWHERE = {"origin": "https://evil.example"}
POLICY = ("default-src 'none'", "script-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'")
NOT_OURS: tuple[dict[str, str], ...] = (
    ELSEWHERE,
    {"origin": "null", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "http://127.0.0.1"},
)
"""How a browser says that a form is from somewhere else, whatever it knows."""


def at(path: str) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda named: HERE[named[1]], path)


def every_way(hub: Hub) -> Iterator[tuple[str, str]]:
    """Each method and path that people's pages have."""
    for route in console_routes(hub):
        if isinstance(route, Mount):
            assert route.path == "/console/static"
        elif isinstance(route, Route) and route.path != "/":
            methods = {*(route.methods or ())} - {"HEAD"}
            yield from ((method, route.path) for method in methods)


async def written(database_urls: DatabaseUrls) -> int:
    """Rows of the audit log, where every deed is written down."""
    async with connected(database_urls.direct or database_urls.main) as db:
        return await db.fetchval("select count(*) from pabal.audit_log")


@pytest.fixture
async def nobody(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


async def test_whoever_is_not_signed_in_sees_and_does_nothing(
    hub: Hub, nobody: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    ways = [*every_way(hub)]
    for method, path in ways:
        answer = await nobody.request(
            method, at(path), data={"count": "0"} if method == "POST" else None, headers=ELSEWHERE
        )
        found = (answer.status_code, answer.headers.get("location", ""))
        if (method, path) in DOORS:
            assert answer.status_code == DOORS[method, path], (method, path)
        else:
            assert found == AWAY[f"/{path.split('/')[1]}"], (method, path)
            assert not re.search(r'name="(csrf|csrf_token)"|<table|<dl', answer.text), (method, path)
    assert DOORS.keys() <= {*ways}
    assert len(ways) > len(PAGES) > 50
    assert await written(database_urls) == 0


async def test_a_cookie_that_is_nobodys_is_no_better_than_none(
    hub: Hub, nobody: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    made_up = "; ".join(f"pabal_{name}={'a' * 43}" for name in ("session", "portal", "chat", "person"))
    for method, path in every_way(hub):
        if (method, path) not in DOORS:
            answer = await nobody.request(
                method, at(path), headers={"cookie": made_up, "origin": str(nobody.base_url).rstrip("/")}
            )
            assert (answer.status_code, answer.headers.get("location", "")) == AWAY[f"/{path.split('/')[1]}"], path
    assert await written(database_urls) == 0


async def test_a_viewer_does_no_deed_but_those_about_themselves(viewer: Signed, database_urls: DatabaseUrls) -> None:
    before = await written(database_urls)
    for deed in DEEDS:
        if deed.path not in FOR_EVERYBODY:
            answer = await viewer.post(at(deed.path), count="0", key="bot:user", note="x", letter=HERE["id"])
            assert (answer.status_code, "Only admins can do this." in answer.text) == (403, True), deed.path
    assert await written(database_urls) == before
    assert {deed.path for deed in DEEDS if deed.role != Role.ADMIN} == FOR_EVERYBODY
    assert len(DEEDS) > len(FOR_EVERYBODY) + 25


async def test_a_viewer_sees_every_page_and_no_form_that_is_not_theirs(viewer: Signed) -> None:
    """A button that only says no is no button."""
    theirs = {at(path) for path in FOR_EVERYBODY} | {"/console/language"}
    for look in LOOKS:
        if look.path != "/console/live":
            page = await viewer.get(at(look.path))
            forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"[^>]*>(.*?)</form>', page.text, re.DOTALL)
            own = re.compile(r"/console/you/sessions/[0-9a-f-]{36}/end")
            assert page.status_code in {200, 404}, look.path
            sends = {action for action, inside in forms if "<button" in inside}
            assert [each for each in sends - theirs if not own.fullmatch(each)] == [], look.path


async def test_every_deed_needs_a_form_of_ours_in_the_same_session(
    hub: Hub, admin: Signed, viewer: Signed, database_urls: DatabaseUrls
) -> None:
    async with hub.transaction() as tx:
        known = await authenticate_operator(await find_operator_credentials(tx, admin.session.name), PASSWORD)
        twin = await find_operator_session(tx, await create_operator_session(tx, known, Actor("the same, elsewhere")))
    assert twin is not None
    csrf_tokens = ("", "0" * 64, "\u00e9", admin.session.csrf.hex()[:-1], viewer.session.csrf.hex(), twin.csrf.hex())
    before = await written(database_urls)
    for deed in DEEDS:
        for csrf_token in csrf_tokens:
            answer = await admin.post(at(deed.path), count="0", csrf_token=csrf_token)
            assert (answer.status_code, "has expired" in answer.text) == (403, True), (deed.path, csrf_token)
        for headers in NOT_OURS:
            told = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"} | headers
            form = {"csrf_token": admin.session.csrf.hex(), "count": "0"}
            answer = await admin.web.post(at(deed.path), data=form, headers=told)
            assert answer.status_code == 403, (deed.path, headers)
    assert await written(database_urls) == before


async def test_a_browser_that_tells_nobody_where_it_comes_from_has_the_forms_own_secret(
    hub: Hub, admin: Signed
) -> None:
    """Without a referrer a browser's origin is null; over plain HTTP it says nothing else either."""
    told = {"cookie": f"{OPERATOR_COOKIE}={admin.token}", "origin": "null"}
    refused = await admin.web.post("/console/logout", headers=told)
    answer = await admin.web.post("/console/logout", data={"csrf_token": admin.session.csrf.hex()}, headers=told)

    assert refused.status_code == 403
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")
    async with hub.autocommit() as tx:
        assert not await is_operator_session_active(tx, admin.session.session_id)


async def test_every_answer_wears_the_policy_and_nothing_that_was_shown_is_kept(
    hub: Hub, admin: Signed, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an operator, of nobody, of another site; what is not there, not possible, too large, or broken."""
    ours = {"cookie": f"{OPERATOR_COOKIE}={admin.token}", "origin": str(admin.web.base_url).rstrip("/")}
    answers: list[httpx2.Response] = []
    for method, path in every_way(hub):
        if not path.endswith("/live") and path != "/console/logout":
            form = {"csrf_token": admin.session.csrf.hex()} if method == "POST" else None
            answers += [
                await admin.web.request(method, at(path), data=form, headers=each) for each in (ours, ELSEWHERE)
            ]
    for method, path in (("PUT", "/console"), ("POST", "/console/health"), ("GET", "/portal/code"), ("PUT", "/me")):
        answers.append(await admin.web.request(method, path, headers=ours))
    answers.append(await admin.web.post("/console/login", content=b"x" * 70_000))
    async with connected(database_urls.direct or database_urls.main) as db:
        await db.execute("alter table pabal.audit_log rename to gone")
    monkeypatch.delitem(TEXTS["en"], "login.password_hint")
    broken = [await admin.get("/console/audit"), await admin.web.get("/console/login")]

    assert [each.status_code for each in broken] == [500, 500]
    assert not re.search(r"audit_log|password|KeyError|Traceback", "".join(each.text for each in broken))
    assert {200, 303, 307, 400, 401, 403, 404, 405, 413} <= {each.status_code for each in answers}
    for answer in (*answers, *broken):
        told = (answer.request.method, answer.request.url.path, answer.status_code)
        policy = answer.headers["content-security-policy"].split("; ")
        assert {*POLICY} <= {*policy}, told
        assert not re.search(r"unsafe|\*|https?:", " ".join(policy)), told
        assert answer.headers["x-frame-options"] == "DENY", told
        assert answer.headers["x-content-type-options"] == "nosniff", told
        assert answer.headers["referrer-policy"] in {"no-referrer", "same-origin"}, told
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert answer.headers["cache-control"] == "no-store", told
