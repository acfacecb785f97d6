"""A due notification is decided again and sent once, also when a worker fails."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import HUB_ACTOR
from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel, next_korean_morning
from pabal.notifications.dispatch.addresses import save_dm_channel, unblock_address
from pabal.notifications.lane import LANE
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.privacy import erase_person
from pabal.queue.outcome import Snooze
from pabal.settings import Settings
from support.dispatch import (
    AUDIT,
    NotificationHub,
    all_sent,
    database_time,
    has_attempts,
    open_notification_hub,
    travel_to_hour,
)
from support.dump import dump_database
from support.fake_discord import FAILURE, LOST_RESPONSE, FakeDiscord, ScriptedReply, error_reply, json_reply
from support.lane_under_test import Travel
from support.receiver import respond_after
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)


async def prefer(notifier: NotificationHub, person: str, **changes: Any) -> None:
    async with notifier.hub.transaction() as tx:
        await update_preferences(tx, person, PreferencesUpdate(**changes), HUB_ACTOR)


class TestSending:
    async def test_a_dm_channel_is_opened_once_and_stored(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        first = await notifier.request()
        await notifier.dispatch()
        second = await notifier.request()
        await notifier.dispatch()

        assert [message.nonce for message in discord.messages_to("100")] == [first.hex[:25], second.hex[:25]]
        assert discord.dm_opens == 1
        assert await notifier.state(first) == ("sent", None, 1)
        assert await notifier.attempts(first) == [("done", 1)]

    async def test_the_response_is_stored_with_the_attempt(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        request = await notifier.request(
            recipient=AUDIT, template="antinuke.triggered", channel=NotificationChannel.GUILD_AUDIT_CHANNEL
        )
        await notifier.dispatch()

        [message] = discord.messages_in(AUDIT)
        attempt = await notifier.owner.fetchrow(
            "select answer ->> 'message_id' as id, worker, started_at <= ended_at as ordered "
            "from notification.attempts where request_id = $1",
            request,
        )
        assert attempt is not None
        assert (attempt["id"], attempt["worker"], attempt["ordered"]) == (message.id, "tester", True)

    async def test_a_toast_is_inserted_when_its_notification_is_settled(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        request = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST, locale="en")
        await notifier.dispatch()

        toast = await notifier.owner.fetchrow(
            "select title, locale, recipient_id from notification.toasts where id = $1", request
        )
        assert toast is not None
        assert dict(toast) == {"title": "Payment received", "locale": "en", "recipient_id": "100"}
        assert await notifier.state(request) == ("sent", None, 1)
        assert discord.requests == []

    async def test_the_language_is_the_notifications_then_the_persons_then_the_hubs(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await notifier.owner.execute("insert into notification.people (discord_id, locale) values ('101', 'en')")
        await notifier.request(recipient="101")
        await notifier.request(recipient="102")
        await notifier.request(recipient="102", locale="en")
        await notifier.dispatch()

        assert [message.title for message in discord.messages_to("101")] == ["Payment received"]
        assert sorted(message.title for message in discord.messages_to("102")) == [
            "Payment received",
            "결제가 완료됐어요",
        ]

    async def test_messages_cannot_mention_anyone(self, notifier: NotificationHub, discord: FakeDiscord) -> None:
        await notifier.request(payload={"item": "@everyone <@1>", "amount": 1, "currency": "KRW"})
        await notifier.dispatch()

        [message] = discord.messages
        assert message.body["allowed_mentions"] == {"parse": []}
        assert message.body["enforce_nonce"] is True

    async def test_a_dry_run_only_logs_the_message(
        self, settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel
    ) -> None:
        async with open_notification_hub(
            settings, database_urls, discord, travel, discord_token="", discord_dry_run=True
        ) as notifier:
            request = await notifier.request()
            await notifier.dispatch()

            assert await notifier.state(request) == ("sent", None, 1)
            assert (
                await notifier.owner.fetchval("select answer::text from notification.attempts") == '{"dry_run": true}'
            )
        assert discord.requests == []

    async def test_an_unknown_template_fails_the_notification(self, notifier: NotificationHub) -> None:
        request = await notifier.request()
        await notifier.owner.execute(
            "insert into notification.templates (key, category, texts, checksum) values ('old.one', 'system', '{}', '')"
        )
        await notifier.owner.execute("update notification.requests set template_key = 'old.one'")
        await notifier.dispatch()

        assert await notifier.state(request) == ("failed", "unrenderable", 1)


class TestDecisionAtSend:
    async def test_a_preference_turned_off_after_the_request_suppresses_it(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        dm, toast = await notifier.request(), await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)
        await prefer(notifier, "100", dm_enabled=False, payment_notifications=False)
        await notifier.dispatch()

        assert await notifier.state(dm) == ("suppressed", "dm_disabled", 0)
        assert await notifier.state(toast) == ("suppressed", "category_off", 0)
        assert await notifier.attempts(dm) == [("suppressed", 0)]
        decision = (await notifier.row(dm))["decision"]
        assert '"at_send", "dm_disabled", "category_off"' in decision
        assert discord.messages == []

    async def test_an_emergency_overrides_preferences_and_is_audited_once(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await prefer(notifier, "100", dm_enabled=False, antinuke_notifications=False)
        request = await notifier.request("antinuke.triggered")
        discord.script.extend([FAILURE, FAILURE])  # a retry overrides nothing new
        async with notifier.run_worker():
            await wait_until(lambda: has_attempts(notifier, 1))
            await notifier.travel(MINUTE)
            await wait_until(lambda: has_attempts(notifier, 2))
            await notifier.travel(MINUTE)
            await wait_until(notifier.is_idle)

        assert len(discord.messages_to("100")) == 1
        assert await notifier.state(request) == ("sent", None, 3)
        entries = await notifier.audit_entries("preference.overridden")
        assert {entry["subject"] for entry in entries} == {str(request)}
        assert sorted(entry["details"].count("dm_disabled") for entry in entries) == [0, 1]

    async def test_an_emergency_without_objections_overrides_nothing(self, notifier: NotificationHub) -> None:
        await notifier.request("antinuke.triggered")
        await notifier.dispatch()

        assert await notifier.audit_entries("preference.overridden") == []

    async def test_marketing_due_at_night_is_delayed_until_morning(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await travel_to_hour(notifier, 20, 59)
        request = await notifier.request("marketing.news")
        await notifier.travel(2 * MINUTE)
        await notifier.dispatch()

        row = await notifier.row(request)
        assert discord.messages == []
        assert (row["state"], row["attempt_count"]) == ("pending", 0)
        assert (
            timedelta()
            <= row["scheduled_at"] - next_korean_morning(await database_time(notifier))
            < timedelta(seconds=5)
        )
        assert await notifier.attempts(request) == [("snooze", 0)]

        await travel_to_hour(notifier, 0, 30)  # across midnight, and still night
        await notifier.dispatch()
        assert discord.messages == []

        await travel_to_hour(notifier, 8, 1)
        await notifier.dispatch()
        assert [message.title for message in discord.messages] == ["(광고) Sale"]

    async def test_marketing_is_sent_at_night_with_consent(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await prefer(notifier, "100", night_consent=True)
        await travel_to_hour(notifier, 23, 0)
        await notifier.request("marketing.news")
        await notifier.dispatch()

        assert len(discord.messages) == 1

    async def test_expired_marketing_is_dropped_and_a_late_emergency_is_sent(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await travel_to_hour(notifier, 12, 0)
        expires_at = await database_time(notifier) + MINUTE
        news = await notifier.request("marketing.news", expires_at=expires_at)
        emergency = await notifier.request("antinuke.triggered")
        await notifier.owner.execute("update notification.requests set expires_at = $1", expires_at)
        await notifier.travel(2 * MINUTE)
        async with notifier.hub.autocommit() as tx:
            assert await LANE.expire(tx, 100) == 1
        await notifier.dispatch()

        assert await notifier.state(news) == ("suppressed", "expired", 0)
        assert await notifier.state(emergency) == ("sent", None, 1)
        assert [message.body["embeds"][0]["color"] for message in discord.messages] == [0xE03131]


class TestFailures:
    async def test_a_failure_is_retried_twice(self, notifier: NotificationHub, discord: FakeDiscord) -> None:
        request = await notifier.request(recipient=AUDIT, template="antinuke.detected", **DETECTED)
        discord.script.extend([FAILURE] * 3)
        async with notifier.run_worker():
            for count in (1, 2):
                await wait_until(lambda count=count: has_attempts(notifier, count))
                wait = (await notifier.row(request))["scheduled_at"] - await database_time(notifier)
                assert 20 * count < wait.total_seconds() < 60 * count
                await notifier.travel(2 * MINUTE)
            await wait_until(notifier.is_idle)

        assert await notifier.state(request) == ("failed", "exhausted", 3)
        assert await notifier.attempts(request) == [("retry", 1), ("retry", 2), ("dead", 3)]
        assert discord.messages == []

    async def test_a_response_lost_after_acceptance_causes_no_second_message(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.dm_channel_of("100")
        discord.script.extend([LOST_RESPONSE, LOST_RESPONSE])  # to opening the channel and to sending the message
        request = await notifier.request()
        async with notifier.run_worker():
            for count in (1, 2):
                await wait_until(lambda count=count: has_attempts(notifier, count))
                await notifier.travel(2 * MINUTE)
            await wait_until(notifier.is_idle)

        assert len(discord.messages) == 1
        assert await notifier.state(request) == ("sent", None, 3)

    async def test_a_lost_database_connection_spends_no_attempt(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        requests = [await notifier.request(recipient=str(number)) for number in range(200, 230)]
        async with notifier.run_worker(concurrency=5, hold=timedelta(seconds=2)):
            await wait_until(lambda: len(discord.messages) > 5)
            await notifier.owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            await wait_until(lambda: all_sent(notifier.owner), within=30)

        assert len(discord.messages) == len(requests)
        assert {message.nonce for message in discord.messages} == {request.hex[:25] for request in requests}
        assert await notifier.owner.fetchval("select max(attempt_count) from notification.requests") <= 2

    async def test_an_unavailable_database_snoozes_the_notification(
        self, notifier: NotificationHub, database_urls: DatabaseUrls
    ) -> None:
        await notifier.request()
        async with notifier.hub.autocommit() as tx:
            [claimed] = await LANE.claim(tx, 1, MINUTE, "tester")
        async with open_hub(notifier.hub.settings, database_urls) as closed_hub:
            await closed_hub.db.close()

            assert isinstance(await closed_hub.dispatcher.handle(claimed), Snooze)

    async def test_two_workers_send_everything_once(
        self, notifier: NotificationHub, database_urls: DatabaseUrls, discord: FakeDiscord
    ) -> None:
        async with (
            open_hub(notifier.hub.settings, database_urls) as other,
            notifier.run_worker(concurrency=7),
            notifier.run_worker(other, concurrency=7),
        ):
            for number in range(60):
                await notifier.request(recipient=str(300 + number % 9))
            await wait_until(lambda: all_sent(notifier.owner), within=30)

        assert len(discord.messages) == 60
        assert len({message.nonce for message in discord.messages}) == 60

    async def test_emergencies_overtake_a_thousand_pending_notifications(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await travel_to_hour(notifier, 12, 0)
        await notifier.owner.execute(
            "insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state) "
            "select pabal.uuid7(), 'user_dm', (1000 + i)::text, 'marketing.news', "
            """'{"headline": "Sale", "story": "x"}', 'pending' from generate_series(1, 1000) i"""
        )
        async with notifier.run_worker(concurrency=10):
            await wait_until(lambda: len(discord.messages) > 20)
            emergency = await notifier.request("antinuke.triggered")
            before = len(discord.messages)
            await wait_until(lambda: bool(discord.messages_to("100")))
            sent_before_it = [message.nonce for message in discord.messages].index(emergency.hex[:25]) - before

        assert sent_before_it <= 30  # those in flight, and those sent while it was claimed
        assert await notifier.state(emergency) == ("sent", None, 1)


class TestAddresses:
    @pytest.mark.parametrize("result", ["opened", "refused"])
    async def test_an_erased_person_is_not_stored_again(
        self, notifier: NotificationHub, discord: FakeDiscord, database_urls: DatabaseUrls, result: str
    ) -> None:
        person = "80351110224678912"
        respond = asyncio.Event()
        reply = json_reply(200, {"id": "7"}) if result == "opened" else error_reply(403, 50278, "no mutual guild")
        discord.script.append(ScriptedReply(respond_after(respond, reply)))
        await notifier.request(recipient=person)
        async with notifier.run_worker() as worker:
            await wait_until(lambda: bool(discord.requests))
            async with notifier.hub.transaction() as tx:
                await erase_person(tx, person, HUB_ACTOR)
            respond.set()
            await wait_until(lambda: worker.in_flight == 0)

        assert await notifier.owner.fetchval("select count(*) from notification.addresses") == 0
        assert person.encode() not in await dump_database(database_urls)

    async def test_an_erasure_waits_for_a_concurrent_address_write(self, notifier: NotificationHub) -> None:
        request = await notifier.request()

        async def erase() -> None:
            async with notifier.hub.transaction() as tx:
                await erase_person(tx, "100", HUB_ACTOR)

        async def is_waiting() -> bool:
            waiting_query = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            )
            return await notifier.owner.fetchval(waiting_query) == 1

        async with notifier.hub.transaction() as tx:
            await save_dm_channel(tx, request, "7")
            erasing = asyncio.create_task(erase())
            await wait_until(is_waiting)
        await erasing

        assert await notifier.owner.fetchval("select count(*) from notification.addresses") == 0

    async def test_closed_dms_fail_at_once_and_suppress_later_notifications(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        first = await notifier.request()
        await notifier.dispatch()
        call_count = len(discord.requests)
        second = await notifier.request()
        third = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)
        await notifier.dispatch()

        assert await notifier.state(first) == ("failed", "refused", 1)
        assert await notifier.state(second) == ("suppressed", "address_unhealthy", 0)
        assert await notifier.state(third) == ("sent", None, 1)
        assert len(discord.requests) == call_count
        reason = await notifier.owner.fetchval("select reason from notification.addresses where recipient_id = '100'")
        assert "50007" in reason

    async def test_an_accepted_emergency_marks_the_address_as_healthy(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        await notifier.request()
        await notifier.dispatch()
        discord.closed_dms.clear()
        emergency = await notifier.request("antinuke.triggered")
        await notifier.dispatch()
        later = await notifier.request()
        await notifier.dispatch()

        assert await notifier.state(emergency) == ("sent", None, 1)
        assert await notifier.state(later) == ("sent", None, 1)
        assert len(await notifier.audit_entries("preference.overridden")) == 1

    async def test_an_operator_marks_an_address_as_healthy(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.unknown_users.add("100")
        refused = await notifier.request()
        await notifier.dispatch()
        discord.unknown_users.clear()
        async with notifier.hub.transaction() as tx:
            await unblock_address(tx, NotificationChannel.USER_DM, "100", HUB_ACTOR)
        accepted = await notifier.request()
        await notifier.dispatch()

        assert await notifier.state(refused) == ("failed", "refused", 1)
        assert await notifier.state(accepted) == ("sent", None, 1)
        assert [entry["subject"] for entry in await notifier.audit_entries("address.healed")] == [
            person_pseudonym("100")
        ]

    async def test_a_deleted_dm_channel_is_opened_again(self, notifier: NotificationHub, discord: FakeDiscord) -> None:
        await notifier.request()
        await notifier.dispatch()
        discord.delete_channel("100")
        second = await notifier.request()
        await notifier.dispatch()

        assert len(discord.messages_to("100")) == 1
        assert discord.dm_opens == 2
        assert await notifier.state(second) == ("sent", None, 2)
        assert (
            await notifier.owner.fetchval(
                "select count(*) from notification.addresses where unhealthy_since is not null"
            )
            == 0
        )


DETECTED = {
    "channel": NotificationChannel.GUILD_AUDIT_CHANNEL,
    "payload": {"guild": "Seoul", "actor": "mallory", "action": "ban"},
}
