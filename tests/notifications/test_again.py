"""Again: what failed is sent once more when somebody asks for it, as a request of its own."""

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
from support.dispatch import Office
from support.fake_discord import FAILS, Discord
from support.notifications import EVERYBODY

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


async def failed(desk: Office, reason: str = "exhausted", **how: Any) -> UUID:
    row = await desk.ask(**how)
    await desk.owner.execute(FAILED, row, reason)
    return row


async def repeat(desk: Office, row: UUID) -> RequestedNotification:
    async with desk.hub.transaction() as tx:
        return await resend_notification(tx, desk.hub.templates, row, MINA)


async def test_what_failed_is_sent_again_and_stays_what_it_was(desk: Office, there: Discord) -> None:
    row = await desk.ask()
    there.script.extend([FAILS] * 3)
    for _ in range(3):
        await desk.dispatch()
        await desk.travel(timedelta(minutes=3))
    assert await desk.state(row) == ("failed", "exhausted", 3)

    asked = await repeat(desk, row)
    await desk.dispatch()

    assert await desk.state(asked.id) == ("sent", None, 1)
    assert await desk.state(row) == ("failed", "exhausted", 3)
    assert len(there.said_to("100")) == 1


async def test_it_says_the_same_but_is_asked_for_by_whoever_asked(desk: Office) -> None:
    guild = await desk.owner.fetchval("insert into guild.guilds default values returning id")
    row = await failed(
        desk,
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

    asked = await repeat(desk, row)

    first, second = await desk.row(row), await desk.row(asked.id)
    assert {name: second[name] for name in KEPT} == {name: first[name] for name in KEPT}
    assert (second["again_of"], second["requested_by"], second["rule_id"]) == (row, "operator:mina", None)
    assert (second["idempotency_key"], second["dedupe_key"], second["attempt_count"]) == (None, None, 0)
    assert second["nonce"] != first["nonce"]
    [deed] = await desk.audited("notification.again")
    assert deed["subject"] == str(row)
    assert str(asked.id) in deed["details"]


async def test_what_the_person_wants_by_now_is_respected(desk: Office, there: Discord) -> None:
    row = await failed(desk)
    async with desk.hub.transaction() as tx:
        await update_preferences(tx, "100", PreferencesUpdate(dm_enabled=False), MINA)

    asked = await repeat(desk, row)

    assert (asked.state, asked.reason) == ("suppressed", "dm_disabled")
    await desk.dispatch()
    assert there.messages == []


async def test_an_address_that_refused_it_must_be_healed_first(desk: Office, there: Discord) -> None:
    row = await failed(desk, "refused")
    async with desk.hub.transaction() as tx:
        await mark_address_unhealthy(tx, row, "closed DMs")

    assert (await repeat(desk, row)).reason == "address_unhealthy"
    async with desk.hub.transaction() as tx:
        await heal_address(tx, NotificationChannel.USER_DM, "100", MINA)
    asked = await repeat(desk, row)  # the first came to nothing, and is in nobody's way
    await desk.dispatch()

    assert await desk.state(asked.id) == ("sent", None, 1)
    async with desk.hub.autocommit() as tx:
        assert [each.state for each in await list_resends(tx, row)] == ["suppressed", "sent"]


async def test_it_is_sent_again_once_whoever_asks_and_however_often(desk: Office, there: Discord) -> None:
    row = await failed(desk)

    answers = await asyncio.gather(*(repeat(desk, row) for _ in range(5)), return_exceptions=True)

    [asked] = [each for each in answers if isinstance(each, RequestedNotification)]
    assert [str(each) for each in answers if isinstance(each, Conflict)] == [
        f"The notification was already sent again as {asked.id}"
    ] * 4
    await desk.dispatch()
    with pytest.raises(Conflict, match="already"):
        await repeat(desk, row)
    assert len(there.messages) == 1


async def test_one_that_fails_in_turn_may_be_sent_again_as_well(desk: Office) -> None:
    row = await failed(desk)
    second = (await repeat(desk, row)).id
    await desk.owner.execute(FAILED, second, "unknown")

    third = await repeat(desk, second)

    assert (await desk.row(third.id))["again_of"] == second
    assert (await repeat(desk, row)).state == "pending"


async def test_what_did_not_fail_is_not_sent_again(desk: Office) -> None:
    waits = await desk.ask()
    with pytest.raises(Conflict, match="it is pending"):
        await repeat(desk, waits)
    await desk.dispatch()
    with pytest.raises(Conflict, match="it is sent"):
        await repeat(desk, waits)
    with pytest.raises(NotFound):
        await repeat(desk, new_id())
    assert await desk.owner.fetchval("select count(*) from notification.requests") == 1


async def test_late_marketing_stays_dropped_and_a_late_emergency_is_still_sent(desk: Office) -> None:
    now = await desk.owner.fetchval("select pabal.now()")
    news = await failed(desk, template="marketing.news", expires_at=now + timedelta(hours=1))
    nuke = await failed(desk, template="antinuke.triggered", expires_at=now + timedelta(hours=1))
    await desk.travel(timedelta(hours=2))

    with pytest.raises(Conflict, match="it has expired"):
        await repeat(desk, news)
    assert (await repeat(desk, nuke)).state == "pending"


async def test_a_payload_that_no_longer_fits_its_template_is_refused(desk: Office) -> None:
    row = await failed(desk)
    await desk.owner.execute("update notification.requests set payload = '{}'")

    with pytest.raises(Invalid, match=r"payload\.amount: is required"):
        await repeat(desk, row)


@pytest.mark.parametrize("language", ["en", "ko"])
async def test_why_says_that_it_can_be_sent_again_and_that_it_was(desk: Office, language: Any) -> None:
    row = await failed(desk)
    async with desk.hub.autocommit() as tx:
        before = await explain_notification(tx, row, EVERYBODY, language, str)
    asked = await repeat(desk, row)

    async with desk.hub.autocommit() as tx:
        first = await explain_notification(tx, row, EVERYBODY, language, str)
        second = await explain_notification(tx, asked.id, EVERYBODY, language, str)
        read = await find_notification(tx, asked.id, EVERYBODY)

    assert before.lines[-1].says.endswith(f"pabal notify again {row}")
    assert str(asked.id) in first.lines[-1].says
    told = [line.says for line in second.lines if line.part == "asked"]
    assert "mina" in told[0]
    assert "operator" not in told[0]
    assert str(row) in told[2]
    assert read.again_of == row
