"""Access to every page and action of the route tables, so that new ones are covered automatically."""

import re
from collections.abc import AsyncGenerator, Iterator

import httpx2
import pytest
from starlette.routing import Mount, Route

from pabal.console.access.guards import Action, Page
from pabal.console.access.login import OPERATOR_COOKIE
from pabal.console.i18n import TEXTS
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
from support.clusters import open_connection
from support.operator import PASSWORD, SignedInOperator
from support.server import serve_hub

pytestmark = pytest.mark.anyio

PATH_PARAMETERS = {
    "id": str(new_id()),
    "name": "shop",
    "key": "payment.succeeded",
    "action": "block",
    "mark": "read",
    "rest": "x",
}
"""Sample values of all path parameters."""
PAGE_ROUTES = [route for route in PAGES if isinstance(route, Page)]
ACTIONS = [route for route in PAGES if isinstance(route, Action)]
VIEWER_ACTIONS = {
    "/console/logout",
    "/console/you/password",
    "/console/you/sessions/end",
    "/console/you/sessions/{id:uuid}/end",
}
"""Actions that viewers may do, because they concern only themselves."""
PUBLIC_ROUTES = {
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
"""The public routes and their status for a cross-site request. All other pages redirect or answer 401."""
REFUSALS = {
    "/console": (303, "/console/login"),
    "/portal": (303, "/portal/login"),
    "/chat": (401, ""),
    "/me": (401, ""),
}
CROSS_SITE = {"origin": "https://evil.example"}
CSP_DIRECTIVES = (
    "default-src 'none'",
    "script-src 'self'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
)
CROSS_SITE_HEADERS: tuple[dict[str, str], ...] = (
    CROSS_SITE,
    {"origin": "null", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "http://127.0.0.1"},
)
"""Headers of cross-site form submissions."""


def fill_path(path: str) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda match: PATH_PARAMETERS[match[1]], path)


def all_routes(hub: Hub) -> Iterator[tuple[str, str]]:
    """Yield the method and path of every route of the console."""
    for route in console_routes(hub):
        if isinstance(route, Mount):
            assert route.path in {"/console/static", "/static"}
        elif isinstance(route, Route) and route.path != "/":
            methods = {*(route.methods or ())} - {"HEAD"}
            yield from ((method, route.path) for method in methods)


async def count_audit_rows(database_urls: DatabaseUrls) -> int:
    """Count the rows of the audit log, which records every action."""
    async with open_connection(database_urls.direct or database_urls.main) as db:
        return await db.fetchval("select count(*) from pabal.audit_log")


@pytest.fixture
async def anonymous(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


async def test_anonymous_visitors_can_read_and_do_nothing(
    hub: Hub, anonymous: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    routes = [*all_routes(hub)]
    for method, path in routes:
        response = await anonymous.request(
            method, fill_path(path), data={"count": "0"} if method == "POST" else None, headers=CROSS_SITE
        )
        refusal = (response.status_code, response.headers.get("location", ""))
        if (method, path) in PUBLIC_ROUTES:
            assert response.status_code == PUBLIC_ROUTES[method, path], (method, path)
        else:
            expected = REFUSALS[f"/{path.split('/')[1]}"] if method == "GET" else (403, "")
            assert refusal == expected, (method, path)
            assert not re.search(r'name="(csrf|csrf_token)"|<table|<dl', response.text), (method, path)
    assert PUBLIC_ROUTES.keys() <= {*routes}
    assert len(routes) > len(PAGES) > 50
    assert await count_audit_rows(database_urls) == 0


async def test_an_unknown_cookie_is_like_no_cookie(
    hub: Hub, anonymous: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    unknown_cookies = "; ".join(f"pabal_{name}={'a' * 43}" for name in ("session", "portal", "chat", "me"))
    for method, path in all_routes(hub):
        if (method, path) not in PUBLIC_ROUTES:
            response = await anonymous.request(
                method,
                fill_path(path),
                headers={"cookie": unknown_cookies, "origin": str(anonymous.base_url).rstrip("/")},
            )
            assert (response.status_code, response.headers.get("location", "")) == REFUSALS[f"/{path.split('/')[1]}"], (
                path
            )
    assert await count_audit_rows(database_urls) == 0


async def test_a_viewer_can_only_change_their_own_profile(
    viewer: SignedInOperator, database_urls: DatabaseUrls
) -> None:
    before = await count_audit_rows(database_urls)
    for action_route in ACTIONS:
        if action_route.path not in VIEWER_ACTIONS:
            response = await viewer.post(
                fill_path(action_route.path), count="0", key="bot:user", note="x", letter=PATH_PARAMETERS["id"]
            )
            assert (response.status_code, "Only admins can do this." in response.text) == (403, True), action_route.path
    assert await count_audit_rows(database_urls) == before
    assert {action_route.path for action_route in ACTIONS if action_route.role != Role.ADMIN} == VIEWER_ACTIONS
    assert len(ACTIONS) > len(VIEWER_ACTIONS) + 25


async def test_a_viewer_sees_every_page_without_the_admin_forms(viewer: SignedInOperator) -> None:
    """A form that always answers 403 must not be shown."""
    allowed_forms = {fill_path(path) for path in VIEWER_ACTIONS} | {"/console/language"}
    for page_route in PAGE_ROUTES:
        if page_route.path != "/console/live":
            page = await viewer.get(fill_path(page_route.path))
            forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"[^>]*>(.*?)</form>', page.text, re.DOTALL)
            own_session = re.compile(r"/console/you/sessions/[0-9a-f-]{36}/end")
            assert page.status_code in {200, 404}, page_route.path
            form_actions = {action for action, inside in forms if "<button" in inside}
            assert [
                form_action for form_action in form_actions - allowed_forms if not own_session.fullmatch(form_action)
            ] == [], page_route.path


async def test_every_action_requires_the_csrf_token_of_the_session(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator, database_urls: DatabaseUrls
) -> None:
    async with hub.transaction() as tx:
        credentials = await authenticate_operator(await find_operator_credentials(tx, admin.session.name), PASSWORD)
        other_session = await find_operator_session(
            tx, await create_operator_session(tx, credentials, Actor("the same, elsewhere"))
        )
    assert other_session is not None
    csrf_tokens = (
        "",
        "0" * 64,
        "\u00e9",
        admin.session.csrf.hex()[:-1],
        viewer.session.csrf.hex(),
        other_session.csrf.hex(),
    )
    before = await count_audit_rows(database_urls)
    for action_route in ACTIONS:
        for csrf_token in csrf_tokens:
            response = await admin.post(fill_path(action_route.path), count="0", csrf_token=csrf_token)
            assert (response.status_code, "has expired" in response.text) == (403, True), (
                action_route.path,
                csrf_token,
            )
        for headers in CROSS_SITE_HEADERS:
            request_facts = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"} | headers
            form = {"csrf_token": admin.session.csrf.hex(), "count": "0"}
            response = await admin.web.post(fill_path(action_route.path), data=form, headers=request_facts)
            assert response.status_code == 403, (action_route.path, headers)
    assert await count_audit_rows(database_urls) == before


async def test_a_browser_without_an_origin_header_is_accepted_with_the_csrf_token(
    hub: Hub, admin: SignedInOperator
) -> None:
    """Without a referrer the origin is null, and over plain HTTP there is no Sec-Fetch-Site header."""
    request_facts = {"cookie": f"{OPERATOR_COOKIE}={admin.token}", "origin": "null"}
    refused = await admin.web.post("/console/logout", headers=request_facts)
    response = await admin.web.post(
        "/console/logout", data={"csrf_token": admin.session.csrf.hex()}, headers=request_facts
    )

    assert refused.status_code == 403
    assert (response.status_code, response.headers["location"]) == (303, "/console/login")
    async with hub.autocommit() as tx:
        assert not await is_operator_session_active(tx, admin.session.session_id)


async def test_every_response_has_the_security_headers_and_is_not_cached(
    hub: Hub, admin: SignedInOperator, database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers signed-in, anonymous and cross-site requests, and the statuses 404, 405, 413 and 500."""
    own_headers = {"cookie": f"{OPERATOR_COOKIE}={admin.token}", "origin": str(admin.web.base_url).rstrip("/")}
    responses: list[httpx2.Response] = []
    for method, path in all_routes(hub):
        if not path.endswith("/live") and path != "/console/logout":
            form = {"csrf_token": admin.session.csrf.hex()} if method == "POST" else None
            responses += [
                await admin.web.request(method, fill_path(path), data=form, headers=headers)
                for headers in (own_headers, CROSS_SITE)
            ]
    for method, path in (("PUT", "/console"), ("POST", "/console/health"), ("GET", "/portal/code"), ("PUT", "/me")):
        responses.append(await admin.web.request(method, path, headers=own_headers))
    responses.append(await admin.web.post("/console/login", content=b"x" * 70_000))
    async with open_connection(database_urls.direct or database_urls.main) as db:
        await db.execute("alter table pabal.audit_log rename to gone")
    monkeypatch.delitem(TEXTS["en"], "login.password_hint")
    broken = [await admin.get("/console/audit"), await admin.web.get("/console/login")]

    assert [page.status_code for page in broken] == [500, 500]
    assert not re.search(r"audit_log|password|KeyError|Traceback", "".join(page.text for page in broken))
    assert {200, 303, 307, 400, 401, 403, 404, 405, 413} <= {response.status_code for response in responses}
    for response in (*responses, *broken):
        request_facts = (response.request.method, response.request.url.path, response.status_code)
        policy = response.headers["content-security-policy"].split("; ")
        assert {*CSP_DIRECTIVES} <= {*policy}, request_facts
        assert not re.search(r"unsafe|\*|https?:", " ".join(policy)), request_facts
        assert response.headers["x-frame-options"] == "DENY", request_facts
        assert response.headers["x-content-type-options"] == "nosniff", request_facts
        assert response.headers["referrer-policy"] in {"no-referrer", "same-origin"}, request_facts
        if response.headers.get("content-type", "").startswith("text/html"):
            assert response.headers["cache-control"] == "no-store", request_facts
