"""Linking a Discord account on the page of a registered user, and by an operator."""

import re
from collections.abc import AsyncGenerator
from uuid import UUID

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.people.links import assert_service_link
from pabal.notifications.people.preferences import load_preferences
from pabal.settings import Settings
from support.clusters import Connection
from support.dispatch import NotificationHub, open_notification_hub
from support.fake_discord import run_fake_discord
from support.inbox import MINA, SHOP, Inbox, open_inbox
from support.lane_under_test import Travel
from support.operator import SignedInOperator
from support.server import serve_hub

pytestmark = pytest.mark.anyio

PERSON_PAGE = "/console/notifications/person"


@pytest.fixture
async def notifier(settings: Settings, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[NotificationHub]:
    async with (
        run_fake_discord() as discord,
        open_notification_hub(settings, database_urls, discord, travel) as opened,
    ):
        yield opened


@pytest.fixture
async def person_web(notifier: NotificationHub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with (
        serve_hub(notifier.hub) as address,
        httpx2.AsyncClient(base_url=address, headers={"origin": address, "accept-language": "en"}) as client,
    ):
        yield client


async def add_user(owner: Connection) -> UUID:
    return await owner.fetchval("insert into identity.users default values returning id")


async def linked_user(hub: Hub, discord_id: str = MINA) -> UUID | None:
    async with hub.autocommit() as tx:
        return (await load_preferences(tx, discord_id)).user_id


async def test_a_registered_user_links_and_unlinks_on_their_page(
    notifier: NotificationHub, person_web: httpx2.AsyncClient
) -> None:
    user = await add_user(notifier.owner)
    inbox = Inbox(notifier.hub, notifier.owner)
    await person_web.post("/me", data={"token": await inbox.token(str(user))})

    before = await person_web.get("/me")
    saved = await person_web.post("/me/preferences", data={"dm_enabled": "on", "payment_notifications": "on"})
    begun = await person_web.post("/me/link", data={"discord_id": MINA})
    text = notifier.discord.messages_to(MINA)[0].body["embeds"][0]["description"]
    path = re.search(r"/me/link/confirm\?code=[0-9a-f]+", text)
    assert path
    opened = await person_web.get(path[0])
    assert await linked_user(notifier.hub) is None, "a preview of the link must not confirm it"
    confirmed = await person_web.post("/me/link/confirm", data={"code": path[0].partition("=")[2]})

    assert 'action="/me/link"' in before.text
    assert "night_consent" not in before.text
    assert (saved.status_code, begun.status_code, opened.status_code, confirmed.status_code) == (303, 303, 200, 303)
    assert begun.headers["location"] == "/me?saved=link"
    assert await linked_user(notifier.hub) == user
    after = await person_web.get("/me")
    assert 'action="/me/unlink"' in after.text
    assert f"Discord {MINA}" in after.text
    async with notifier.hub.autocommit() as tx:
        assert not (await load_preferences(tx, MINA)).marketing_notifications, "off anywhere stays off"

    assert (await person_web.post("/me/unlink")).status_code == 303
    assert await linked_user(notifier.hub) is None
    assert (await person_web.get("/me")).status_code == 401


async def test_a_wrong_code_or_another_site_links_nothing(
    notifier: NotificationHub, person_web: httpx2.AsyncClient
) -> None:
    user = await add_user(notifier.owner)
    await person_web.post("/me", data={"token": await Inbox(notifier.hub, notifier.owner).token(str(user))})
    await person_web.post("/me/link", data={"discord_id": MINA})

    wrong = await person_web.post("/me/link/confirm", data={"code": "0" * 64})
    foreign = await person_web.post("/me/link", data={"discord_id": MINA}, headers={"origin": "https://evil.example"})
    invalid = await person_web.post("/me/link", data={"discord_id": "<script>"})

    assert (wrong.status_code, foreign.status_code, invalid.status_code) == (404, 403, 400)
    assert "requested in another browser" in wrong.text
    assert await linked_user(notifier.hub) is None


async def test_an_operator_links_and_unlinks_with_a_reason(
    hub: Hub, owner: Connection, database_urls: DatabaseUrls, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    user = await add_user(owner)
    await owner.execute("insert into public.services (name) values ('shop')")
    async with open_inbox(hub, database_urls), hub.transaction() as tx:
        await assert_service_link(tx, "shop", MINA, user, SHOP)
    form = {"recipient": MINA, "user_id": str(user)}

    without = await admin.post(f"{PERSON_PAGE}/link", **form, reason=" ")
    forbidden = await viewer.post(f"{PERSON_PAGE}/link", **form, reason="identity checked")
    assert (without.status_code, forbidden.status_code, await linked_user(hub)) == (400, 403, None)
    asserted = await admin.get(f"{PERSON_PAGE}?recipient={MINA}")
    assert "opens no inbox" in asserted.text

    linked = await admin.post(f"{PERSON_PAGE}/link", **form, reason="identity checked")
    page = await admin.get(f"{PERSON_PAGE}?recipient={MINA}", "ko")
    assert (linked.status_code, await linked_user(hub)) == (303, user)
    assert str(user) in page.text
    assert "operator:the-admin" in page.text

    undone = await admin.post(f"{PERSON_PAGE}/unlink", recipient=MINA, reason="wrong user")
    assert (undone.status_code, await linked_user(hub)) == (303, None)
    reasons = await owner.fetch(
        "select details ->> 'reason' from pabal.audit_log where action like 'preferences.%linked' order by id"
    )
    assert [row[0] for row in reasons] == ["identity checked", "wrong user"]


async def test_an_invalid_recipient_has_no_page(admin: SignedInOperator) -> None:
    assert (await admin.get(f"{PERSON_PAGE}?recipient=%3Cscript%3E")).status_code == 404
