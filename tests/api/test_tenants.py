"""Every relay route of a tenant, called by other tenants and with every wrong token: nothing changes."""

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
from pabal.web.reference.openapi import build_openapi
from pabal.web.route import Route
from relay.people import (
    TESTER,
    add_account,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection
from support.oauth_client import bearer, register_oauth_service

pytestmark = pytest.mark.anyio

PROTECTED = tuple(route for route in routes.ROUTES if route.relay_auth)
OWNERS = tuple(route for route in PROTECTED if AccountOwner in route.type_hints.values())
PAIRING = tuple(route for route in OWNERS if "/pairing/" in route.path)

TENANT_TABLES = {
    "conversation_mappings": "account_id = $1",
    "inbound_messages": "account_id = $1",
    "pairing_codes": "account_id = $1",
    "relay_sessions": "account_id = $1",
    "relay_replies": "account_id = $1",
    "accounts": "id = $1",
}


async def call_with(web: httpx2.AsyncClient, route: Route, header: dict[str, str]) -> httpx2.Response:
    """Send an invalid body: authorization must be checked before the body is parsed."""
    path = route.path.format(
        **{name: str(new_id()) if kind is UUID else "x" for name, kind in route.path_types.items()}
    )
    return await web.request(route.method, path, content=b"{" if route.body_type else None, headers=header)


def status_and_code(response: httpx2.Response) -> tuple[int, str]:
    assert response.json().keys() == {"error", "code", "message"}
    return response.status_code, response.json()["code"]


async def tenant_rows(owner: Connection, account: UUID) -> dict[str, list[dict[str, Any]]]:
    """All rows of a tenant."""
    return {
        table: [
            dict(row)
            for row in await owner.fetch(f"select * from public.{table} where {condition} order by 1", account)
        ]
        for table, condition in TENANT_TABLES.items()
    }


def test_tenant_routes_document_their_credentials() -> None:
    assert len(PAIRING) == 14
    document = build_openapi(routes.ROUTES)
    assert document["components"]["securitySchemes"]["relay"]["scheme"] == "bearer"
    for route in PROTECTED:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["security"] == [{"relay": []}]
        assert {"401", "403", "503"} <= operation["responses"].keys()
    for route in OWNERS:
        assert "409" in document["paths"][route.path][route.method.lower()]["responses"]


async def test_no_route_accepts_a_wrong_token(
    hub: Hub, web: httpx2.AsyncClient, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    expired = await new_session(hub)
    await travel(timedelta(minutes=5))
    bot, deleted_bot, disabled_bot, pending = (
        await add_account(hub),
        await add_account(hub, "deleted"),
        await add_account(hub, "disabled"),
        await new_session(hub),
    )
    async with hub.transaction() as tx:
        await rotate_relay_token(tx, bot.account, TESTER)
        await delete_account(tx, deleted_bot.account, TESTER)
        await disable_account(tx, disabled_bot.account, TESTER)
    service = (await (await register_oauth_service(hub, web, "minu_test", *Permission)).tokens())["access_token"]
    unauthenticated, disabled, unpaired = (401, "UNAUTHORIZED"), (403, "ACCOUNT_DISABLED"), (409, "SESSION_NOT_PAIRED")
    wrong_tokens = {
        "no header": ({}, unauthenticated),
        "an empty header": ({"authorization": ""}, unauthenticated),
        "a scheme alone": ({"authorization": "Bearer"}, unauthenticated),
        "no scheme": ({"authorization": bot.token}, unauthenticated),
        "garbage": (bearer("garbage"), unauthenticated),
        "rotated": (bot.bearer, unauthenticated),
        "of a deleted account": (deleted_bot.bearer, unauthenticated),
        "of a disabled account": (disabled_bot.bearer, disabled),
        "of an expired session": (bearer(expired.token), unauthenticated),
        "a session's id": (bearer(str(pending.id)), unauthenticated),
        "an account's id": (bearer(str(bot.account)), unauthenticated),
        "a pairing code": (bearer(pending.code), unauthenticated),
        "of a service": (bearer(service), unauthenticated),
    }

    results = {
        (route.path, name): status_and_code(await call_with(web, route, header))
        for route in PROTECTED
        for name, (header, _) in wrong_tokens.items()
    }
    assert results == {
        (route.path, name): expected for route in PROTECTED for name, (_, expected) in wrong_tokens.items()
    }
    assert {status_and_code(await call_with(web, route, bearer(pending.token))) for route in OWNERS} == {unpaired}


async def test_no_service_route_accepts_a_relay_token(hub: Hub, web: httpx2.AsyncClient) -> None:
    bot = await add_account(hub)

    results = {(await call_with(web, route, bot.bearer)).status_code for route in routes.ROUTES if route.permission}

    assert results == {401}


@pytest.mark.parametrize("credential", ["a relay token", "a session's token"])
async def test_no_tenant_can_read_or_change_another(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection, credential: str
) -> None:
    bot = await add_account(hub)
    for user in ("min", "jun"):
        await pair_user(hub, user, bot.account)
        await insert_message(owner, bot.account, user)
    with_approval = hub.settings.model_copy(update={"pairing_approval": True})
    await send_command(hub, "kim", f"/pair {await create_code(hub, bot.account)}", settings=with_approval)
    await web.post("/v1/pairing/block", json={"conversationKey": key_of_user("jun")}, headers=bot.bearer)
    await create_code(hub, bot.account)
    if credential == "a relay token":
        other_header = (await add_account(hub, "other")).bearer
    else:
        session = await new_session(hub)
        await send_command(hub, "lee", f"/pair {session.code}")
        other_header = bearer(session.token)
    before = await tenant_rows(owner, bot.account)
    assert all(before[table] for table in ("conversation_mappings", "inbound_messages", "pairing_codes"))

    for route in PAIRING:
        if route.method == "GET":
            listed = (await web.get(route.path, headers=other_header)).json()["users"]
            assert {user["plusfriendUserKey"] for user in listed} <= {"lee"}
        elif not route.path.endswith("/generate"):
            for user in ("min", "jun", "kim", "unknown"):
                response = await web.post(route.path, json={"conversationKey": key_of_user(user)}, headers=other_header)
                assert status_and_code(response) == (404, "NOT_FOUND")

    assert await tenant_rows(owner, bot.account) == before
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)
