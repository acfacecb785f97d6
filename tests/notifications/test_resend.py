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
from pabal.notifications.dispatch.addresses import heal_address, mark_address_unhealthy
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
FAILED = """
update notification.requests
set state = 'failed', reason = $2, last_error = 'no', attempt_count = 3, ended_at = pabal.now()
where id = $1
"""
KEPT = (
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


async def failed(notifier: NotificationHub, reason: str = "exhausted", **overrides: Any) -> UUID:
    row = await notifier.request(**overrides)
    await notifier.owner.execute(FAILED, row, reason)
    return row


async def repeat(notifier: NotificationHub, row: UUID) -> RequestedNotification:
    async with notifier.hub.transaction() as tx:
        return await resend_notification(tx, notifier.hub.templates, row, MINA)


async def test_a_failed_notification_is_resent_and_stays_failed(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    row = await notifier.request()
    discord.script.extend([FAILURE] * 3)
    for _ in range(3):
        await notifier.dispatch()
        await notifier.travel(timedelta(minutes=3))
    assert await notifier.state(row) == ("failed", "exhausted", 3)

    asked = await repeat(notifier, row)
    await notifier.dispatch()

    assert await notifier.state(asked.id) == ("sent", None, 1)
    assert await notifier.state(row) == ("failed", "exhausted", 3)
    assert len(discord.messages_to("100")) == 1


async def test_a_resend_has_the_same_content_and_its_own_actor(notifier: NotificationHub) -> None:
    guild = await notifier.owner.fetchval("insert into guild.guilds default values returning id")
    row = await failed(
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

    asked = await repeat(notifier, row)

    first, second = await notifier.row(row), await notifier.row(asked.id)
    assert {name: second[name] for name in KEPT} == {name: first[name] for name in KEPT}
    assert (second["again_of"], second["requested_by"], second["rule_id"]) == (row, "operator:mina", None)
    assert (second["idempotency_key"], second["dedupe_key"], second["attempt_count"]) == (None, None, 0)
    assert second["nonce"] != first["nonce"]
    [audit_query] = await notifier.audit_entries("notification.again")
    assert audit_query["subject"] == str(row)
    assert str(asked.id) in audit_query["details"]


async def test_a_resend_respects_current_preferences(notifier: NotificationHub, discord: FakeDiscord) -> None:
    row = await failed(notifier)
    async with notifier.hub.transaction() as tx:
        await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), MINA)

    asked = await repeat(notifier, row)

    assert (asked.state, asked.reason) == ("suppressed", "dm_disabled")
    await notifier.dispatch()
    assert discord.messages == []


async def test_an_unhealthy_address_suppresses_a_resend(notifier: NotificationHub, discord: FakeDiscord) -> None:
    row = await failed(notifier, "refused")
    async with notifier.hub.transaction() as tx:
        await mark_address_unhealthy(tx, row, "closed DMs")

    assert (await repeat(notifier, row)).reason == "address_unhealthy"
    async with notifier.hub.transaction() as tx:
        await heal_address(tx, NotificationChannel.USER_DM, "100", MINA)
    asked = await repeat(notifier, row)  # the first resend was suppressed, so it does not prevent another
    await notifier.dispatch()

    assert await notifier.state(asked.id) == ("sent", None, 1)
    async with notifier.hub.autocommit() as tx:
        assert [item.state for item in await list_resends(tx, row)] == ["suppressed", "sent"]


async def test_concurrent_resends_create_one_notification(notifier: NotificationHub, discord: FakeDiscord) -> None:
    row = await failed(notifier)

    answers = await asyncio.gather(*(repeat(notifier, row) for _ in range(5)), return_exceptions=True)

    [asked] = [item for item in answers if isinstance(item, RequestedNotification)]
    assert [str(item) for item in answers if isinstance(item, Conflict)] == [
        f"The notification was already sent again as {asked.id}"
    ] * 4
    await notifier.dispatch()
    with pytest.raises(Conflict, match="already"):
        await repeat(notifier, row)
    assert len(discord.messages) == 1


async def test_a_failed_resend_can_be_resent(notifier: NotificationHub) -> None:
    row = await failed(notifier)
    second = (await repeat(notifier, row)).id
    await notifier.owner.execute(FAILED, second, "unknown")

    third = await repeat(notifier, second)

    assert (await notifier.row(third.id))["again_of"] == second
    assert (await repeat(notifier, row)).state == "pending"


async def test_only_a_failed_notification_can_be_resent(notifier: NotificationHub) -> None:
    waits = await notifier.request()
    with pytest.raises(Conflict, match="it is pending"):
        await repeat(notifier, waits)
    await notifier.dispatch()
    with pytest.raises(Conflict, match="it is sent"):
        await repeat(notifier, waits)
    with pytest.raises(NotFound):
        await repeat(notifier, new_id())
    assert await notifier.owner.fetchval("select count(*) from notification.requests") == 1


async def test_only_an_emergency_can_be_resent_after_it_expired(notifier: NotificationHub) -> None:
    now = await notifier.owner.fetchval("select pabal.now()")
    news = await failed(notifier, template="marketing.news", expires_at=now + timedelta(hours=1))
    request_emergency = await failed(notifier, template="antinuke.triggered", expires_at=now + timedelta(hours=1))
    await notifier.travel(timedelta(hours=2))

    with pytest.raises(Conflict, match="it has expired"):
        await repeat(notifier, news)
    assert (await repeat(notifier, request_emergency)).state == "pending"


async def test_a_resend_with_a_mismatched_payload_is_invalid(notifier: NotificationHub) -> None:
    row = await failed(notifier)
    await notifier.owner.execute("update notification.requests set payload = '{}'")

    with pytest.raises(Invalid, match=r"payload\.amount: is required"):
        await repeat(notifier, row)


@pytest.mark.parametrize("language", ["en", "ko"])
async def test_the_explanation_mentions_resends(notifier: NotificationHub, language: Any) -> None:
    row = await failed(notifier)
    async with notifier.hub.autocommit() as tx:
        before = await explain_notification(tx, row, ALL_SERVICES, language, str)
    asked = await repeat(notifier, row)

    async with notifier.hub.autocommit() as tx:
        first = await explain_notification(tx, row, ALL_SERVICES, language, str)
        second = await explain_notification(tx, asked.id, ALL_SERVICES, language, str)
        read = await find_notification(tx, asked.id, ALL_SERVICES)

    assert before.lines[-1].says.endswith(f"pabal notification resend {row}")
    assert str(asked.id) in first.lines[-1].says
    result = [line.says for line in second.lines if line.part == "asked"]
    assert "mina" in result[0]
    assert "operator" not in result[0]
    assert str(row) in result[2]
    assert read.again_of == row
