"""The doors of a person: their toasts, their stream, their preferences; everybody else's are not there."""

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
OWN = tuple(door for door in routes.ROUTES if door.person_auth)
ONLY_OWN = tuple(door for door in OWN if not door.permission)
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


async def knock(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    path = door.path.format(id=new_id(), user_id=MINA)
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


# Tokens


async def test_a_service_gets_a_token_for_a_person_and_the_way_to_their_page(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    answer = await web.post(f"/v1/people/{MINA}/token", headers=await service(hub, web, Permission.SEND))

    assert answer.status_code == 201
    told = answer.json()
    where = urlsplit(told["url"])
    assert (where.path, parse_qs(where.query)) == ("/me", {"token": [told["token"]]})
    assert (await web.get("/v1/toasts", headers=bearer(told["token"]))).status_code == 200
    assert await inbox.db.fetchval("select issued_by from notification.person_tokens") == "shop"


async def test_only_a_service_that_may_send_gets_one(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    reads = await service(hub, web, Permission.READ_NOTIFICATIONS)

    assert (await web.post(f"/v1/people/{MINA}/token", headers=reads)).status_code == 403
    assert (await web.post(f"/v1/people/{MINA}/token", headers=bearer(await inbox.token()))).status_code == 401
    assert (await web.post(f"/v1/people/{MINA}/token")).status_code == 401
    assert await inbox.db.fetchval("select count(*) from notification.person_tokens") == 1


# Who may come in


def test_there_are_such_doors_and_they_say_so() -> None:
    assert {(door.method, door.path) for door in OWN} == {
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
    for door in OWN:
        spoken = document["paths"][door.path][door.method.lower()]
        also = [{"token": ["notifications:send"]}] if door.permission else []
        assert spoken["security"] == [*also, {"person": []}, {"cookie": []}]
        assert {"401", "403", "503"} <= spoken["responses"].keys()


async def test_no_wrong_token_opens_a_door(
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
        "nobody's": bearer("pbp_" + "a" * 43),
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
        (door.path, name): (await knock(web, door, header)).status_code
        for door in OWN
        for name, header in wrong.items()
    }
    assert {key: status for key, status in tried.items() if status != 401} == {}

    everything = await service(hub, web, *Permission)
    assert {(await knock(web, door, everything)).status_code for door in ONLY_OWN} == {401}


async def test_a_persons_token_opens_no_door_of_the_services(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    theirs = [door for door in routes.ROUTES if (door.permission or door.relay_auth) and not door.person_auth]
    keys = [bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}"}]

    assert len(theirs) > 20
    assert {(await knock_at(web, door, key)).status_code for door in theirs for key in keys} == {401}


async def knock_at(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    path = door.path.format(**{name: str(new_id()) if kind is UUID else "x" for name, kind in door.path_types.items()})
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


@pytest.mark.parametrize("way", ["token", "cookie"])
async def test_nobody_sees_or_touches_anothers(web: httpx2.AsyncClient, address: str, inbox: Inbox, way: str) -> None:
    """With every id that is somebody else's, or nobody's."""
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
    before = await belongings(inbox)

    for archived in ("false", "true"):
        seen = (await web.get("/v1/toasts", params={"archived": archived}, headers=stranger)).json()
        assert (seen["items"], seen["unread"], seen["last"]) == ([], 0, 0)
    for each in (toast, put_away, new_id()):
        for word in ("seen", "read", "archive"):
            assert (await web.post(f"/v1/toasts/{each}/{word}", headers=stranger)).status_code == 404
    for each in (MINA, USER, str(new_id()), "nobody"):
        path = f"/v1/preferences/{each}"
        shown = await web.get(path, headers=stranger)
        changed = await web.put(path, headers=stranger, json={"dm_enabled": True})
        assert (shown.status_code, changed.status_code) == (404, 404)
        assert shown.json()["detail"] == changed.json()["detail"] == "No such person"

    assert await belongings(inbox) == before
    assert await inbox.db.fetchval("select count(*) from notification.people") == 1


async def belongings(inbox: Inbox) -> dict[str, list[dict[str, Any]]]:
    tables = ("toasts", "people", "preferences", "requests")
    return {
        each: [dict(row) for row in await inbox.db.fetch(f"select * from notification.{each} order by 1")]
        for each in tables
    }


async def test_a_stream_tells_only_what_is_ones_own(address: str, inbox: Inbox) -> None:
    async with bot(address, await inbox.token(JUN), path=f"{STREAM}?after=0") as theirs:
        await theirs.next("connected")
        await inbox.arrive(MINA)
        mine = await inbox.arrive(JUN)

        assert (await theirs.next("toast")).data["toast"]["id"] == str(mine)
        after = await inbox.arrive(JUN)
        assert (await theirs.first()).data["toast"]["id"] == str(after)


# The inbox


async def test_the_inbox_page_by_page(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    ids = [await inbox.arrive(title=None, body=f"{number}") for number in range(5)]
    await inbox.mark(ids[0], ToastAction.READ)
    me = bearer(await inbox.token())
    asked: dict[str, Any] = {"limit": 2}
    page = (await web.get("/v1/toasts", params=asked, headers=me)).json()
    found: list[dict[str, Any]] = page["items"]
    while page["cursor"]:
        page = (await web.get("/v1/toasts", params=asked | {"cursor": page["cursor"]}, headers=me)).json()
        found += page["items"]

    assert [each["id"] for each in found] == [str(each) for each in ids[::-1]]
    assert [each["state"] for each in found] == ["unseen"] * 4 + ["read"]
    assert page["unread"] == 4
    assert found[0].keys() == {
        *("id", "category", "criticality", "locale", "title", "body"),
        *("state", "created_at", "seen_at", "read_at", "archived_at"),
    }


async def test_seen_read_put_away(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
    toast = await inbox.arrive()
    keys = (bearer(await inbox.token()), {"cookie": f"{PERSON_COOKIE}={await inbox.cookie()}", "origin": address})
    states: list[str] = []
    for word, key in (("seen", keys[0]), ("read", keys[1]), ("archive", keys[0]), ("seen", keys[1])):
        answer = await web.post(f"/v1/toasts/{toast}/{word}", headers=key)
        states.append(answer.json()["state"])

    assert states == ["seen", "read", "archived", "archived"]
    assert (await web.get("/v1/toasts", headers=keys[0])).json()["items"] == []
    archived = (await web.get("/v1/toasts", params={"archived": "true"}, headers=keys[0])).json()
    assert [each["id"] for each in archived["items"]] == [str(toast)]


# The stream


async def test_the_stream_goes_on_where_the_list_ended(web: httpx2.AsyncClient, address: str, inbox: Inbox) -> None:
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


async def test_a_client_that_comes_back_with_its_last_id_gets_the_rest_once(address: str, inbox: Inbox) -> None:
    token = await inbox.token()
    ids = [await inbox.arrive() for _ in range(4)]
    async with bot(address, token, path=f"{STREAM}?after=0") as client:
        for each in ids[:2]:
            assert (await client.next("toast")).data["toast"]["id"] == str(each)
        last = client.last
    async with bot(address, token, last, path=f"{STREAM}?after=0") as again:
        for each in ids[2:]:
            assert (await again.next("toast")).data["toast"]["id"] == str(each)
        after = await inbox.arrive()
        assert (await again.first()).data["toast"]["id"] == str(after)


async def test_a_client_that_heard_only_hello_has_lost_nothing(hub: Hub, inbox: Inbox) -> None:
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


async def test_without_a_number_it_begins_now(address: str, inbox: Inbox) -> None:
    await inbox.arrive()
    async with bot(address, await inbox.token(), path=STREAM) as client:
        await client.next("connected")
        toast = await inbox.arrive()
        assert (await client.first()).data["toast"]["id"] == str(toast)


@pytest.mark.parametrize("after", ["-1", "x", str(2**63)])
async def test_a_number_that_cannot_be_is_named(web: httpx2.AsyncClient, inbox: Inbox, after: str) -> None:
    answer = await web.get(STREAM, params={"after": after}, headers=bearer(await inbox.token()))

    assert (answer.status_code, answer.json()["mistakes"][0]["field"]) == (400, "after")


async def test_it_ends_when_the_token_does_and_when_the_hub_closes(
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


async def test_a_look_without_listening_opens_no_stream(web: httpx2.AsyncClient, hub: Hub, inbox: Inbox) -> None:
    me = bearer(await inbox.token())

    answer = await web.head(STREAM, headers=me)

    assert answer.status_code == 405
    assert len(hub.toast_streams) == 0
    assert (await web.get("/v1/toasts", headers=me)).status_code == 200  # on the same connection


async def test_many_open_streams_hold_no_connection(hub: Hub, address: str, inbox: Inbox) -> None:
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
