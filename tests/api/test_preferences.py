"""The preferences API, for the person and for services that send."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.api import routes
from pabal.hub import Hub
from pabal.tokens.permission import Permission
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, enrol
from support.server import serving

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
OWN_SCAN = tuple(door for door in routes.ROUTES if door.person_auth)
ONLY_OWN = tuple(door for door in OWN_SCAN if not door.permission)
STREAM = "/v1/toasts/stream"
USER = "0192f0c1-0000-7000-8000-000000000001"
FLAGS = (
    "dm_enabled",
    "payment_notifications",
    "recovery_notifications",
    "antinuke_notifications",
    "marketing_notifications",
)


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


async def test_a_person_reads_and_changes_their_own_preferences(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    me, path = bearer(await inbox.token()), f"/v1/preferences/{MINA}"
    before = (await web.get(path, headers=me)).json()
    assert before == {
        "user_id": None,
        "discord_id": MINA,
        **dict.fromkeys(FLAGS, True),
        "night_consent": False,
        "locale": None,
        "updated_at": None,
    }
    assert await inbox.db.fetchval("select count(*) from notification.people") == 0

    changed = await web.put(path, headers=me, json={"payment_notifications": False, "night_consent": True})

    after = (await web.get(path, headers=me)).json()
    assert changed.json() == after
    assert (after["payment_notifications"], after["dm_enabled"], after["night_consent"]) == (False, True, True)
    assert after["updated_at"]
    audited = await inbox.db.fetchrow("select actor, subject, details from pabal.audit_log order by id desc limit 1")
    assert audited is not None
    assert audited["actor"] == audited["subject"]
    assert MINA not in str(dict(audited))


async def test_a_sending_service_reads_and_changes_preferences_of_all(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    sends, path = await service(hub, web, Permission.SEND), f"/v1/preferences/{JUN}"

    assert (await web.put(path, headers=sends, json={"dm_enabled": False})).json()["dm_enabled"] is False
    assert (await web.get(path, headers=sends)).json()["dm_enabled"] is False
    assert (await web.get(f"/v1/preferences/{MINA}", headers=sends)).json()["updated_at"] is None


async def test_a_registered_user_is_found_by_either_id(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await inbox.db.execute("insert into identity.users (id) values ($1)", USER)
    await inbox.db.execute("insert into notification.people (discord_id, user_id) values ($1, $2)", MINA, USER)
    me = bearer(await inbox.token())

    await web.put(f"/v1/preferences/{USER}", headers=me, json={"marketing_notifications": False})

    by_user, by_discord = [(await web.get(f"/v1/preferences/{item}", headers=me)).json() for item in (USER, MINA)]
    assert by_user == by_discord
    assert (by_user["user_id"], by_user["discord_id"], by_user["marketing_notifications"]) == (USER, MINA, False)
    assert await inbox.db.fetchval("select marketing_notifications from notification.preferences") is False


@pytest.mark.parametrize("body", [{"dm_enabled": None}, {"dm_enabled": "no"}, {"colour": True}, {"locale": "klingon"}])
async def test_invalid_preferences_are_reported(web: httpx2.AsyncClient, inbox: Inbox, body: dict[str, Any]) -> None:
    answer = await web.put(f"/v1/preferences/{MINA}", headers=bearer(await inbox.token()), json=body)

    assert answer.status_code == 400
    assert [item["field"] for item in answer.json()["mistakes"]] == [*body]
