"""The toasts API: inbox, stream and preferences of one person only."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx2
import pytest

from pabal.api import routes
from pabal.api.toasts import stream_toast_events
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.notifications.people.tokens import (
    PERSON_LINK_LIFETIME,
    exchange_person_link,
    find_person_by_token,
    revoke_person_token,
)
from pabal.notifications.toasts.inbox import ToastAction
from pabal.tokens.permission import Permission
from pabal.web.auth import PERSON_COOKIE
from pabal.web.reference.openapi import build_openapi
from pabal.web.route import Route
from relay.bot import connect_stream
from relay.people import add_account
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, register_oauth_service
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
PERSON_ROUTES = tuple(route for route in routes.ROUTES if route.person_auth)
PERSON_ONLY_ROUTES = tuple(route for route in PERSON_ROUTES if not route.permission)
STREAM = "/v1/toasts/stream"
USER = "0192f0c1-0000-7000-8000-000000000001"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def service_header(hub: Hub, web: httpx2.AsyncClient, *permissions: Permission) -> dict[str, str]:
    """The authorization header of a service with these permissions."""
    return bearer((await (await register_oauth_service(hub, web, "shop", *permissions)).tokens())["access_token"])


async def send_request(web: httpx2.AsyncClient, route: Route, header: dict[str, str]) -> httpx2.Response:
    path = route.path.format(id=new_id(), user_id=MINA)
    return await web.request(route.method, path, content=b"{" if route.body_type else None, headers=header)


# Tokens


async def test_a_service_gets_a_token_and_a_url_for_a_person(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    header = await service_header(hub, web, Permission.ISSUE_PERSON_TOKENS)
    response = await web.post(f"/v1/people/{MINA}/token", headers=header)

    assert response.status_code == 201
    link = response.json()
    url = urlsplit(link["url"])
    assert (url.path, parse_qs(url.query)) == ("/me", {"token": [link["token"]]})
    assert (await web.get("/v1/toasts", headers=bearer(link["token"]))).status_code == 200
    assert await inbox.db.fetchval("select issued_by from notification.person_tokens") == "shop"


async def test_only_a_service_with_the_permission_gets_a_person_token(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    header = await service_header(hub, web, Permission.SEND, Permission.WRITE_PEOPLE, Permission.ADMIN)

    assert (await web.post(f"/v1/people/{MINA}/token", headers=header)).status_code == 403
    assert (await web.post(f"/v1/people/{MINA}/token", headers=bearer(await inbox.token()))).status_code == 401
    assert (await web.post(f"/v1/people/{MINA}/token")).status_code == 401
    assert await inbox.db.fetchval("select count(*) from notification.person_tokens") == 1


# Authorization


def test_person_endpoints_are_documented() -> None:
    assert {(route.method, route.path) for route in PERSON_ROUTES} == {
        ("GET", "/v1/toasts"),
        ("GET", STREAM),
        ("GET", "/me/stream"),
        ("POST", "/v1/toasts/ticket"),
        ("POST", "/v1/toasts/read"),
        ("POST", "/v1/toasts/{id}/seen"),
        ("POST", "/v1/toasts/{id}/read"),
        ("POST", "/v1/toasts/{id}/archive"),
        ("GET", "/v1/preferences/{user_id}"),
        ("PUT", "/v1/preferences/{user_id}"),
    }
    document = build_openapi(routes.ROUTES)
    assert document["components"]["securitySchemes"]["cookie"]["name"] == PERSON_COOKIE
    for route in PERSON_ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        service_security = [{"token": ["people:write"]}] if route.permission else []
        ticket_security = [{"ticket": []}] if route.path == STREAM else []
        assert operation["security"] == [*service_security, {"person": []}, {"cookie": []}, *ticket_security]
        assert {"401", "403", "503"} <= operation["responses"].keys()


async def test_invalid_person_tokens_are_refused(
    hub: Hub, web: httpx2.AsyncClient, address: str, inbox: Inbox, travel: Travel
) -> None:
    expired = await inbox.token()
    await travel(PERSON_LINK_LIFETIME)
    used = await inbox.token()
    async with hub.transaction() as tx:
        cookie = await exchange_person_link(tx, used)
        assert cookie
        revoked = await find_person_by_token(tx, await inbox.cookie(), "cookie")
        await revoke_person_token(tx, revoked)
    token_hash = await inbox.db.fetchval(
        "select token_hash from notification.person_tokens where kind = 'cookie' limit 1"
    )
    wrong_headers = {
        "no header": {},
        "an empty header": {"authorization": ""},
        "garbage": bearer("garbage"),
        "unknown": bearer("pbp_" + "a" * 43),
        "expired": bearer(expired),
        "used": bearer(used),
        "a cookie as a token": bearer(cookie),
        "the stored hash": bearer(token_hash),
        "a person's id": bearer(MINA),
        "a link as a cookie": {"cookie": f"{PERSON_COOKIE}={await inbox.token()}", "origin": address},
        "an unknown cookie": {"cookie": f"{PERSON_COOKIE}=x", "origin": address},
        "a relay token": (await add_account(hub)).bearer,
    }
    statuses = {
        (route.path, name): (await send_request(web, route, header)).status_code
        for route in PERSON_ROUTES
        for name, header in wrong_headers.items()
    }
    assert {key: status for key, status in statuses.items() if status != 401} == {}

    all_permissions = await service_header(hub, web, *Permission)
    assert {(await send_request(web, route, all_permissions)).status_code for route in PERSON_ONLY_ROUTES} == {401}


async def test_a_person_token_is_refused_by_service_endpoints(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    service_routes = [
        route for route in routes.ROUTES if (route.permission or route.relay_auth) and not route.person_auth
    ]
    headers = [bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}"}]

    assert len(service_routes) > 20
    assert {(await call_route(web, route, header)).status_code for route in service_routes for header in headers} == {
        401
    }


async def call_route(web: httpx2.AsyncClient, route: Route, header: dict[str, str]) -> httpx2.Response:
    path = route.path.format(
        **{name: str(new_id()) if kind is UUID else "x" for name, kind in route.path_types.items()}
    )
    return await web.request(route.method, path, content=b"{" if route.body_type else None, headers=header)


@pytest.mark.parametrize("credential", ["token", "cookie"])
async def test_a_person_cannot_access_toasts_of_another(
    web: httpx2.AsyncClient, address: str, inbox: Inbox, credential: str
) -> None:
    """With ids of another person, and with unknown ids."""
    toast = await inbox.insert_toast(MINA, title="private")
    archived_toast = await inbox.insert_toast(MINA)
    await inbox.mark(archived_toast, ToastAction.ARCHIVE)
    await inbox.db.execute("insert into identity.users (id) values ($1)", USER)
    await inbox.db.execute("insert into notification.people (discord_id, user_id) values ($1, $2)", MINA, USER)
    await inbox.db.execute("insert into notification.preferences (user_id, dm_enabled) values ($1, false)", USER)
    if credential == "token":
        other_header = bearer(await inbox.token(JUN))
    else:
        other_header = {"cookie": f"{PERSON_COOKIE}={await inbox.cookie(JUN)}", "origin": address}
    before = await person_rows(inbox)

    for archived in ("false", "true"):
        listed = (await web.get("/v1/toasts", params={"archived": archived}, headers=other_header)).json()
        assert (listed["items"], listed["unread"], listed["last"]) == ([], 0, 0)
    for toast_id in (toast, archived_toast, new_id()):
        for action in ("seen", "read", "archive"):
            assert (await web.post(f"/v1/toasts/{toast_id}/{action}", headers=other_header)).status_code == 404
    for user_id in (MINA, USER, str(new_id()), "80351110224678999"):
        path = f"/v1/preferences/{user_id}"
        read_response = await web.get(path, headers=other_header)
        write_response = await web.put(path, headers=other_header, json={"dm_enabled": True})
        assert (read_response.status_code, write_response.status_code) == (404, 404)
        assert read_response.json()["detail"] == write_response.json()["detail"] == "No such person"

    assert await person_rows(inbox) == before
    assert await inbox.db.fetchval("select count(*) from notification.people") == 1


async def person_rows(inbox: Inbox) -> dict[str, list[dict[str, Any]]]:
    tables = ("toasts", "people", "preferences", "requests")
    return {
        table: [dict(row) for row in await inbox.db.fetch(f"select * from notification.{table} order by 1")]
        for table in tables
    }


async def test_a_stream_has_only_the_persons_own_changes(address: str, inbox: Inbox) -> None:
    async with connect_stream(address, await inbox.token(JUN), path=f"{STREAM}?after=0") as client:
        await client.next("connected")
        await inbox.insert_toast(MINA)
        own_toast = await inbox.insert_toast(JUN)

        assert (await client.next("toast")).data["toast"]["id"] == str(own_toast)
        next_toast = await inbox.insert_toast(JUN)
        assert (await client.first()).data["toast"]["id"] == str(next_toast)


# Inbox


async def test_the_inbox_is_paginated(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    ids = [await inbox.insert_toast(title=None, body=f"{number}") for number in range(5)]
    await inbox.mark(ids[0], ToastAction.READ)
    header = bearer(await inbox.token())
    params: dict[str, Any] = {"limit": 2}
    page = (await web.get("/v1/toasts", params=params, headers=header)).json()
    toasts: list[dict[str, Any]] = page["items"]
    while page["cursor"]:
        page = (await web.get("/v1/toasts", params=params | {"cursor": page["cursor"]}, headers=header)).json()
        toasts += page["items"]

    assert [toast["id"] for toast in toasts] == [str(toast_id) for toast_id in ids[::-1]]
    assert [toast["state"] for toast in toasts] == ["unseen"] * 4 + ["read"]
    assert page["unread"] == 4
    assert toasts[0].keys() == {
        *("id", "category", "criticality", "locale", "title", "body"),
        *("state", "created_at", "seen_at", "read_at", "archived_at"),
    }


async def test_a_toast_is_marked_seen_read_and_archived(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
    toast = await inbox.insert_toast()
    headers = (bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}", "origin": address})
    states: list[str] = []
    for action, header in (("seen", headers[0]), ("read", headers[1]), ("archive", headers[0]), ("seen", headers[1])):
        response = await web.post(f"/v1/toasts/{toast}/{action}", headers=header)
        states.append(response.json()["state"])

    assert states == ["seen", "read", "archived", "archived"]
    assert (await web.get("/v1/toasts", headers=headers[0])).json()["items"] == []
    archived = (await web.get("/v1/toasts", params={"archived": "true"}, headers=headers[0])).json()
    assert [row["id"] for row in archived["items"]] == [str(toast)]


# Stream


async def test_all_toasts_of_the_person_are_marked_as_read_at_once(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    for recipient in (MINA, MINA, MINA, JUN):
        await inbox.insert_toast(recipient)
    header = bearer(await inbox.token(MINA))
    [first, *_] = await inbox.list_toasts()
    await inbox.mark(first.id, ToastAction.ARCHIVE)

    answers = [(await web.post("/v1/toasts/read", headers=header)).json() for _ in range(2)]

    assert answers == [{"marked": 2}, {"marked": 0}]
    assert (await web.get("/v1/toasts", headers=header)).json()["unread"] == 0
    assert await inbox.unread(JUN) == 1


async def test_the_stream_continues_where_the_list_ended(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
    old = await inbox.insert_toast(title="old")
    token = await inbox.token()
    listed = (await web.get("/v1/toasts", headers=bearer(token))).json()
    between = await inbox.insert_toast(title="between")
    async with connect_stream(address, token, path=f"{STREAM}?after={listed['last']}") as client:
        first = await client.read()
        assert first is not None
        assert (client.status, client.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (first.name, first.data, first.id) == ("connected", {"unread": 2}, listed["last"])
        assert (await client.next("toast")).data["toast"]["id"] == str(between)
        await web.post(f"/v1/toasts/{old}/read", headers=bearer(token))
        change = await client.next("toast")

    assert (change.data["toast"]["id"], change.data["toast"]["state"], change.data["unread"]) == (str(old), "read", 1)
    assert change.id > first.id


async def test_a_reconnecting_client_gets_the_rest_once(address: str, inbox: Inbox) -> None:
    token = await inbox.token()
    ids = [await inbox.insert_toast() for _ in range(4)]
    async with connect_stream(address, token, path=f"{STREAM}?after=0") as client:
        for toast_id in ids[:2]:
            assert (await client.next("toast")).data["toast"]["id"] == str(toast_id)
        last = client.last
    async with connect_stream(address, token, last, path=f"{STREAM}?after=0") as reconnected:
        for toast_id in ids[2:]:
            assert (await reconnected.next("toast")).data["toast"]["id"] == str(toast_id)
        next_toast = await inbox.insert_toast()
        assert (await reconnected.first()).data["toast"]["id"] == str(next_toast)


async def test_a_client_that_only_connected_has_lost_nothing(hub: Hub, inbox: Inbox) -> None:
    """The first event names the start of the stream, not the toasts that are waiting to be sent."""
    await inbox.insert_toast()
    stream, now = await hub.toast_streams.open(await inbox.person(), 0)
    await wait_until(lambda: stream.last_seq > 0)
    lines = stream_toast_events(hub, stream, now)

    connected, toast = await anext(lines), await anext(lines)
    await lines.aclose()

    assert connected.startswith(b"id: 0\nevent: connected\n")
    assert toast.startswith(f"id: {stream.last_seq}\nevent: toast\n".encode())
    assert len(hub.toast_streams) == 0


async def test_a_stream_without_a_number_starts_now(address: str, inbox: Inbox) -> None:
    await inbox.insert_toast()
    async with connect_stream(address, await inbox.token(), path=STREAM) as client:
        await client.next("connected")
        toast = await inbox.insert_toast()
        assert (await client.first()).data["toast"]["id"] == str(toast)


@pytest.mark.parametrize("after", ["-1", "x", str(2**63)])
async def test_an_invalid_number_is_reported(web: httpx2.AsyncClient, inbox: Inbox, after: str) -> None:
    response = await web.get(STREAM, params={"after": after}, headers=bearer(await inbox.token()))

    assert (response.status_code, response.json()["mistakes"][0]["field"]) == (400, "after")


async def test_a_stream_ends_with_its_token_and_with_the_hub(
    hub: Hub, address: str, inbox: Inbox, travel: Travel
) -> None:
    async with connect_stream(address, await inbox.token(), path=STREAM) as client:
        await client.next("connected")
        await travel(PERSON_LINK_LIFETIME)
        async with asyncio.timeout(10):
            assert await client.read() is None
    async with connect_stream(address, await inbox.token(), path=STREAM) as other:
        await other.next("connected")
        await hub.begin_shutdown()
        async with asyncio.timeout(10):
            assert await other.read() is None
    await wait_until(lambda: len(hub.toast_streams) == 0)


async def test_a_head_request_opens_no_stream(web: httpx2.AsyncClient, hub: Hub, inbox: Inbox) -> None:
    header = bearer(await inbox.token())

    response = await web.head(STREAM, headers=header)

    assert response.status_code == 405
    assert len(hub.toast_streams) == 0
    assert (await web.get("/v1/toasts", headers=header)).status_code == 200  # on the same connection


async def test_open_streams_hold_no_database_connection(hub: Hub, address: str, inbox: Inbox) -> None:
    tokens = [await inbox.token(str(number)) for number in range(15)]
    streams = [connect_stream(address, token, path=STREAM) for token in tokens]
    clients = [await stream.__aenter__() for stream in streams]
    for client in clients:
        await client.next("connected")

    await wait_until(lambda: hub.db.connections_in_use() == 0)
    assert len(hub.toast_streams) == 15
    for stream in streams:
        await stream.__aexit__(None, None, None)
    await wait_until(lambda: len(hub.toast_streams) == 0)
