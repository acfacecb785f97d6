"""Every door of the relay that opens for a tenant, tried by others and with every wrong token: nothing changes."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from pabal.api import routes
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.accounts import delete_account, disable_account, rotate_relay_token
from pabal.relay.auth import AccountOwner
from pabal.tokens.permission import Permission
from pabal.web.openapi import build_openapi
from pabal.web.route import Route
from relay.people import TESTER, a_code, a_message, a_session, an_owner, connection_of, key_of, pair, write
from support.clusters import Connection
from support.oauth_client import bearer, enrol

pytestmark = pytest.mark.anyio

GUARDED = tuple(door for door in routes.ROUTES if door.relay_auth)
OWNERS = tuple(door for door in GUARDED if AccountOwner in door.type_hints.values())
PAIRING = tuple(door for door in OWNERS if "/pairing/" in door.path)

BELONGINGS = {
    "conversation_mappings": "account_id = $1",
    "inbound_messages": "account_id = $1",
    "pairing_codes": "account_id = $1",
    "relay_sessions": "account_id = $1",
    "relay_replies": "account_id = $1",
    "accounts": "id = $1",
}


async def knock(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    """Come with a body nobody could read: whoever may not come in is not even asked what they bring."""
    path = door.path.format(**{name: str(new_id()) if kind is UUID else "x" for name, kind in door.path_types.items()})
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


def told(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.json().keys() == {"error", "code", "message"}
    return answer.status_code, answer.json()["code"]


async def belongings(owner: Connection, account: UUID) -> dict[str, list[dict[str, Any]]]:
    """Everything a tenant has."""
    return {
        table: [
            dict(row) for row in await owner.fetch(f"select * from public.{table} where {mine} order by 1", account)
        ]
        for table, mine in BELONGINGS.items()
    }


def test_there_are_such_doors_and_they_say_so() -> None:
    assert len(PAIRING) == 14
    document = build_openapi(routes.ROUTES)
    assert document["components"]["securitySchemes"]["relay"]["scheme"] == "bearer"
    for door in GUARDED:
        spoken = document["paths"][door.path][door.method.lower()]
        assert spoken["security"] == [{"relay": []}]
        assert {"401", "403", "503"} <= spoken["responses"].keys()
    for door in OWNERS:
        assert "409" in document["paths"][door.path][door.method.lower()]["responses"]


async def test_no_wrong_token_opens_a_door(
    hub: Hub, web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    expired = await a_session(hub)
    await travel(timedelta(minutes=5))
    bot, gone, asleep, pending = (
        await an_owner(hub),
        await an_owner(hub, "gone"),
        await an_owner(hub, "asleep"),
        await a_session(hub),
    )
    async with hub.transaction() as tx:
        await rotate_relay_token(tx, bot.account, TESTER)
        await delete_account(tx, gone.account, TESTER)
        await disable_account(tx, asleep.account, TESTER)
    service = (await (await enrol(hub, web, "minu_test", *Permission)).tokens())["access_token"]
    nobody, disabled, unpaired = (401, "UNAUTHORIZED"), (403, "ACCOUNT_DISABLED"), (409, "SESSION_NOT_PAIRED")
    wrong = {
        "nothing": ({}, nobody),
        "an empty header": ({"authorization": ""}, nobody),
        "a scheme alone": ({"authorization": "Bearer"}, nobody),
        "no scheme": ({"authorization": bot.token}, nobody),
        "garbage": (bearer("garbage"), nobody),
        "rotated away": (bot.bearer, nobody),
        "of a deleted account": (gone.bearer, nobody),
        "of a disabled account": (asleep.bearer, disabled),
        "of an expired session": (bearer(expired.token), nobody),
        "a session's id": (bearer(str(pending.id)), nobody),
        "an account's id": (bearer(str(bot.account)), nobody),
        "a pairing code": (bearer(pending.code), nobody),
        "a service's": (bearer(service), nobody),
    }

    tried = {
        (door.path, name): told(await knock(web, door, header))
        for door in GUARDED
        for name, (header, _) in wrong.items()
    }
    assert tried == {(door.path, name): expected for door in GUARDED for name, (_, expected) in wrong.items()}
    assert {told(await knock(web, door, bearer(pending.token))) for door in OWNERS} == {unpaired}


async def test_a_relay_token_opens_no_door_of_the_services(hub: Hub, web: httpx2.AsyncClient) -> None:
    bot = await an_owner(hub)

    tried = {(await knock(web, door, bot.bearer)).status_code for door in routes.ROUTES if door.permission}

    assert tried == {401}


@pytest.mark.parametrize("whose", ["a relay token", "a session's token"])
async def test_no_tenant_sees_or_touches_anothers(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection, whose: str
) -> None:
    bot = await an_owner(hub)
    for user in ("min", "jun"):
        await pair(hub, user, bot.account)
        await a_message(owner, bot.account, user)
    patient = hub.settings.model_copy(update={"pairing_approval": True})
    await write(hub, "kim", f"/pair {await a_code(hub, bot.account)}", settings=patient)
    await web.post("/v1/pairing/block", json={"conversationKey": key_of("jun")}, headers=bot.bearer)
    await a_code(hub, bot.account)
    if whose == "a relay token":
        stranger = (await an_owner(hub, "stranger")).bearer
    else:
        session = await a_session(hub)
        await write(hub, "lee", f"/pair {session.code}")
        stranger = bearer(session.token)
    before = await belongings(owner, bot.account)
    assert all(before[table] for table in ("conversation_mappings", "inbound_messages", "pairing_codes"))

    for door in PAIRING:
        if door.method == "GET":
            seen = (await web.get(door.path, headers=stranger)).json()["users"]
            assert {user["plusfriendUserKey"] for user in seen} <= {"lee"}
        elif not door.path.endswith("/generate"):
            for user in ("min", "jun", "kim", "nobody"):
                answer = await web.post(door.path, json={"conversationKey": key_of(user)}, headers=stranger)
                assert told(answer) == (404, "NOT_FOUND")

    assert await belongings(owner, bot.account) == before
    assert await connection_of(owner, "min") == ("PAIRED", bot.account)
