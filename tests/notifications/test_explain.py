"""Explanations of why a notification was sent or not, in Korean and in English."""

import re
import string
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import NotFound
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from pabal.notifications.decision.decide import DecisionStep, NotificationCategory, NotificationChannel, SuppressReason
from pabal.notifications.decision.texts import (
    CATEGORY_TEXTS,
    CHANNEL_TEXTS,
    END_TEXTS,
    EXPLANATION_TEXTS,
    NEXT_STEP_TEXTS,
    OUTCOME_TEXTS,
    PART_TITLES,
    STEP_TEXTS,
    BilingualText,
    ExplanationLanguage,
    format_decision_steps,
)
from pabal.notifications.dispatch.addresses import unblock_address
from pabal.notifications.lane import LANE
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.operator_alerts import AlertTarget, alert_undelivered_emergencies
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.requests import NotificationDraft, cancel_notification, request_notifications
from pabal.notifications.rules.rules import RuleDraft, add_rule, remove_rule
from pabal.notifications.toasts.inbox import ToastAction, mark_toast
from pabal.trace.explain_notification import ExplanationPart, NotificationExplanation, explain_notification
from support.dispatch import AUDIT, NotificationHub, has_attempts, travel_to_hour
from support.fake_discord import FAILURE, FakeDiscord
from support.notifications import sql
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
ALL_SERVICES = NotificationAccess("hub", all_services=True)
HANGUL = re.compile(r"[가-힣]")


def format_time(moment: object) -> str:
    return f"<{type(moment).__name__}>"


async def explain(
    notifier: NotificationHub,
    request: UUID,
    language: ExplanationLanguage = "en",
    access: NotificationAccess = ALL_SERVICES,
) -> NotificationExplanation:
    async with notifier.hub.autocommit() as tx:
        return await explain_notification(tx, request, access, language, format_time)


async def parts(notifier: NotificationHub, request: UUID) -> dict[str, list[str]]:
    """The English lines by part. The Korean explanation has the same parts."""
    english, korean = await explain(notifier, request), await explain(notifier, request, "ko")
    assert [line.part for line in english.lines] == [line.part for line in korean.lines]
    assert [line.says for line in korean.lines if not HANGUL.search(line.says)] == []
    lines_by_part: dict[str, list[str]] = {}
    for line in english.lines:
        lines_by_part.setdefault(line.part, []).append(line.says)
    return lines_by_part


async def prefer(notifier: NotificationHub, person: str, **changes: Any) -> None:
    async with notifier.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**changes), HUB_ACTOR)


async def allowed_values(database_urls: DatabaseUrls, constraint: str) -> set[str]:
    """The values that a check constraint allows."""
    definition = await sql(
        database_urls, "select pg_get_constraintdef(oid) from pg_constraint where conname = $1", constraint
    )
    return {*re.findall(r"'([a-z_]+)'::text", definition)}


class TestTexts:
    async def test_every_reason_and_outcome_has_a_text(self, database_urls: DatabaseUrls) -> None:
        reasons = await allowed_values(database_urls, "request_ended_has_reason") - {"suppressed", "failed"}

        assert reasons >= {*SuppressReason}
        assert reasons == END_TEXTS.keys() == NEXT_STEP_TEXTS.keys()
        assert await allowed_values(database_urls, "attempt_outcome") == OUTCOME_TEXTS.keys()

    @pytest.mark.parametrize(
        ("texts", "keys"),
        [
            (STEP_TEXTS, [*DecisionStep]),
            (CATEGORY_TEXTS, [*NotificationCategory]),
            (CHANNEL_TEXTS, [*NotificationChannel]),
            (PART_TITLES, [*get_args(ExplanationPart)]),
        ],
        ids=["steps", "categories", "channels", "parts"],
    )
    def test_every_step_category_channel_and_part_has_a_text(
        self, texts: Mapping[str, BilingualText], keys: list[str]
    ) -> None:
        assert {*texts} == {*keys}

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (f"{kind} {name}", text)
            for kind, texts in (
                ("step", STEP_TEXTS),
                ("end", END_TEXTS),
                ("next", NEXT_STEP_TEXTS),
                ("outcome", OUTCOME_TEXTS),
                ("text", EXPLANATION_TEXTS),
            )
            for name, text in texts.items()
        ],
    )
    def test_both_languages_use_the_same_placeholders(self, name: str, text: BilingualText) -> None:
        korean, english = text

        assert HANGUL.search(korean), name
        assert not HANGUL.search(english), name
        assert placeholders(korean) == placeholders(english)

    def test_an_unknown_step_is_shown_by_its_name(self) -> None:
        assert format_decision_steps(["dm_enabled", "moon_phase"], "payment", "en") == [
            "Direct messages are on.",
            "moon_phase",
        ]


def placeholders(text: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


class TestRequester:
    async def test_a_request_of_the_hub(self, notifier: NotificationHub) -> None:
        lines = await parts(notifier, await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST))

        assert lines["asked"] == [
            "Requested by the hub.",
            "Template: payment.succeeded, recipient: dashboard 100",
        ]

    async def test_a_request_of_a_service_and_of_a_terminal_user(self, notifier: NotificationHub) -> None:
        request = await notifier.request()
        set_requester = "update notification.requests set requested_by = $1"

        await notifier.owner.execute(set_requester, "minu_find")
        assert (await parts(notifier, request))["asked"][0] == "Requested by the service minu_find."
        await notifier.owner.execute(set_requester, "cli:mina")
        assert (await parts(notifier, request))["asked"][0] == "Requested by mina in a terminal."

    async def test_plain_sql_checks_no_preferences(self, notifier: NotificationHub) -> None:
        request = await notifier.owner.fetchval(
            "select notification.request('user_dm', '100', 'payment.succeeded', $1::text::jsonb)",
            '{"item": "x", "amount": 1, "currency": "KRW"}',
        )

        lines = await parts(notifier, request)

        assert re.fullmatch(r"Requested in SQL by the database login \w+\.", lines["asked"][0])
        assert lines["decided"] == ["Preferences were not checked at request time. They are checked at send time."]

    async def test_a_rule_is_named_or_after_its_deletion_shown_by_id(self, notifier: NotificationHub) -> None:
        event, payload = new_id(), {"item": "x", "amount": 1, "currency": "KRW"}
        rule_draft = RuleDraft(
            name="buyers",
            event_pattern="order.paid",
            template_key="payment.succeeded",
            recipients=["user"],
            channels=["user_dm"],
        )
        async with notifier.hub.transaction() as tx:
            rule = await add_rule(tx, notifier.hub.templates, rule_draft, HUB_ACTOR)
            template = notifier.hub.templates.get("payment.succeeded")
            draft = NotificationDraft(
                channel=NotificationChannel.USER_DM,
                recipient="100",
                template=template,
                payload=payload,
                event=event,
                rule=rule.id,
                source="minu_find",
            )
            [requested] = await request_notifications(tx, [draft], HUB_ACTOR)

        before = (await parts(notifier, requested.id))["asked"][0]
        async with notifier.hub.transaction() as tx:
            await remove_rule(tx, rule.id, HUB_ACTOR)
        after = (await parts(notifier, requested.id))["asked"][0]

        assert before == f"Requested by the rule buyers, because of the event {event} from the service minu_find."
        assert after == f"Requested by the rule {rule.id}, because of the event {event} from the service minu_find."

    async def test_an_explanation_requires_access(self, notifier: NotificationHub) -> None:
        request = await notifier.request(source="minu_find")

        assert (await explain(notifier, request, access=NotificationAccess("minu_find"))).state == "pending"
        with pytest.raises(NotFound):
            await explain(notifier, request, access=NotificationAccess("minu_keep"))


class TestNotSent:
    async def test_a_preference_that_was_off_at_request_time(self, notifier: NotificationHub) -> None:
        await prefer(notifier, "100", dm_enabled=False)
        await prefer(notifier, "101", payment_notifications=False)
        dm, category = await notifier.request(), await notifier.request(recipient="101")

        assert (await parts(notifier, dm))["decided"] == [
            "The account's own preferences apply. It is not linked to a registered user.",
            "Direct messages are off.",
            "Notifications for payment are on.",
            "The address is healthy.",
        ]
        assert (await parts(notifier, dm))["ended"] == ["Not sent: direct messages are off."]
        assert "pabal person preferences 100 --set dm_enabled=true" in (await parts(notifier, dm))["next"][0]
        assert (await parts(notifier, category))["ended"] == ["Not sent: notifications for payment are off."]
        [advice, *_] = (await parts(notifier, category))["next"]
        assert "pabal person preferences 101 --set payment_notifications=true" in advice

    async def test_a_preference_turned_off_before_sending(self, notifier: NotificationHub) -> None:
        request = await notifier.request()
        await prefer(notifier, "100", dm_enabled=False)
        await notifier.dispatch()

        lines = await parts(notifier, request)

        assert lines["decided"][1] == "Direct messages are on."
        assert lines["again"][:2] == [
            "Checked again before sending.",
            "Direct messages are off.",
        ]
        assert lines["attempt"] == ["Suppressed before sending."]

    async def test_an_unhealthy_address_and_its_current_state(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        refused = await notifier.request()
        await notifier.dispatch()
        later = await notifier.request()

        lines = await parts(notifier, refused)
        assert lines["attempt"][0].startswith("Attempt 1 failed permanently: ")
        assert lines["address"][0].startswith("This address has refused messages since <datetime>: ")
        assert lines["ended"][0] == "Failed: the recipient's address refused it."
        assert (await parts(notifier, later))["ended"] == ["Not sent: the address has refused an earlier message."]
        assert "pabal address enable user_dm 100" in (await parts(notifier, later))["next"][0]

        async with notifier.hub.transaction() as tx:
            await unblock_address(tx, NotificationChannel.USER_DM, "100", HUB_ACTOR)
        assert (await parts(notifier, later))["address"] == ["The address is healthy now."]

    async def test_a_storm_and_its_first_emergency(self, notifier: NotificationHub) -> None:
        first = await notifier.request("antinuke.triggered", incident="raid")
        await notifier.dispatch()
        second = await notifier.request("antinuke.triggered", incident="raid")
        await notifier.dispatch()

        assert (await parts(notifier, first))["decided"][1].startswith("This is an emergency")
        assert (await parts(notifier, first))["again"] == [
            "The incident was not reported in the last minute, and there was no storm of emergencies."
        ]
        assert (await parts(notifier, second))["again"][1] == "The same incident was reported in the last minute."
        assert (await parts(notifier, second))["next"][0].startswith("No action needed. After the storm")

    async def test_expired_cancelled_and_unrenderable(self, notifier: NotificationHub) -> None:
        expired = await notifier.request(
            expires_at=await notifier.owner.fetchval("select pabal.now() + interval '1 minute'")
        )
        cancelled, unrenderable = await notifier.request(recipient="101"), await notifier.request(recipient="102")
        async with notifier.hub.transaction() as tx:
            await cancel_notification(tx, cancelled, ALL_SERVICES, HUB_ACTOR)
        await notifier.owner.execute("update notification.requests set payload = '{}' where id = $1", unrenderable)
        await notifier.travel(2 * MINUTE)
        async with notifier.hub.transaction() as tx:
            await LANE.expire(tx, 10)
        await notifier.dispatch()

        assert (await parts(notifier, expired))["ended"] == ["Not sent: it expired before it could be sent."]
        assert (await parts(notifier, cancelled))["ended"] == ["Not sent: it was cancelled."]
        assert (await parts(notifier, unrenderable))["ended"][0] == "Failed: the text could not be rendered."
        assert "payload.amount" in (await parts(notifier, unrenderable))["ended"][1]

    async def test_an_emergency_with_three_failed_attempts(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.script.extend([FAILURE] * 3)
        request = await notifier.request(
            "antinuke.triggered", recipient=AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL
        )
        async with notifier.run_worker():
            for attempt in (1, 2, 3):
                await wait_until(lambda count=attempt: has_attempts(notifier, count))
                await notifier.travel(MINUTE)
        async with notifier.hub.transaction() as tx:
            await alert_undelivered_emergencies(tx, AlertTarget(notifier.hub.templates, None), 10)

        lines = await parts(notifier, request)

        assert [line.partition(":")[0] for line in lines["attempt"]] == [
            "Attempt 1 failed",
            "Attempt 2 failed",
            "Attempt 3 failed permanently",
        ]
        assert lines["ended"][0] == "Failed: all three attempts failed."
        assert lines["ended"][1].startswith("Last error: ")
        assert lines["ended"][2].startswith("The emergency was not delivered in time")


class TestSentOrPending:
    async def test_a_sent_message(self, notifier: NotificationHub, discord: FakeDiscord) -> None:
        request = await notifier.request()
        await notifier.dispatch()

        lines = await parts(notifier, request)

        [message] = discord.messages
        assert lines["again"] == ["Checked again before sending; nothing had changed."]
        assert lines["attempt"] == [f"Attempt 1: delivered. Discord message ID: {message.id}."]
        assert lines["ended"] == ["Sent at <datetime>."]
        assert "next" not in lines

    async def test_a_toast_with_the_actions_of_its_recipient(self, notifier: NotificationHub) -> None:
        request = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)
        await notifier.dispatch()
        toast_lines = [(await parts(notifier, request))["ended"][1]]
        for action in (ToastAction.SEEN, ToastAction.READ, ToastAction.ARCHIVE):
            async with notifier.hub.transaction() as tx:
                await mark_toast(tx, "100", request, action)
            toast_lines.append((await parts(notifier, request))["ended"][1])
        await notifier.owner.execute("delete from notification.toasts")
        toast_lines.append((await parts(notifier, request))["ended"][1])

        assert toast_lines == [
            "In the dashboard, not seen yet.",
            "Seen in the dashboard, not read yet.",
            "Read at <datetime>.",
            "Archived at <datetime>.",
            "No longer in the dashboard.",
        ]

    async def test_delayed_due_and_claimed(self, notifier: NotificationHub) -> None:
        await travel_to_hour(notifier, 22, 0)
        news = await notifier.request("marketing.news")
        due = await notifier.request(recipient="101")
        before = (await parts(notifier, due))["ended"]
        async with notifier.hub.autocommit() as tx:
            await LANE.claim(tx, 1, MINUTE, "w1")

        assert (await parts(notifier, news))["decided"][-1].startswith("It is night in Korea")
        assert (await parts(notifier, news))["ended"] == ["Scheduled for <datetime>."]
        assert before == ["Due now, waiting for a worker."]
        assert (await parts(notifier, due))["ended"] == ["w1 is sending it now."]
