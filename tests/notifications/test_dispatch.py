"""A request that is due is looked at once more and sent once, whatever happens to whoever sends it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import HUB_ACTOR
from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel, next_korean_morning
from pabal.notifications.dispatch.addresses import heal_address, save_dm_channel
from pabal.notifications.lane import LANE
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.privacy import erase_person
from pabal.queue.outcome import Snooze
from pabal.settings import Settings
from support.dispatch import AUDIT, Office, all_sent, at, now, office, tried
from support.dump import dumped
from support.fake_discord import FAILS, LOST, Discord, Fate, error, reply
from support.lane_under_test import Travel
from support.receiver import slow
from support.wait import until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


async def prefer(desk: Office, person: str, **wish: Any) -> None:
    async with desk.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**wish), HUB_ACTOR)


class TestSending:
    async def test_a_dm_opens_its_channel_once_and_remembers_it(self, desk: Office, there: Discord) -> None:
        first = await desk.ask()
        await desk.dispatch()
        second = await desk.ask()
        await desk.dispatch()

        assert [message.nonce for message in there.said_to("100")] == [first.hex[:25], second.hex[:25]]
        assert there.opened == 1
        assert await desk.state(first) == ("sent", None, 1)
        assert await desk.attempts(first) == [("done", 1)]

    async def test_the_answer_is_kept_with_the_attempt(self, desk: Office, there: Discord) -> None:
        request = await desk.ask(
            recipient=AUDIT, template="antinuke.triggered", channel=NotificationChannel.GUILD_AUDIT_CHANNEL
        )
        await desk.dispatch()

        [message] = there.said_in(AUDIT)
        kept = await desk.owner.fetchrow(
            "select answer ->> 'message_id' as id, worker, started_at <= ended_at as ordered "
            "from notification.attempts where request_id = $1",
            request,
        )
        assert kept is not None
        assert (kept["id"], kept["worker"], kept["ordered"]) == (message.id, "tester", True)

    async def test_a_toast_arrives_with_its_settle(self, desk: Office, there: Discord) -> None:
        request = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST, locale="en")
        await desk.dispatch()

        toast = await desk.owner.fetchrow(
            "select title, locale, recipient_id from notification.toasts where id = $1", request
        )
        assert toast is not None
        assert dict(toast) == {"title": "Payment received", "locale": "en", "recipient_id": "100"}
        assert await desk.state(request) == ("sent", None, 1)
        assert there.requests == []

    async def test_the_language_is_the_requests_then_the_persons_then_the_hubs(
        self, desk: Office, there: Discord
    ) -> None:
        await desk.owner.execute("insert into notification.people (discord_id, locale) values ('101', 'en')")
        await desk.ask(recipient="101")
        await desk.ask(recipient="102")
        await desk.ask(recipient="102", locale="en")
        await desk.dispatch()

        assert [each.title for each in there.said_to("101")] == ["Payment received"]
        assert sorted(each.title for each in there.said_to("102")) == ["Payment received", "결제가 완료됐어요"]

    async def test_nobody_can_be_mentioned(self, desk: Office, there: Discord) -> None:
        await desk.ask(payload={"item": "@everyone <@1>", "amount": 1, "currency": "KRW"})
        await desk.dispatch()

        [message] = there.messages
        assert message.body["allowed_mentions"] == {"parse": []}
        assert message.body["enforce_nonce"] is True

    async def test_without_a_token_it_is_written_down_instead(
        self, settings: Settings, database_urls: DatabaseUrls, there: Discord, travel: Travel
    ) -> None:
        async with office(settings, database_urls, there, travel, discord_token="") as desk:
            request = await desk.ask()
            await desk.dispatch()

            assert await desk.state(request) == ("sent", None, 1)
            assert await desk.owner.fetchval("select answer::text from notification.attempts") == '{"dry_run": true}'
        assert there.requests == []

    async def test_a_template_nobody_knows_any_more_fails_and_says_so(self, desk: Office) -> None:
        request = await desk.ask()
        await desk.owner.execute(
            "insert into notification.templates (key, category, texts, checksum) values ('old.one', 'system', '{}', '')"
        )
        await desk.owner.execute("update notification.requests set template_key = 'old.one'")
        await desk.dispatch()

        assert await desk.state(request) == ("failed", "unrenderable", 1)


class TestTheSecondLook:
    async def test_what_was_switched_off_meanwhile_is_not_sent(self, desk: Office, there: Discord) -> None:
        dm, toast = await desk.ask(), await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)
        await prefer(desk, "100", dm_enabled=False, payment_notifications=False)
        await desk.dispatch()

        assert await desk.state(dm) == ("suppressed", "dm_disabled", 0)
        assert await desk.state(toast) == ("suppressed", "category_off", 0)
        assert await desk.attempts(dm) == [("suppressed", 0)]
        decision = (await desk.row(dm))["decision"]
        assert '"at_send", "dm_disabled", "category_off"' in decision
        assert there.messages == []

    async def test_an_emergency_is_sent_all_the_same_and_the_override_is_audited_once(
        self, desk: Office, there: Discord
    ) -> None:
        await prefer(desk, "100", dm_enabled=False, antinuke_notifications=False)
        request = await desk.ask("antinuke.triggered")
        there.script.extend([FAILS, FAILS])  # a retry overrides nothing new
        async with desk.working():
            await until(lambda: tried(desk, 1))
            await desk.travel(MINUTE)
            await until(lambda: tried(desk, 2))
            await desk.travel(MINUTE)
            await until(desk.is_idle)

        assert len(there.said_to("100")) == 1
        assert await desk.state(request) == ("sent", None, 3)
        audited = await desk.audited("preference.overridden")
        assert {each["subject"] for each in audited} == {str(request)}
        assert sorted(each["details"].count("dm_disabled") for each in audited) == [0, 1]

    async def test_an_emergency_nobody_objected_to_overrides_nothing(self, desk: Office) -> None:
        await desk.ask("antinuke.triggered")
        await desk.dispatch()

        assert await desk.audited("preference.overridden") == []

    async def test_marketing_waits_for_the_morning_even_if_it_falls_due_at_night(
        self, desk: Office, there: Discord
    ) -> None:
        await at(desk, 20, 59)
        request = await desk.ask("marketing.news")
        await desk.travel(2 * MINUTE)
        await desk.dispatch()

        row = await desk.row(request)
        assert there.messages == []
        assert (row["state"], row["attempt_count"]) == ("pending", 0)
        assert timedelta() <= row["scheduled_at"] - next_korean_morning(await now(desk)) < timedelta(seconds=5)
        assert await desk.attempts(request) == [("snooze", 0)]

        await at(desk, 0, 30)  # across midnight, and still night
        await desk.dispatch()
        assert there.messages == []

        await at(desk, 8, 1)
        await desk.dispatch()
        assert [each.title for each in there.messages] == ["(광고) Sale"]

    async def test_whoever_agreed_to_the_night_is_told_at_night(self, desk: Office, there: Discord) -> None:
        await prefer(desk, "100", night_consent=True)
        await at(desk, 23, 0)
        await desk.ask("marketing.news")
        await desk.dispatch()

        assert len(there.messages) == 1

    async def test_late_marketing_is_dropped_and_a_late_emergency_is_sent(self, desk: Office, there: Discord) -> None:
        await at(desk, 12, 0)
        soon = await now(desk) + MINUTE
        news = await desk.ask("marketing.news", expires_at=soon)
        nuke = await desk.ask("antinuke.triggered")
        await desk.owner.execute("update notification.requests set expires_at = $1", soon)
        await desk.travel(2 * MINUTE)
        async with desk.hub.autocommit() as tx:
            assert await LANE.expire(tx, 100) == 1
        await desk.dispatch()

        assert await desk.state(news) == ("suppressed", "expired", 0)
        assert await desk.state(nuke) == ("sent", None, 1)
        assert [each.body["embeds"][0]["color"] for each in there.messages] == [0xE03131]


class TestFailing:
    async def test_a_failure_is_tried_again_later_and_the_third_is_the_last(self, desk: Office, there: Discord) -> None:
        request = await desk.ask(recipient=AUDIT, template="antinuke.detected", **DETECTED)
        there.script.extend([FAILS] * 3)
        async with desk.working():
            for times in (1, 2):
                await until(lambda times=times: tried(desk, times))
                wait = (await desk.row(request))["scheduled_at"] - await now(desk)
                assert 20 * times < wait.total_seconds() < 60 * times
                await desk.travel(2 * MINUTE)
            await until(desk.is_idle)

        assert await desk.state(request) == ("failed", "exhausted", 3)
        assert await desk.attempts(request) == [("retry", 1), ("retry", 2), ("dead", 3)]
        assert there.messages == []

    async def test_an_answer_lost_after_acceptance_makes_no_second_message(self, desk: Office, there: Discord) -> None:
        there.dm_of("100")
        there.script.extend([LOST, LOST])  # of opening the channel, and of the message
        request = await desk.ask()
        async with desk.working():
            for times in (1, 2):
                await until(lambda times=times: tried(desk, times))
                await desk.travel(2 * MINUTE)
            await until(desk.is_idle)

        assert len(there.messages) == 1
        assert await desk.state(request) == ("sent", None, 3)

    async def test_the_database_going_away_in_the_middle_spends_nothing(self, desk: Office, there: Discord) -> None:
        requests = [await desk.ask(recipient=str(each)) for each in range(200, 230)]
        async with desk.working(concurrency=5, hold=timedelta(seconds=2)):
            await until(lambda: len(there.messages) > 5)
            await desk.owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            await until(lambda: all_sent(desk.owner), within=30)

        assert len(there.messages) == len(requests)
        assert {each.nonce for each in there.messages} == {request.hex[:25] for request in requests}
        assert await desk.owner.fetchval("select max(attempt_count) from notification.requests") <= 2

    async def test_a_database_that_is_away_is_not_the_requests_fault(
        self, desk: Office, database_urls: DatabaseUrls
    ) -> None:
        await desk.ask()
        async with desk.hub.autocommit() as tx:
            [held] = await LANE.claim(tx, 1, MINUTE, "tester")
        async with open_hub(desk.hub.settings, database_urls) as other:
            await other.db.close()

            assert isinstance(await other.dispatcher.handle(held), Snooze)

    async def test_two_workers_send_everything_once(
        self, desk: Office, database_urls: DatabaseUrls, there: Discord
    ) -> None:
        async with (
            open_hub(desk.hub.settings, database_urls) as other,
            desk.working(concurrency=7),
            desk.working(other, concurrency=7),
        ):
            for each in range(60):
                await desk.ask(recipient=str(300 + each % 9))
            await until(lambda: all_sent(desk.owner), within=30)

        assert len(there.messages) == 60
        assert len({each.nonce for each in there.messages}) == 60

    async def test_emergencies_overtake_a_thousand_that_wait(self, desk: Office, there: Discord) -> None:
        await at(desk, 12, 0)
        await desk.owner.execute(
            "insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state) "
            "select pabal.uuid7(), 'user_dm', (1000 + i)::text, 'marketing.news', "
            """'{"headline": "Sale", "story": "x"}', 'pending' from generate_series(1, 1000) i"""
        )
        async with desk.working(concurrency=10):
            await until(lambda: len(there.messages) > 20)
            nuke = await desk.ask("antinuke.triggered")
            before = len(there.messages)
            await until(lambda: bool(there.said_to("100")))
            overtaken_by = [each.nonce for each in there.messages].index(nuke.hex[:25]) - before

        assert overtaken_by <= 30  # those in hand, and what was said while it was claimed
        assert await desk.state(nuke) == ("sent", None, 1)


class TestAddresses:
    @pytest.mark.parametrize("answer", ["opened", "refused"])
    async def test_whoever_is_erased_meanwhile_is_not_remembered_again(
        self, desk: Office, there: Discord, database_urls: DatabaseUrls, answer: str
    ) -> None:
        person = "80351110224678912"
        answered = asyncio.Event()
        says = reply(200, {"id": "7"}) if answer == "opened" else error(403, 50278, "no mutual guild")
        there.script.append(Fate(slow(answered, says)))
        await desk.ask(recipient=person)
        async with desk.working() as worker:
            await until(lambda: bool(there.requests))
            async with desk.hub.transaction() as tx:
                await erase_person(tx, person, HUB_ACTOR)
            answered.set()
            await until(lambda: worker.in_flight == 0)

        assert await desk.owner.fetchval("select count(*) from notification.addresses") == 0
        assert person.encode() not in await dumped(database_urls)

    async def test_an_erasure_waits_for_what_is_being_learned(self, desk: Office) -> None:
        request = await desk.ask()

        async def forget() -> None:
            async with desk.hub.transaction() as tx:
                await erase_person(tx, "100", HUB_ACTOR)

        async def is_waiting() -> bool:
            waits = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            )
            return await desk.owner.fetchval(waits) == 1

        async with desk.hub.transaction() as tx:
            await save_dm_channel(tx, request, "7")
            forgetting = asyncio.create_task(forget())
            await until(is_waiting)
        await forgetting

        assert await desk.owner.fetchval("select count(*) from notification.addresses") == 0

    async def test_closed_dms_fail_at_once_and_later_ones_are_not_tried(self, desk: Office, there: Discord) -> None:
        there.closed.add("100")
        first = await desk.ask()
        await desk.dispatch()
        tries = len(there.requests)
        second = await desk.ask()
        third = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)
        await desk.dispatch()

        assert await desk.state(first) == ("failed", "refused", 1)
        assert await desk.state(second) == ("suppressed", "address_unhealthy", 0)
        assert await desk.state(third) == ("sent", None, 1)
        assert len(there.requests) == tries
        reason = await desk.owner.fetchval("select reason from notification.addresses where recipient_id = '100'")
        assert "50007" in reason

    async def test_an_emergency_is_tried_all_the_same_and_what_it_reaches_is_healed(
        self, desk: Office, there: Discord
    ) -> None:
        there.closed.add("100")
        await desk.ask()
        await desk.dispatch()
        there.closed.clear()
        nuke = await desk.ask("antinuke.triggered")
        await desk.dispatch()
        after = await desk.ask()
        await desk.dispatch()

        assert await desk.state(nuke) == ("sent", None, 1)
        assert await desk.state(after) == ("sent", None, 1)
        assert len(await desk.audited("preference.overridden")) == 1

    async def test_an_operator_heals_an_address(self, desk: Office, there: Discord) -> None:
        there.strangers.add("100")
        refused = await desk.ask()
        await desk.dispatch()
        there.strangers.clear()
        async with desk.hub.transaction() as tx:
            await heal_address(tx, NotificationChannel.USER_DM, "100", HUB_ACTOR)
        healed = await desk.ask()
        await desk.dispatch()

        assert await desk.state(refused) == ("failed", "refused", 1)
        assert await desk.state(healed) == ("sent", None, 1)
        assert [each["subject"] for each in await desk.audited("address.healed")] == [person_pseudonym("100")]

    async def test_a_dm_channel_that_is_gone_is_opened_anew(self, desk: Office, there: Discord) -> None:
        await desk.ask()
        await desk.dispatch()
        there.delete_channel("100")
        again = await desk.ask()
        await desk.dispatch()

        assert len(there.said_to("100")) == 1
        assert there.opened == 2
        assert await desk.state(again) == ("sent", None, 2)
        assert (
            await desk.owner.fetchval("select count(*) from notification.addresses where unhealthy_since is not null")
            == 0
        )


DETECTED = {
    "channel": NotificationChannel.GUILD_AUDIT_CHANNEL,
    "payload": {"guild": "Seoul", "actor": "mallory", "action": "ban"},
}
