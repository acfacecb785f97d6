"""Why did I, or did I not, get this? Everybody is answered, whatever the reason, in Korean and in English."""

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
from pabal.notifications.dispatch.addresses import heal_address
from pabal.notifications.lane import LANE
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.operator_alerts import AlertTarget, alert_undelivered_emergencies
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.requests import NotificationDraft, cancel_notification, request_notifications
from pabal.notifications.rules.rules import RuleDraft, add_rule, remove_rule
from pabal.notifications.toasts.inbox import ToastAction, mark_toast
from pabal.trace.explain_notification import ExplanationPart, NotificationExplanation, explain_notification
from support.dispatch import AUDIT, Office, at, tried
from support.fake_discord import FAILS, Discord
from support.notifications import sql
from support.wait import until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
EVERYBODY = NotificationAccess("hub", all_services=True)
HANGUL = re.compile(r"[가-힣]")


def spoken(moment: object) -> str:
    return f"<{type(moment).__name__}>"


async def why(
    desk: Office, request: UUID, language: ExplanationLanguage = "en", who: NotificationAccess = EVERYBODY
) -> NotificationExplanation:
    async with desk.hub.autocommit() as tx:
        return await explain_notification(tx, request, who, language, spoken)


async def parts(desk: Office, request: UUID) -> dict[str, list[str]]:
    """What is said in English, part by part; the Korean says as much."""
    told, also = await why(desk, request), await why(desk, request, "ko")
    assert [line.part for line in told.lines] == [line.part for line in also.lines]
    assert [line.says for line in also.lines if not HANGUL.search(line.says)] == []
    found: dict[str, list[str]] = {}
    for line in told.lines:
        found.setdefault(line.part, []).append(line.says)
    return found


async def prefer(desk: Office, person: str, **wish: Any) -> None:
    async with desk.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**wish), HUB_ACTOR)


async def allowed(database_urls: DatabaseUrls, constraint: str) -> set[str]:
    """The words a check of the database allows."""
    written = await sql(
        database_urls, "select pg_get_constraintdef(oid) from pg_constraint where conname = $1", constraint
    )
    return {*re.findall(r"'([a-z_]+)'::text", written)}


class TestWords:
    async def test_every_reason_and_outcome_the_database_allows_is_told(self, database_urls: DatabaseUrls) -> None:
        reasons = await allowed(database_urls, "request_says_why") - {"suppressed", "failed"}

        assert reasons >= {*SuppressReason}
        assert reasons == END_TEXTS.keys() == NEXT_STEP_TEXTS.keys()
        assert await allowed(database_urls, "attempt_outcome") == OUTCOME_TEXTS.keys()

    @pytest.mark.parametrize(
        ("words", "known"),
        [
            (STEP_TEXTS, [*DecisionStep]),
            (CATEGORY_TEXTS, [*NotificationCategory]),
            (CHANNEL_TEXTS, [*NotificationChannel]),
            (PART_TITLES, [*get_args(ExplanationPart)]),
        ],
        ids=["steps", "categories", "channels", "parts"],
    )
    def test_every_step_category_channel_and_part_is_told(
        self, words: Mapping[str, BilingualText], known: list[str]
    ) -> None:
        assert {*words} == {*known}

    @pytest.mark.parametrize(
        ("name", "both"),
        [
            (f"{kind} {name}", both)
            for kind, words in (
                ("step", STEP_TEXTS),
                ("end", END_TEXTS),
                ("next", NEXT_STEP_TEXTS),
                ("outcome", OUTCOME_TEXTS),
                ("text", EXPLANATION_TEXTS),
            )
            for name, both in words.items()
        ],
    )
    def test_both_languages_say_it_with_the_same_facts(self, name: str, both: BilingualText) -> None:
        korean, english = both

        assert HANGUL.search(korean), name
        assert not HANGUL.search(english), name
        assert facts_in(korean) == facts_in(english)

    def test_a_step_of_another_version_is_told_by_its_name(self) -> None:
        assert format_decision_steps(["dm_enabled", "moon_phase"], "payment", "en") == [
            "Direct messages are on.",
            "moon_phase",
        ]


def facts_in(text: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


class TestWhoAsked:
    async def test_the_hub(self, desk: Office) -> None:
        said = await parts(desk, await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST))

        assert said["asked"] == [
            "Requested by the hub.",
            "Template: payment.succeeded, recipient: dashboard 100",
        ]

    async def test_a_service_and_somebody_at_a_terminal(self, desk: Office) -> None:
        request = await desk.ask()
        asked = "update notification.requests set requested_by = $1"

        await desk.owner.execute(asked, "minu_find")
        assert (await parts(desk, request))["asked"][0] == "Requested by the service minu_find."
        await desk.owner.execute(asked, "cli:mina")
        assert (await parts(desk, request))["asked"][0] == "Requested by mina in a terminal."

    async def test_plain_sql_which_asks_nobody_what_they_want(self, desk: Office) -> None:
        request = await desk.owner.fetchval(
            "select notification.request('user_dm', '100', 'payment.succeeded', $1::text::jsonb)",
            '{"item": "x", "amount": 1, "currency": "KRW"}',
        )

        said = await parts(desk, request)

        assert re.fullmatch(r"Requested in SQL by the database login \w+\.", said["asked"][0])
        assert said["decided"] == ["Preferences were not checked at request time. They are checked at send time."]

    async def test_a_rule_by_its_name_or_when_it_is_gone_by_its_id(self, desk: Office) -> None:
        event, said = new_id(), {"item": "x", "amount": 1, "currency": "KRW"}
        wanted = RuleDraft(
            name="buyers",
            event_pattern="order.paid",
            template_key="payment.succeeded",
            recipients=["user"],
            channels=["user_dm"],
        )
        async with desk.hub.transaction() as tx:
            rule = await add_rule(tx, desk.hub.templates, wanted, HUB_ACTOR)
            template = desk.hub.templates.get("payment.succeeded")
            draft = NotificationDraft(
                channel=NotificationChannel.USER_DM,
                recipient="100",
                template=template,
                payload=said,
                event=event,
                rule=rule.id,
                source="minu_find",
            )
            [asked] = await request_notifications(tx, [draft], HUB_ACTOR)

        before = (await parts(desk, asked.id))["asked"][0]
        async with desk.hub.transaction() as tx:
            await remove_rule(tx, rule.id, HUB_ACTOR)
        after = (await parts(desk, asked.id))["asked"][0]

        assert before == f"Requested by the rule buyers, because of the event {event} from the service minu_find."
        assert after == f"Requested by the rule {rule.id}, because of the event {event} from the service minu_find."

    async def test_it_is_explained_to_whoever_may_see_it(self, desk: Office) -> None:
        request = await desk.ask(source="minu_find")

        assert (await why(desk, request, who=NotificationAccess("minu_find"))).state == "pending"
        with pytest.raises(NotFound):
            await why(desk, request, who=NotificationAccess("minu_keep"))


class TestWhyNot:
    async def test_what_was_switched_off_when_it_was_asked_for(self, desk: Office) -> None:
        await prefer(desk, "100", dm_enabled=False)
        await prefer(desk, "101", payment_notifications=False)
        dm, category = await desk.ask(), await desk.ask(recipient="101")

        assert (await parts(desk, dm))["decided"] == [
            "Direct messages are off.",
            "Notifications for payment are on.",
            "The address is healthy.",
        ]
        assert (await parts(desk, dm))["ended"] == ["Not sent: direct messages are off."]
        assert "prefs 100 --set dm_enabled=true" in (await parts(desk, dm))["next"][0]
        assert (await parts(desk, category))["ended"] == ["Not sent: notifications for payment are off."]
        assert "prefs 101 --set payment_notifications=true" in (await parts(desk, category))["next"][0]

    async def test_what_was_switched_off_between_the_asking_and_the_sending(self, desk: Office) -> None:
        request = await desk.ask()
        await prefer(desk, "100", dm_enabled=False)
        await desk.dispatch()

        said = await parts(desk, request)

        assert said["decided"][0] == "Direct messages are on."
        assert said["again"][:2] == [
            "Checked again before sending.",
            "Direct messages are off.",
        ]
        assert said["attempt"] == ["Suppressed before sending."]

    async def test_an_address_that_refused_us_and_how_it_is_now(self, desk: Office, there: Discord) -> None:
        there.closed.add("100")
        refused = await desk.ask()
        await desk.dispatch()
        after = await desk.ask()

        said = await parts(desk, refused)
        assert said["attempt"][0].startswith("Attempt 1 failed, and no other follows: ")
        assert said["address"][0].startswith("This address has refused messages since <datetime>: ")
        assert said["ended"][0] == "Failed: the recipient's address refused it."
        assert (await parts(desk, after))["ended"] == ["Not sent: the address has refused an earlier message."]
        assert "pabal notify heal user_dm 100" in (await parts(desk, after))["next"][0]

        async with desk.hub.transaction() as tx:
            await heal_address(tx, NotificationChannel.USER_DM, "100", HUB_ACTOR)
        assert (await parts(desk, after))["address"] == ["The address is healthy now."]

    async def test_a_storm_and_the_first_of_it(self, desk: Office) -> None:
        first = await desk.ask("antinuke.triggered", incident="raid")
        await desk.dispatch()
        second = await desk.ask("antinuke.triggered", incident="raid")
        await desk.dispatch()

        assert (await parts(desk, first))["decided"][0].startswith("This is an emergency")
        assert (await parts(desk, first))["again"] == [
            "The incident was not reported in the last minute, and there was no storm of emergencies."
        ]
        assert (await parts(desk, second))["again"][1] == "The same incident was reported in the last minute."
        assert (await parts(desk, second))["next"][0].startswith("Nothing: after the storm")

    async def test_too_late_called_off_and_unrenderable(self, desk: Office) -> None:
        late = await desk.ask(expires_at=await desk.owner.fetchval("select pabal.now() + interval '1 minute'"))
        off, changed = await desk.ask(recipient="101"), await desk.ask(recipient="102")
        async with desk.hub.transaction() as tx:
            await cancel_notification(tx, off, EVERYBODY, HUB_ACTOR)
        await desk.owner.execute("update notification.requests set payload = '{}' where id = $1", changed)
        await desk.travel(2 * MINUTE)
        async with desk.hub.transaction() as tx:
            await LANE.expire(tx, 10)
        await desk.dispatch()

        assert (await parts(desk, late))["ended"] == ["Not sent: it expired before it could be sent."]
        assert (await parts(desk, off))["ended"] == ["Not sent: it was cancelled."]
        assert (await parts(desk, changed))["ended"][0] == "Failed: the text could not be rendered."
        assert "payload.amount" in (await parts(desk, changed))["ended"][1]

    async def test_an_emergency_that_three_attempts_could_not_bring(self, desk: Office, there: Discord) -> None:
        there.script.extend([FAILS] * 3)
        request = await desk.ask("antinuke.triggered", recipient=AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL)
        async with desk.working():
            for attempt in (1, 2, 3):
                await until(lambda so_far=attempt: tried(desk, so_far))
                await desk.travel(MINUTE)
        async with desk.hub.transaction() as tx:
            await alert_undelivered_emergencies(tx, AlertTarget(desk.hub.templates, None), 10)

        said = await parts(desk, request)

        assert [line.partition(":")[0] for line in said["attempt"]] == [
            "Attempt 1 failed",
            "Attempt 2 failed",
            "Attempt 3 failed, and no other follows",
        ]
        assert said["ended"][0] == "Failed: all three attempts failed."
        assert said["ended"][1].startswith("Last error: ")
        assert said["ended"][2].startswith("The emergency was not delivered in time")


class TestWhy:
    async def test_it_was_sent(self, desk: Office, there: Discord) -> None:
        request = await desk.ask()
        await desk.dispatch()

        said = await parts(desk, request)

        [message] = there.messages
        assert said["again"] == ["Checked again before sending; nothing had changed."]
        assert said["attempt"] == [f"Attempt 1: delivered. Discord message ID: {message.id}."]
        assert said["ended"] == ["Sent at <datetime>."]
        assert "next" not in said

    async def test_a_toast_says_what_its_person_did_with_it(self, desk: Office) -> None:
        request = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)
        await desk.dispatch()
        said = [(await parts(desk, request))["ended"][1]]
        for mark in (ToastAction.SEEN, ToastAction.READ, ToastAction.ARCHIVE):
            async with desk.hub.transaction() as tx:
                await mark_toast(tx, "100", request, mark)
            said.append((await parts(desk, request))["ended"][1])
        await desk.owner.execute("delete from notification.toasts")
        said.append((await parts(desk, request))["ended"][1])

        assert said == [
            "In the dashboard, not seen yet.",
            "Seen in the dashboard, not read yet.",
            "Read at <datetime>.",
            "Archived at <datetime>.",
            "No longer in the dashboard.",
        ]

    async def test_it_waits_for_the_morning_for_its_turn_or_is_in_somebodys_hands(self, desk: Office) -> None:
        await at(desk, 22, 0)
        news = await desk.ask("marketing.news")
        due = await desk.ask(recipient="101")
        before = (await parts(desk, due))["ended"]
        async with desk.hub.autocommit() as tx:
            await LANE.claim(tx, 1, MINUTE, "w1")

        assert (await parts(desk, news))["decided"][-1].startswith("It is night in Korea")
        assert (await parts(desk, news))["ended"] == ["Scheduled for <datetime>."]
        assert before == ["Due now, waiting for a worker."]
        assert (await parts(desk, due))["ended"] == ["w1 is sending it now."]
