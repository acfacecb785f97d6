"""The preferences API, for the person and for services that send."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.tokens.permission import Permission
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, enrol
from support.server import serving

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
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
    async with serving(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def service_header(hub: Hub, web: httpx2.AsyncClient, *permissions: Permission) -> dict[str, str]:
    """The authorization header of a service with these permissions."""
    return bearer((await (await enrol(hub, web, "shop", *permissions)).tokens())["access_token"])


async def test_a_person_reads_and_changes_their_own_preferences(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    header, path = bearer(await inbox.token()), f"/v1/preferences/{MINA}"
    before = (await web.get(path, headers=header)).json()
    assert before == {
        "user_id": None,
        "discord_id": MINA,
        **dict.fromkeys(FLAGS, True),
        "night_consent": False,
        "locale": None,
        "updated_at": None,
    }
    assert await inbox.db.fetchval("select count(*) from notification.people") == 0

    changed = await web.put(path, headers=header, json={"payment_notifications": False, "night_consent": True})

    after = (await web.get(path, headers=header)).json()
    assert changed.json() == after
    assert (after["payment_notifications"], after["dm_enabled"], after["night_consent"]) == (False, True, True)
    assert after["updated_at"]
    entry = await inbox.db.fetchrow("select actor, subject, details from pabal.audit_log order by id desc limit 1")
    assert entry is not None
    assert entry["actor"] == entry["subject"]
    assert MINA not in str(dict(entry))


async def test_a_sending_service_reads_and_changes_preferences_of_all(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    header, path = await service_header(hub, web, Permission.SEND), f"/v1/preferences/{JUN}"

    assert (await web.put(path, headers=header, json={"dm_enabled": False})).json()["dm_enabled"] is False
    assert (await web.get(path, headers=header)).json()["dm_enabled"] is False
    assert (await web.get(f"/v1/preferences/{MINA}", headers=header)).json()["updated_at"] is None


async def test_a_registered_user_is_found_by_either_id(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await inbox.db.execute("insert into identity.users (id) values ($1)", USER)
    await inbox.db.execute("insert into notification.people (discord_id, user_id) values ($1, $2)", MINA, USER)
    header = bearer(await inbox.token())

    await web.put(f"/v1/preferences/{USER}", headers=header, json={"marketing_notifications": False})

    by_user, by_discord = [
        (await web.get(f"/v1/preferences/{user_id}", headers=header)).json() for user_id in (USER, MINA)
    ]
    assert by_user == by_discord
    assert (by_user["user_id"], by_user["discord_id"], by_user["marketing_notifications"]) == (USER, MINA, False)
    assert await inbox.db.fetchval("select marketing_notifications from notification.preferences") is False


@pytest.mark.parametrize("body", [{"dm_enabled": None}, {"dm_enabled": "no"}, {"colour": True}, {"locale": "klingon"}])
async def test_invalid_preferences_are_reported(web: httpx2.AsyncClient, inbox: Inbox, body: dict[str, Any]) -> None:
    response = await web.put(f"/v1/preferences/{MINA}", headers=bearer(await inbox.token()), json=body)

    assert response.status_code == 400
    assert [field_error["field"] for field_error in response.json()["mistakes"]] == [*body]
