"""Links between Discord accounts and registered users: who may make them, and which preferences then decide."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, RateLimited, Unauthenticated
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.people.links import (
    LINK_REQUEST_LIFETIME,
    assert_service_link,
    confirm_link_request,
    hash_link_code,
    unlink_account,
    withdraw_service_link,
)
from pabal.notifications.people.preferences import (
    PreferencesUpdate,
    link_discord_account,
    load_preferences,
    update_preferences,
)
from pabal.notifications.people.tokens import Person, exchange_person_link, find_person_by_token, issue_person_link
from pabal.trace.explain_notification import explain_notification
from pabal.trace.notifications import trace_notification
from support.clusters import Connection
from support.dispatch import NotificationHub, travel_to_hour

pytestmark = pytest.mark.anyio

SHOP, MINA = Actor("shop"), Actor("person:mina")
DISCORD = "80351110224678912"


async def add_user(owner: Connection) -> UUID:
    return await owner.fetchval("insert into identity.users default values returning id")


async def sign_in(hub: Hub, person_id: object) -> Person:
    """A session, as after opening a link."""
    async with hub.transaction() as tx:
        cookie = await exchange_person_link(tx, (await issue_person_link(tx, str(person_id), SHOP)).token)
        assert cookie
        return await find_person_by_token(tx, cookie, "cookie")


async def set_preferences(hub: Hub, owner: UUID | str, **flags: Any) -> None:
    async with hub.transaction() as tx:
        await update_preferences(tx, owner, PreferencesUpdate(**flags), MINA)


def sent_code(notifier: NotificationHub) -> str:
    """The code of the newest direct message."""
    text = notifier.discord.messages_to(DISCORD)[-1].body["embeds"][0]["description"]
    match = re.search(r"/me/link/confirm\?code=([0-9a-f]{64})$", text, re.MULTILINE)
    assert match
    return match[1]


async def confirm(hub: Hub, person: Person, code: str) -> None:
    async with hub.transaction() as tx:
        await confirm_link_request(tx, person, code, MINA)


async def test_a_person_links_their_account_with_the_code_from_the_direct_message(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    person = await sign_in(notifier.hub, user)

    await notifier.hub.link_requester.request_link(person, DISCORD, "ko")
    code = sent_code(notifier)
    await confirm(notifier.hub, person, code)

    async with notifier.hub.autocommit() as tx:
        assert (await load_preferences(tx, DISCORD)).user_id == user
    assert (await sign_in(notifier.hub, user)).id == DISCORD
    with pytest.raises(NotFound):
        await confirm(notifier.hub, person, code)
    stored = await notifier.owner.fetchrow("select * from notification.link_requests")
    assert stored is not None
    assert stored["code_hash"] == hash_link_code(code)
    assert code not in str(dict(stored))


async def test_only_the_session_that_began_can_confirm(notifier: NotificationHub) -> None:
    user, other = await add_user(notifier.owner), await add_user(notifier.owner)
    person = await sign_in(notifier.hub, user)
    await notifier.hub.link_requester.request_link(person, DISCORD, "en")
    code = sent_code(notifier)

    for visitor in (await sign_in(notifier.hub, user), await sign_in(notifier.hub, other)):
        with pytest.raises(NotFound):
            await confirm(notifier.hub, visitor, code)
    with pytest.raises(NotFound):
        await confirm(notifier.hub, await sign_in(notifier.hub, DISCORD), code)
    await notifier.travel(LINK_REQUEST_LIFETIME)
    with pytest.raises(NotFound):
        await confirm(notifier.hub, person, code)


async def test_only_the_newest_code_of_a_session_works(notifier: NotificationHub) -> None:
    person = await sign_in(notifier.hub, await add_user(notifier.owner))
    codes: list[str] = []
    for _ in range(2):
        await notifier.hub.link_requester.request_link(person, DISCORD, "en")
        codes.append(sent_code(notifier))

    with pytest.raises(NotFound):
        await confirm(notifier.hub, person, codes[0])
    await confirm(notifier.hub, person, codes[1])


async def test_an_account_gets_three_link_requests_an_hour(notifier: NotificationHub) -> None:
    people = [await sign_in(notifier.hub, await add_user(notifier.owner)) for _ in range(4)]
    for person in people[:3]:
        await notifier.hub.link_requester.request_link(person, DISCORD, "en")

    with pytest.raises(RateLimited):
        await notifier.hub.link_requester.request_link(people[3], DISCORD, "en")
    assert len(notifier.discord.messages_to(DISCORD)) == 3
    await notifier.hub.link_requester.request_link(people[3], "190320984123768832", "en")


async def test_a_user_has_ten_link_requests_an_hour_for_all_accounts_and_sessions(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    for number in range(10):
        await notifier.hub.link_requester.request_link(await sign_in(notifier.hub, user), f"20{number}", "en")

    with pytest.raises(RateLimited):
        await notifier.hub.link_requester.request_link(await sign_in(notifier.hub, user), DISCORD, "en")
    assert not notifier.discord.messages_to(DISCORD)
    other = await sign_in(notifier.hub, await add_user(notifier.owner))
    for _ in range(3):  # the refused request does not count for the account
        await notifier.hub.link_requester.request_link(other, DISCORD, "en")


async def test_a_registered_user_is_no_account_that_another_user_can_be_linked_to(notifier: NotificationHub) -> None:
    mina, joon = await add_user(notifier.owner), await add_user(notifier.owner)

    for spelling in (str(mina), str(mina).upper(), mina.hex):
        with pytest.raises(Invalid, match="discord_id"):
            async with notifier.hub.transaction() as tx:
                await link_discord_account(tx, spelling, joon, SHOP, reason="the two fields were swapped")

    assert (await sign_in(notifier.hub, joon)).id == str(joon)


async def test_a_link_request_is_refused_or_not_sent(notifier: NotificationHub) -> None:
    person = await sign_in(notifier.hub, await add_user(notifier.owner))
    with pytest.raises(Invalid, match="discord_id"):
        await notifier.hub.link_requester.request_link(person, "100; drop", "en")
    with pytest.raises(Conflict):
        await notifier.hub.link_requester.request_link(await sign_in(notifier.hub, DISCORD), DISCORD, "en")
    notifier.discord.closed_dms.add("101")
    with pytest.raises(Conflict, match="could not be sent"):
        await notifier.hub.link_requester.request_link(person, "101", "en")

    await set_preferences(notifier.hub, DISCORD, dm_enabled=False)
    await notifier.hub.link_requester.request_link(person, DISCORD, "en")

    assert notifier.discord.messages_to(DISCORD) == []


async def test_a_linked_users_preferences_decide_and_the_explanation_says_so(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    async with notifier.hub.transaction() as tx:
        await link_discord_account(tx, DISCORD, user, MINA)
    await set_preferences(notifier.hub, user, payment_notifications=False)

    requests = [
        await notifier.request("payment.succeeded", DISCORD),
        await notifier.request("payment.succeeded", DISCORD, channel=NotificationChannel.DASHBOARD_TOAST),
        await notifier.request("payment.succeeded", str(user), channel=NotificationChannel.DASHBOARD_TOAST),
    ]

    for request in requests:
        row = await notifier.row(request)
        assert (row["state"], row["reason"]) == ("suppressed", "category_off")
        assert "user_preferences" in row["decision"]
    async with notifier.hub.autocommit() as tx:
        access = NotificationAccess("hub", all_services=True)
        explanation = await explain_notification(tx, requests[0], access, "en", str)
        trace = await trace_notification(tx, requests[0])
    decided = "The preferences of the registered user linked to this account apply."
    assert decided in [line.says for line in explanation.lines]
    assert any("user_preferences" in entry.says for entry in trace.entries)


async def test_a_linked_users_consent_and_language_count_for_all_their_addresses(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    async with notifier.hub.transaction() as tx:
        await link_discord_account(tx, DISCORD, user, MINA)
    await set_preferences(notifier.hub, user, night_consent=True, locale="ko")
    await travel_to_hour(notifier, 23, 0)

    requests = [
        await notifier.request("marketing.news", recipient, channel=NotificationChannel.DASHBOARD_TOAST)
        for recipient in (DISCORD, str(user))
    ]
    await notifier.dispatch()

    for request in requests:
        assert (await notifier.state(request))[0] == "sent"
        assert await notifier.owner.fetchval("select locale from notification.toasts where id = $1", request) == "ko"


async def test_an_unlinked_user_has_the_consent_of_no_account(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    await set_preferences(notifier.hub, DISCORD, night_consent=True)
    await travel_to_hour(notifier, 23, 0)

    request = await notifier.request("marketing.news", str(user), channel=NotificationChannel.DASHBOARD_TOAST)

    assert "night_waits" in (await notifier.row(request))["decision"]


async def test_a_change_after_the_request_decides_at_send_time(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    request = await notifier.request("payment.succeeded", DISCORD)
    await set_preferences(notifier.hub, user, dm_enabled=False)
    async with notifier.hub.transaction() as tx:
        await link_discord_account(tx, DISCORD, user, MINA)

    await notifier.dispatch()

    assert await notifier.state(request) == ("suppressed", "dm_disabled", 0)
    assert notifier.discord.messages == []


async def test_an_asserted_link_governs_what_that_service_sends_and_opens_nothing(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    await notifier.owner.execute("insert into public.services (name) values ('shop'), ('keep')")
    await set_preferences(notifier.hub, user, payment_notifications=False)
    async with notifier.hub.transaction() as tx:
        link = await assert_service_link(tx, "shop", DISCORD, user, SHOP)

    rows = [
        await notifier.row(await notifier.request("payment.succeeded", DISCORD, source=source))
        for source in ("shop", "keep", None)
    ]

    assert link.user_id == user
    assert [row["state"] for row in rows] == ["suppressed", "pending", "pending"]
    assert "service_link_preferences" in rows[0]["decision"]
    async with notifier.hub.autocommit() as tx:
        access = NotificationAccess("hub", all_services=True)
        explanation = await explain_notification(tx, rows[0]["id"], access, "en", str)
        trace = await trace_notification(tx, rows[0]["id"])
    assert any("those of the registered user that the sending service" in line.says for line in explanation.lines)
    assert any("service_link_preferences" in entry.says for entry in trace.entries)
    assert (await sign_in(notifier.hub, user)).id == str(user)
    async with notifier.hub.autocommit() as tx:
        assert (await load_preferences(tx, DISCORD)).user_id is None


async def test_an_asserted_link_cannot_turn_on_what_the_account_turned_off(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    await notifier.owner.execute("insert into public.services (name) values ('shop')")
    await set_preferences(notifier.hub, user, payment_notifications=True)
    await set_preferences(notifier.hub, DISCORD, payment_notifications=False)
    async with notifier.hub.transaction() as tx:
        await assert_service_link(tx, "shop", DISCORD, user, SHOP)

    row = await notifier.row(await notifier.request("payment.succeeded", DISCORD, source="shop"))

    assert (row["state"], row["reason"]) == ("suppressed", "category_off")


async def test_an_assertion_is_withdrawn_by_its_service_only(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    await notifier.owner.execute("insert into public.services (name) values ('shop'), ('keep')")
    async with notifier.hub.transaction() as tx:
        await assert_service_link(tx, "shop", DISCORD, user, SHOP)
    async with notifier.hub.transaction() as tx:
        with pytest.raises(NotFound):
            await withdraw_service_link(tx, "keep", DISCORD, Actor("keep"))
        await withdraw_service_link(tx, "shop", DISCORD, SHOP)

    assert await notifier.owner.fetchval("select count(*) from notification.service_links") == 0


async def test_unlinking_keeps_what_is_off_and_ends_the_users_sessions(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    async with notifier.hub.transaction() as tx:
        await link_discord_account(tx, DISCORD, user, MINA)
    await notifier.owner.execute(
        "update notification.preferences set marketing_notifications = false where user_id = $1", user
    )
    async with notifier.hub.transaction() as tx:
        token = (await issue_person_link(tx, str(user), SHOP)).token

    async with notifier.hub.transaction() as tx:
        person = await unlink_account(tx, DISCORD, MINA, reason="wrong user")

    assert (person.user_id, person.marketing_notifications, person.linked_by) == (None, False, None)
    async with notifier.hub.autocommit() as tx:
        assert not (await load_preferences(tx, user)).marketing_notifications
        with pytest.raises(Unauthenticated):
            await find_person_by_token(tx, token, "link")
    [entry] = await notifier.audit_entries("preferences.unlinked")
    assert "wrong user" in entry["details"]
    async with notifier.hub.transaction() as tx:
        with pytest.raises(NotFound):
            await unlink_account(tx, DISCORD, MINA)


async def test_a_token_for_an_unknown_user_is_refused(notifier: NotificationHub) -> None:
    async with notifier.hub.transaction() as tx:
        with pytest.raises(NotFound, match="No such user"):
            await issue_person_link(tx, "019a9b1c-5c1e-7d3a-b1a5-0c8d7f0a4e21", SHOP)


async def test_expired_link_requests_are_purged(notifier: NotificationHub) -> None:
    person = await sign_in(notifier.hub, await add_user(notifier.owner))
    await notifier.hub.link_requester.request_link(person, DISCORD, "en")
    await notifier.travel(LINK_REQUEST_LIFETIME + timedelta(hours=1))

    await notifier.hub.chores.run_due()

    assert await notifier.owner.fetchval("select count(*) from notification.link_requests") == 0
