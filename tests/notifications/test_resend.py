"""Resending: a failed notification is requested again as a new one."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.addresses import mark_address_unhealthy, unblock_address
from pabal.notifications.notifications import find_notification
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.requests import RequestedNotification
from pabal.notifications.resend import list_resends, resend_notification
from pabal.trace.explain_notification import explain_notification
from support.dispatch import NotificationHub
from support.fake_discord import FAILURE, FakeDiscord
from support.notifications import ALL_SERVICES

pytestmark = pytest.mark.anyio

MINA = Actor("operator:mina")
SET_FAILED = """
update notification.requests
set state = 'failed', reason = $2, last_error = 'no', attempt_count = 3, ended_at = pabal.now()
where id = $1
"""
COPIED_COLUMNS = (
    "recipient_type",
    "recipient_id",
    "guild_id",
    "template_key",
    "payload",
    "priority",
    "expires_at",
    "locale",
    "incident",
    "event_id",
    "source_service",
    "correlation_id",
)


async def request_and_fail(notifier: NotificationHub, reason: str = "exhausted", **overrides: Any) -> UUID:
    request = await notifier.request(**overrides)
    await notifier.owner.execute(SET_FAILED, request, reason)
    return request


async def resend(notifier: NotificationHub, request: UUID) -> RequestedNotification:
    async with notifier.hub.transaction() as tx:
        return await resend_notification(tx, notifier.hub.templates, request, MINA)


async def test_a_failed_notification_is_resent_and_stays_failed(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    request = await notifier.request()
    discord.script.extend([FAILURE] * 3)
    for _ in range(3):
        await notifier.dispatch()
        await notifier.travel(timedelta(minutes=3))
    assert await notifier.state(request) == ("failed", "exhausted", 3)

    resent = await resend(notifier, request)
    await notifier.dispatch()

    assert await notifier.state(resent.id) == ("sent", None, 1)
    assert await notifier.state(request) == ("failed", "exhausted", 3)
    assert len(discord.messages_to("100")) == 1


async def test_a_resend_has_the_same_content_and_its_own_actor(notifier: NotificationHub) -> None:
    guild = await notifier.owner.fetchval("insert into guild.guilds default values returning id")
    request = await request_and_fail(
        notifier,
        template="antinuke.triggered",
        guild=guild,
        locale="en",
        incident="7",
        event=new_id(),
        rule=new_id(),
        source="minu_find",
        idempotency_key="k",
        dedupe_key="d",
        correlation_id="c",
    )

    resent = await resend(notifier, request)

    original, copy = await notifier.row(request), await notifier.row(resent.id)
    assert {name: copy[name] for name in COPIED_COLUMNS} == {name: original[name] for name in COPIED_COLUMNS}
    assert (copy["again_of"], copy["requested_by"], copy["rule_id"]) == (request, "operator:mina", None)
    assert (copy["idempotency_key"], copy["dedupe_key"], copy["attempt_count"]) == (None, None, 0)
    assert copy["nonce"] != original["nonce"]
    [entry] = await notifier.audit_entries("notification.again")
    assert entry["subject"] == str(request)
    assert str(resent.id) in entry["details"]


async def test_a_resend_respects_current_preferences(notifier: NotificationHub, discord: FakeDiscord) -> None:
    request = await request_and_fail(notifier)
    async with notifier.hub.transaction() as tx:
        await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), MINA)

    resent = await resend(notifier, request)

    assert (resent.state, resent.reason) == ("suppressed", "dm_disabled")
    await notifier.dispatch()
    assert discord.messages == []


async def test_an_unhealthy_address_suppresses_a_resend(notifier: NotificationHub, discord: FakeDiscord) -> None:
    request = await request_and_fail(notifier, "refused")
    async with notifier.hub.transaction() as tx:
        await mark_address_unhealthy(tx, request, "closed DMs")

    assert (await resend(notifier, request)).reason == "address_unhealthy"
    async with notifier.hub.transaction() as tx:
        await unblock_address(tx, NotificationChannel.USER_DM, "100", MINA)
    resent = await resend(notifier, request)  # the first resend was suppressed, so it does not prevent another
    await notifier.dispatch()

    assert await notifier.state(resent.id) == ("sent", None, 1)
    async with notifier.hub.autocommit() as tx:
        assert [notification.state for notification in await list_resends(tx, request)] == ["suppressed", "sent"]


async def test_concurrent_resends_create_one_notification(notifier: NotificationHub, discord: FakeDiscord) -> None:
    request = await request_and_fail(notifier)

    results = await asyncio.gather(*(resend(notifier, request) for _ in range(5)), return_exceptions=True)

    [resent] = [result for result in results if isinstance(result, RequestedNotification)]
    assert [str(result) for result in results if isinstance(result, Conflict)] == [
        f"The notification was already sent again as {resent.id}"
    ] * 4
    await notifier.dispatch()
    with pytest.raises(Conflict, match="already"):
        await resend(notifier, request)
    assert len(discord.messages) == 1


async def test_a_failed_resend_can_be_resent(notifier: NotificationHub) -> None:
    request = await request_and_fail(notifier)
    second = (await resend(notifier, request)).id
    await notifier.owner.execute(SET_FAILED, second, "unknown")

    third = await resend(notifier, second)

    assert (await notifier.row(third.id))["again_of"] == second
    assert (await resend(notifier, request)).state == "pending"


async def test_only_a_failed_notification_can_be_resent(notifier: NotificationHub) -> None:
    request = await notifier.request()
    with pytest.raises(Conflict, match="it is pending"):
        await resend(notifier, request)
    await notifier.dispatch()
    with pytest.raises(Conflict, match="it is sent"):
        await resend(notifier, request)
    with pytest.raises(NotFound):
        await resend(notifier, new_id())
    assert await notifier.owner.fetchval("select count(*) from notification.requests") == 1


async def test_only_an_emergency_can_be_resent_after_it_expired(notifier: NotificationHub) -> None:
    now = await notifier.owner.fetchval("select pabal.now()")
    news = await request_and_fail(notifier, template="marketing.news", expires_at=now + timedelta(hours=1))
    emergency = await request_and_fail(notifier, template="antinuke.triggered", expires_at=now + timedelta(hours=1))
    await notifier.travel(timedelta(hours=2))

    with pytest.raises(Conflict, match="it has expired"):
        await resend(notifier, news)
    assert (await resend(notifier, emergency)).state == "pending"


async def test_a_resend_with_a_mismatched_payload_is_invalid(notifier: NotificationHub) -> None:
    request = await request_and_fail(notifier)
    await notifier.owner.execute("update notification.requests set payload = '{}'")

    with pytest.raises(Invalid, match=r"payload\.amount: is required"):
        await resend(notifier, request)


@pytest.mark.parametrize("language", ["en", "ko"])
async def test_the_explanation_mentions_resends(notifier: NotificationHub, language: Any) -> None:
    request = await request_and_fail(notifier)
    async with notifier.hub.autocommit() as tx:
        before = await explain_notification(tx, request, ALL_SERVICES, language, str)
    resent = await resend(notifier, request)

    async with notifier.hub.autocommit() as tx:
        original = await explain_notification(tx, request, ALL_SERVICES, language, str)
        copy = await explain_notification(tx, resent.id, ALL_SERVICES, language, str)
        notification = await find_notification(tx, resent.id, ALL_SERVICES)

    assert before.lines[-1].says.endswith(f"pabal notification resend {request}")
    assert str(resent.id) in original.lines[-1].says
    lines = [line.says for line in copy.lines if line.part == "asked"]
    assert "mina" in lines[0]
    assert "operator" not in lines[0]
    assert str(request) in lines[2]
    assert notification.again_of == request
