"""The preferences API, for the person and for services that send."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.tokens.permission import Permission
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer, register_oauth_service
from support.server import serve_hub

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
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


async def service_header(hub: Hub, web: httpx2.AsyncClient, *permissions: Permission) -> dict[str, str]:
    """The authorization header of a service with these permissions."""
    return bearer((await (await register_oauth_service(hub, web, "shop", *permissions)).tokens())["access_token"])


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


async def test_a_service_with_the_permission_reads_and_changes_preferences_of_all(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    header, path = await service_header(hub, web, Permission.WRITE_PEOPLE), f"/v1/preferences/{JUN}"

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


@pytest.mark.parametrize(
    "body", [{"dm_enabled": None}, {"dm_enabled": "no"}, {"colour": True}, {"locale": "klingon"}, {"locale": "fr"}]
)
async def test_invalid_preferences_are_reported(web: httpx2.AsyncClient, inbox: Inbox, body: dict[str, Any]) -> None:
    response = await web.put(f"/v1/preferences/{MINA}", headers=bearer(await inbox.token()), json=body)

    assert response.status_code == 400
    assert [field_error["field"] for field_error in response.json()["mistakes"]] == [*body]


@pytest.mark.parametrize("permissions", [(Permission.SEND,), (*({*Permission} - {Permission.WRITE_PEOPLE}),)])
async def test_sending_notifications_does_not_open_preferences(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox, permissions: tuple[Permission, ...]
) -> None:
    header, path = await service_header(hub, web, *permissions), f"/v1/preferences/{JUN}"

    assert (await web.get(path, headers=header)).status_code == 403
    assert (await web.put(path, headers=header, json={"dm_enabled": False})).status_code == 403
    assert await inbox.db.fetchval("select count(*) from notification.people") == 0


async def test_a_service_withdraws_night_consent_and_never_gives_it(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    person, path = bearer(await inbox.token()), f"/v1/preferences/{MINA}"
    service = await service_header(hub, web, *Permission)

    refused = await web.put(path, headers=service, json={"night_consent": True, "dm_enabled": False})
    before = (await web.get(path, headers=person)).json()
    given = (await web.put(path, headers=person, json={"night_consent": True})).json()
    withdrawn = (await web.put(path, headers=service, json={"night_consent": False})).json()

    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert refused.json()["detail"].startswith("night_consent: ")
    assert (before["night_consent"], before["dm_enabled"]) == (False, True)  # nothing of the request was applied
    assert (given["night_consent"], withdrawn["night_consent"]) == (True, False)
