"""The toasts API: inbox, stream and preferences of one person, and of no other."""

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
from pabal.web.openapi import build_openapi
from pabal.web.route import Route
from relay.bot import bot
from relay.people import an_owner
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, enrol
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
OWN_SCAN = tuple(door for door in routes.ROUTES if door.person_auth)
ONLY_OWN = tuple(door for door in OWN_SCAN if not door.permission)
STREAM = "/v1/toasts/stream"
USER = "0192f0c1-0000-7000-8000-000000000001"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serving(hub) as where:
        yield where


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def service(hub: Hub, web: httpx2.AsyncClient, *permissions: Permission) -> dict[str, str]:
    """How a service with these permissions comes."""
    return bearer((await (await enrol(hub, web, "shop", *permissions)).tokens())["access_token"])


async def send_request(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    path = door.path.format(id=new_id(), user_id=MINA)
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


# Tokens


async def test_a_service_gets_a_token_and_a_url_for_a_person(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    answer = await web.post(f"/v1/people/{MINA}/token", headers=await service(hub, web, Permission.SEND))

    assert answer.status_code == 201
    result = answer.json()
    where = urlsplit(result["url"])
    assert (where.path, parse_qs(where.query)) == ("/me", {"token": [result["token"]]})
    assert (await web.get("/v1/toasts", headers=bearer(result["token"]))).status_code == 200
    assert await inbox.db.fetchval("select issued_by from notification.person_tokens") == "shop"


async def test_only_a_sending_service_gets_a_person_token(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    reads = await service(hub, web, Permission.READ_NOTIFICATIONS)

    assert (await web.post(f"/v1/people/{MINA}/token", headers=reads)).status_code == 403
    assert (await web.post(f"/v1/people/{MINA}/token", headers=bearer(await inbox.token()))).status_code == 401
    assert (await web.post(f"/v1/people/{MINA}/token")).status_code == 401
    assert await inbox.db.fetchval("select count(*) from notification.person_tokens") == 1


# Who may come in


def test_person_endpoints_are_documented() -> None:
    assert {(door.method, door.path) for door in OWN_SCAN} == {
        ("GET", "/v1/toasts"),
        ("GET", STREAM),
        ("POST", "/v1/toasts/{id}/seen"),
        ("POST", "/v1/toasts/{id}/read"),
        ("POST", "/v1/toasts/{id}/archive"),
        ("GET", "/v1/preferences/{user_id}"),
        ("PUT", "/v1/preferences/{user_id}"),
    }
    document = build_openapi(routes.ROUTES)
    assert document["components"]["securitySchemes"]["cookie"]["name"] == PERSON_COOKIE
    for door in OWN_SCAN:
        format_time = document["paths"][door.path][door.method.lower()]
        also = [{"token": ["notifications:send"]}] if door.permission else []
        assert format_time["security"] == [*also, {"person": []}, {"cookie": []}]
        assert {"401", "403", "503"} <= format_time["responses"].keys()


async def test_invalid_person_tokens_are_refused(
    hub: Hub, web: httpx2.AsyncClient, address: str, inbox: Inbox, travel: Travel
) -> None:
    expired = await inbox.token()
    await travel(PERSON_LINK_LIFETIME)
    used = await inbox.token()
    async with hub.transaction() as tx:
        cookie = await exchange_person_link(tx, used)
        assert cookie
        gone = await find_person_by_token(tx, await inbox.cookie(), "cookie")
        await revoke_person_token(tx, gone)
    stored = await inbox.db.fetchval("select token_hash from notification.person_tokens where kind = 'cookie' limit 1")
    wrong = {
        "nothing": {},
        "an empty header": {"authorization": ""},
        "garbage": bearer("garbage"),
        "unknown": bearer("pbp_" + "a" * 43),
        "expired": bearer(expired),
        "swapped": bearer(used),
        "a cookie as a token": bearer(cookie),
        "what is stored": bearer(stored),
        "a person's id": bearer(MINA),
        "a link as a cookie": {"cookie": f"{PERSON_COOKIE}={await inbox.token()}", "origin": address},
        "no cookie of ours": {"cookie": f"{PERSON_COOKIE}=x", "origin": address},
        "a bot owner's": (await an_owner(hub)).bearer,
    }
    tried = {
        (door.path, name): (await send_request(web, door, header)).status_code
        for door in OWN_SCAN
        for name, header in wrong.items()
    }
    assert {key: status for key, status in tried.items() if status != 401} == {}

    everything = await service(hub, web, *Permission)
    assert {(await send_request(web, door, everything)).status_code for door in ONLY_OWN} == {401}


async def test_a_person_token_is_refused_by_service_endpoints(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    theirs = [door for door in routes.ROUTES if (door.permission or door.relay_auth) and not door.person_auth]
    keys = [bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}"}]

    assert len(theirs) > 20
    assert {(await knock_at(web, door, key)).status_code for door in theirs for key in keys} == {401}


async def knock_at(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    path = door.path.format(**{name: str(new_id()) if kind is UUID else "x" for name, kind in door.path_types.items()})
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


@pytest.mark.parametrize("way", ["token", "cookie"])
async def test_a_person_cannot_access_toasts_of_another(
    web: httpx2.AsyncClient, address: str, inbox: Inbox, way: str
) -> None:
    """With ids of another person, and with unknown ids."""
    toast = await inbox.arrive(MINA, title="between us")
    put_away = await inbox.arrive(MINA)
    await inbox.mark(put_away, ToastAction.ARCHIVE)
    await inbox.db.execute("insert into identity.users (id) values ($1)", USER)
    await inbox.db.execute("insert into notification.people (discord_id, user_id) values ($1, $2)", MINA, USER)
    await inbox.db.execute("insert into notification.preferences (user_id, dm_enabled) values ($1, false)", USER)
    if way == "token":
        stranger = bearer(await inbox.token(JUN))
    else:
        stranger = {"cookie": f"{PERSON_COOKIE}={await inbox.cookie(JUN)}", "origin": address}
    before = await person_rows(inbox)

    for archived in ("false", "true"):
        seen = (await web.get("/v1/toasts", params={"archived": archived}, headers=stranger)).json()
        assert (seen["items"], seen["unread"], seen["last"]) == ([], 0, 0)
    for item in (toast, put_away, new_id()):
        for word in ("seen", "read", "archive"):
            assert (await web.post(f"/v1/toasts/{item}/{word}", headers=stranger)).status_code == 404
    for item in (MINA, USER, str(new_id()), "nobody"):
        path = f"/v1/preferences/{item}"
        shown = await web.get(path, headers=stranger)
        changed = await web.put(path, headers=stranger, json={"dm_enabled": True})
        assert (shown.status_code, changed.status_code) == (404, 404)
        assert shown.json()["detail"] == changed.json()["detail"] == "No such person"

    assert await person_rows(inbox) == before
    assert await inbox.db.fetchval("select count(*) from notification.people") == 1


async def person_rows(inbox: Inbox) -> dict[str, list[dict[str, Any]]]:
    tables = ("toasts", "people", "preferences", "requests")
    return {
        item: [dict(row) for row in await inbox.db.fetch(f"select * from notification.{item} order by 1")]
        for item in tables
    }


async def test_a_stream_has_only_the_persons_own_changes(address: str, inbox: Inbox) -> None:
    async with bot(address, await inbox.token(JUN), path=f"{STREAM}?after=0") as theirs:
        await theirs.next("connected")
        await inbox.arrive(MINA)
        mine = await inbox.arrive(JUN)

        assert (await theirs.next("toast")).data["toast"]["id"] == str(mine)
        after = await inbox.arrive(JUN)
        assert (await theirs.first()).data["toast"]["id"] == str(after)


# The inbox


async def test_the_inbox_is_paginated(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    ids = [await inbox.arrive(title=None, body=f"{number}") for number in range(5)]
    await inbox.mark(ids[0], ToastAction.READ)
    me = bearer(await inbox.token())
    requested: dict[str, Any] = {"limit": 2}
    page = (await web.get("/v1/toasts", params=requested, headers=me)).json()
    rows: list[dict[str, Any]] = page["items"]
    while page["cursor"]:
        page = (await web.get("/v1/toasts", params=requested | {"cursor": page["cursor"]}, headers=me)).json()
        rows += page["items"]

    assert [item["id"] for item in rows] == [str(item) for item in ids[::-1]]
    assert [item["state"] for item in rows] == ["unseen"] * 4 + ["read"]
    assert page["unread"] == 4
    assert rows[0].keys() == {
        *("id", "category", "criticality", "locale", "title", "body"),
        *("state", "created_at", "seen_at", "read_at", "archived_at"),
    }


async def test_a_toast_is_marked_seen_read_and_archived(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
    toast = await inbox.arrive()
    keys = (bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}", "origin": address})
    states: list[str] = []
    for word, key in (("seen", keys[0]), ("read", keys[1]), ("archive", keys[0]), ("seen", keys[1])):
        answer = await web.post(f"/v1/toasts/{toast}/{word}", headers=key)
        states.append(answer.json()["state"])

    assert states == ["seen", "read", "archived", "archived"]
    assert (await web.get("/v1/toasts", headers=keys[0])).json()["items"] == []
    archived = (await web.get("/v1/toasts", params={"archived": "true"}, headers=keys[0])).json()
    assert [item["id"] for item in archived["items"]] == [str(toast)]


# The stream


async def test_the_stream_continues_where_the_list_ended(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
    old = await inbox.arrive(title="old")
    token = await inbox.token()
    listed = (await web.get("/v1/toasts", headers=bearer(token))).json()
    between = await inbox.arrive(title="between")
    async with bot(address, token, path=f"{STREAM}?after={listed['last']}") as client:
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
    ids = [await inbox.arrive() for _ in range(4)]
    async with bot(address, token, path=f"{STREAM}?after=0") as client:
        for item in ids[:2]:
            assert (await client.next("toast")).data["toast"]["id"] == str(item)
        last = client.last
    async with bot(address, token, last, path=f"{STREAM}?after=0") as again:
        for item in ids[2:]:
            assert (await again.next("toast")).data["toast"]["id"] == str(item)
        after = await inbox.arrive()
        assert (await again.first()).data["toast"]["id"] == str(after)


async def test_a_client_that_only_connected_has_lost_nothing(hub: Hub, inbox: Inbox) -> None:
    """The first event names where the stream begins, not what already waits to be sent."""
    await inbox.arrive()
    stream, now = await hub.toast_streams.open(await inbox.person(), 0)
    await until(lambda: stream.last_seq > 0)
    lines = stream_toast_events(hub, stream, now)

    hello, toast = await anext(lines), await anext(lines)
    await lines.aclose()

    assert hello.startswith(b"id: 0\nevent: connected\n")
    assert toast.startswith(f"id: {stream.last_seq}\nevent: toast\n".encode())
    assert len(hub.toast_streams) == 0


async def test_a_stream_without_a_number_starts_now(address: str, inbox: Inbox) -> None:
    await inbox.arrive()
    async with bot(address, await inbox.token(), path=STREAM) as client:
        await client.next("connected")
        toast = await inbox.arrive()
        assert (await client.first()).data["toast"]["id"] == str(toast)


@pytest.mark.parametrize("after", ["-1", "x", str(2**63)])
async def test_an_invalid_number_is_reported(web: httpx2.AsyncClient, inbox: Inbox, after: str) -> None:
    answer = await web.get(STREAM, params={"after": after}, headers=bearer(await inbox.token()))

    assert (answer.status_code, answer.json()["mistakes"][0]["field"]) == (400, "after")


async def test_a_stream_ends_with_its_token_and_with_the_hub(
    hub: Hub, address: str, inbox: Inbox, travel: Travel
) -> None:
    async with bot(address, await inbox.token(), path=STREAM) as client:
        await client.next("connected")
        await travel(PERSON_LINK_LIFETIME)
        async with asyncio.timeout(10):
            assert await client.read() is None
    async with bot(address, await inbox.token(), path=STREAM) as other:
        await other.next("connected")
        await hub.begin_shutdown()
        async with asyncio.timeout(10):
            assert await other.read() is None
    await until(lambda: len(hub.toast_streams) == 0)


async def test_a_head_request_opens_no_stream(web: httpx2.AsyncClient, hub: Hub, inbox: Inbox) -> None:
    me = bearer(await inbox.token())

    answer = await web.head(STREAM, headers=me)

    assert answer.status_code == 405
    assert len(hub.toast_streams) == 0
    assert (await web.get("/v1/toasts", headers=me)).status_code == 200  # on the same connection


async def test_open_streams_hold_no_database_connection(hub: Hub, address: str, inbox: Inbox) -> None:
    tokens = [await inbox.token(str(number)) for number in range(15)]
    streams = [bot(address, token, path=STREAM) for token in tokens]
    clients = [await stream.__aenter__() for stream in streams]
    for client in clients:
        await client.next("connected")

    await until(lambda: hub.db.connections_in_use() == 0)
    assert len(hub.toast_streams) == 15
    for stream in streams:
        await stream.__aexit__(None, None, None)
    await until(lambda: len(hub.toast_streams) == 0)
