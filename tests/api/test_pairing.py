"""The pairing endpoints."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import Hub
from relay.people import (
    RelayAccount,
    add_account,
    audit_actions_of,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Bot:
    """An owner who calls the pairing endpoints."""

    owner: RelayAccount
    prefix: str
    web: httpx2.AsyncClient = field(repr=False)

    async def post(self, action: str, status: int = 200, **body: Any) -> Any:
        response = await self.web.post(f"{self.prefix}/pairing/{action}", json=body, headers=self.owner.bearer)
        assert response.status_code == status, response.text
        return response.json()

    async def users(self, **query: Any) -> Any:
        response = await self.web.get(f"{self.prefix}/pairing/list", params=query, headers=self.owner.bearer)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(params=["/openclaw", "/v1"])
async def bot(request: pytest.FixtureRequest, hub: Hub, web: httpx2.AsyncClient) -> Bot:
    return Bot(await add_account(hub), request.param, web)


async def test_a_code_pairs_a_user_who_is_then_listed(hub: Hub, owner: Connection, bot: Bot) -> None:
    assert await bot.users() == {"users": [], "cursor": None, "hasMore": False}

    code = await bot.post("generate", metadata={"for": "min"})
    row = await owner.fetchrow("select *, expires_at - created_at as lifetime from public.pairing_codes")
    assert row
    assert code == {"code": row["code"], "expiresAt": round(row["expires_at"].timestamp() * 1000)}
    assert row["lifetime"] == 10 * MINUTE

    await send_command(hub, "min", f"/pair {code['code']}")
    [user] = (await bot.users())["users"]
    assert user.keys() == {"conversationKey", "plusfriendUserKey", "state", "pairedAt", "lastSeenAt"}
    assert (user["conversationKey"], user["plusfriendUserKey"], user["state"]) == (key_of_user("min"), "min", "PAIRED")
    assert user["pairedAt"].endswith("Z")


async def test_an_empty_body_creates_a_default_code(web: httpx2.AsyncClient, bot: Bot) -> None:
    response = await web.post(f"{bot.prefix}/pairing/generate", headers=bot.owner.bearer)

    assert response.status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expiresInSeconds": 1801}, "expiresInSeconds"),
        ({"expiresInSeconds": 0}, "expiresInSeconds"),
        ({"expiresInSeconds": "600"}, "expiresInSeconds"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"long": "x" * 5000}}, "metadata"),
    ],
)
async def test_an_invalid_field_is_named(bot: Bot, body: dict[str, Any], field: str) -> None:
    refused = await bot.post("generate", 400, **body)

    assert refused["code"] == "INVALID_REQUEST"
    assert field in refused["message"]
    assert refused["message"] == refused["error"]


async def test_an_account_has_at_most_five_unused_codes(bot: Bot) -> None:
    for _ in range(5):
        await bot.post("generate", expiresInSeconds=1800)

    refused = await bot.web.post(f"{bot.prefix}/pairing/generate", json={}, headers=bot.owner.bearer)

    assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
    assert 1700 < int(refused.headers["retry-after"]) <= 1800


async def test_an_account_creates_at_most_ten_codes_a_minute(bot: Bot, owner: Connection, travel: Travel) -> None:
    for _ in range(10):
        await bot.post("generate")
        await owner.execute("delete from public.pairing_codes")

    assert (await bot.post("generate", 429))["code"] == "RATE_LIMITED"
    await travel(MINUTE)
    await bot.post("generate")


async def test_an_owner_unpairs_blocks_and_unblocks(hub: Hub, owner: Connection, bot: Bot) -> None:
    account = bot.owner.account
    await pair_user(hub, "min", account)
    message = await insert_message(owner, account, "min")
    states: list[tuple[str, object]] = []
    for action in ("block", "unblock", "unpair"):
        assert await bot.post(action, conversationKey=key_of_user("min")) == {"success": True}
        states.append(await conversation_state_of(owner, "min"))

    assert states == [("BLOCKED", account), ("PAIRED", account), ("UNPAIRED", None)]
    assert await owner.fetchval("select reason from public.inbound_messages where id = $1", message) == "blocked"
    entries = await audit_actions_of(owner, conversation_pseudonym(key_of_user("min")))
    assert entries == ["pairing.verified", "conversation.blocked", "conversation.unblocked", "pairing.unpaired"]
    actors = await owner.fetch(
        "select distinct actor, host(client_ip) from pabal.audit_log where action <> all($1)",
        ["account.created", "pairing.verified", "pairing.code_made"],
    )
    assert [tuple(row) for row in actors] == [(f"account:{account}", "127.0.0.1")]


@pytest.mark.parametrize(("action", "state"), [("approve", "PAIRED"), ("deny", "UNPAIRED")])
async def test_an_owner_approves_and_denies(hub: Hub, owner: Connection, bot: Bot, action: str, state: str) -> None:
    with_approval = hub.settings.model_copy(update={"pairing_approval": True})
    await send_command(hub, "min", f"/pair {await create_code(hub, bot.owner.account)}", settings=with_approval)
    assert [user["state"] for user in (await bot.users())["users"]] == ["PENDING"]

    await bot.post(action, conversationKey=key_of_user("min"))

    assert (await conversation_state_of(owner, "min"))[0] == state


async def test_users_are_paginated(hub: Hub, bot: Bot) -> None:
    users = [f"사용자{number}" for number in range(5)]
    for user in users:
        await pair_user(hub, user, bot.owner.account)
    listed: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await bot.users(**query)
        listed += [user["plusfriendUserKey"] for user in page["users"]]
        if not page["hasMore"]:
            break
        query["cursor"] = page["cursor"]

    assert listed == users
    assert page["cursor"] is None


@pytest.mark.parametrize("query", [{"cursor": "!"}, {"cursor": "AA"}, {"limit": 0}, {"limit": 101}, {"cursor": "_w"}])
async def test_an_invalid_page_is_refused(bot: Bot, query: dict[str, Any]) -> None:
    response = await bot.web.get(f"{bot.prefix}/pairing/list", params=query, headers=bot.owner.bearer)

    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")


async def test_a_paired_sessions_token_is_accepted(hub: Hub, web: httpx2.AsyncClient) -> None:
    session = await new_session(hub)
    await send_command(hub, "min", f"/pair {session.code}")
    response = await web.get("/v1/pairing/list", headers={"authorization": f"Bearer {session.token}"})

    assert [user["plusfriendUserKey"] for user in response.json()["users"]] == ["min"]
