"""Operator alerts: undelivered emergencies and other conditions are reported once."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.lane import LANE
from pabal.notifications.operator_alerts import AlertTarget, alert_undelivered_emergencies
from pabal.settings import Settings
from pabal.tokens.revoke import REFRESH_TOKEN_REUSED, revoke_family
from support.dispatch import AUDIT, NotificationHub, has_attempts, open_notification_hub, run_chores
from support.fake_discord import FAILURE, FakeDiscord
from support.lane_under_test import Travel
from support.wait import until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
OPERATOR = "901"


@pytest.fixture
async def watched(settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel) -> Any:
    """A hub whose operator has a channel."""
    discord.guild.add(OPERATOR)
    async with open_notification_hub(settings, database_urls, discord, travel, operator_channel=OPERATOR) as opened:
        yield opened


async def created(notifier: NotificationHub, template: str) -> list[dict[str, Any]]:
    rows = await notifier.owner.fetch(
        "select recipient_type, state from notification.requests where template_key = $1",
        template,
    )
    return [dict(row) for row in rows]


class TestUndeliveredEmergency:
    async def fail(self, notifier: NotificationHub, discord: FakeDiscord) -> UUID:
        discord.dm_channel_of("100")
        discord.script.extend([FAILURE] * 3)
        request = await notifier.request("antinuke.triggered")
        async with notifier.run_worker():
            for times in (1, 2):
                await until(lambda times=times: has_attempts(notifier, times))
                await notifier.travel(MINUTE)
            await until(notifier.is_idle)
        return request

    async def test_after_three_attempts_it_is_a_toast_and_an_operator_alert(
        self, watched: NotificationHub, discord: FakeDiscord
    ) -> None:
        request = await self.fail(watched, discord)
        assert await watched.state(request) == ("failed", "exhausted", 3)

        async with watched.hub.transaction() as tx:
            operator = AlertTarget(watched.hub.templates, OPERATOR)
            assert [await alert_undelivered_emergencies(tx, operator, 100) for _ in range(2)] == [1, 0]
        await watched.dispatch()

        nukes = [(item["recipient_type"], item["state"]) for item in await created(watched, "antinuke.triggered")]
        assert sorted(nukes) == [("dashboard_toast", "sent"), ("user_dm", "failed")]
        assert await watched.owner.fetchval("select recipient_id from notification.toasts") == "100"
        [alarm] = discord.messages_in(OPERATOR)
        assert "antinuke.triggered" in alarm.body["embeds"][0]["description"]

    async def test_a_refusing_address_falls_back_at_once(self, watched: NotificationHub, discord: FakeDiscord) -> None:
        discord.closed_dms.add("100")
        request = await watched.request("antinuke.triggered")
        await watched.dispatch()
        await run_chores(watched, "alert undelivered")
        await watched.dispatch()

        assert await watched.state(request) == ("failed", "refused", 1)
        assert await watched.owner.fetchval("select count(*) from notification.toasts") == 1
        assert len(discord.messages_in(OPERATOR)) == 1

    async def test_also_after_every_worker_died(self, watched: NotificationHub) -> None:
        request = await watched.request("antinuke.triggered")
        for _ in range(4):  # the fourth claim finds that no attempt is left
            async with watched.hub.autocommit() as tx:
                await LANE.claim(tx, 10, MINUTE, "mayfly")
            await watched.travel(2 * MINUTE)
        await run_chores(watched, "alert undelivered")
        await watched.dispatch()

        assert await watched.state(request) == ("failed", "unknown", 3)
        assert await watched.attempts(request) == [("unknown", 1), ("unknown", 2), ("unknown", 3)]
        assert await watched.owner.fetchval("select count(*) from notification.toasts") == 1

    async def test_a_late_emergency_is_a_toast_and_is_still_sent(
        self, watched: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.global_limit, discord.retry_after = 0, 400
        request = await watched.request("antinuke.triggered")
        async with watched.run_worker():
            await until(lambda: has_attempts(watched, 1))
        await watched.travel(4 * MINUTE)
        await run_chores(watched, "alert undelivered")
        assert await created(watched, "system.undelivered") == []

        await watched.travel(MINUTE)
        meanwhile = await watched.request("antinuke.triggered", "101")  # which nothing is claimed for
        for _ in range(2):
            await run_chores(watched, "alert undelivered")
        assert await watched.state(request) == ("pending", None, 0)
        assert await watched.state(meanwhile) == ("pending", None, 0)
        assert [item["recipient_type"] for item in await created(watched, "system.undelivered")] == [
            "guild_audit_channel"
        ]

        discord.global_limit = 1000
        await watched.travel(2 * MINUTE)
        await watched.dispatch()
        await run_chores(watched, "alert undelivered")
        assert await watched.state(request) == ("sent", None, 1)
        assert await watched.owner.fetchval("select array_agg(recipient_id) from notification.toasts") == ["100"]
        assert len(await created(watched, "system.undelivered")) == 1

    async def test_without_an_operator_channel_the_toast_is_inserted(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await self.fail(notifier, discord)
        await run_chores(notifier, "alert undelivered")
        await notifier.dispatch()

        assert await notifier.owner.fetchval("select count(*) from notification.toasts") == 1
        assert await created(notifier, "system.undelivered") == []

    async def test_a_failed_alert_causes_no_further_alert(self, watched: NotificationHub, discord: FakeDiscord) -> None:
        discord.guild.clear()  # neither the guild's channel nor the operator's is there
        await watched.request("antinuke.triggered", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL)
        for _ in range(3):
            await watched.dispatch()
            await run_chores(watched, "alert undelivered")

        assert [item["state"] for item in await created(watched, "system.undelivered")] == ["failed"]
        assert await watched.owner.fetchval("select count(*) from notification.requests") == 2

    async def test_a_failure_that_is_not_an_emergency_causes_no_alert(
        self, watched: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        await watched.request()
        await watched.dispatch()
        await run_chores(watched, "alert undelivered")

        assert await watched.owner.fetchval("select count(*) from notification.requests") == 1


class TestOperatorAlerts:
    async def test_a_reused_refresh_token_is_alerted_once(self, watched: NotificationHub, discord: FakeDiscord) -> None:
        family = new_id()
        await watched.owner.execute(
            "insert into public.token_families (id, service_name) values ($1, 'minu_find')", family
        )
        async with watched.hub.transaction() as tx:
            assert await revoke_family(tx, family, REFRESH_TOKEN_REUSED, Actor("minu_find", "192.0.2.9"))
        for _ in range(2):
            await run_chores(watched, "alert token reuse")
        await watched.dispatch()

        [alarm] = discord.messages_in(OPERATOR)
        values = alarm.body["embeds"][0]["description"].replace("\\", "")
        assert "minu_find" in values
        assert "192.0.2.9" in values

    async def test_many_dead_letters_are_alerted_once_an_hour(
        self, watched: NotificationHub, discord: FakeDiscord
    ) -> None:
        await watched.owner.execute(DEAD, 9)
        await run_chores(watched, "alert dead letters")
        assert await created(watched, "system.dead_letters") == []

        await watched.owner.execute(DEAD, 1)
        for _ in range(2):
            await run_chores(watched, "alert dead letters")
        await watched.travel(60 * MINUTE)
        await run_chores(watched, "alert dead letters")
        await watched.dispatch()

        assert [item.title for item in discord.messages_in(OPERATOR)] == ["데드 레터 10건"] * 2

    async def test_failing_callbacks_are_alerted_per_channel(
        self, watched: NotificationHub, discord: FakeDiscord
    ) -> None:
        await watched.owner.execute(FAILED_CALLBACKS, "shop:mina", 10)
        await watched.owner.execute(FAILED_CALLBACKS, "quiet:jun", 9)
        await run_chores(watched, "alert failing callbacks")
        await watched.dispatch()

        [alarm] = discord.messages_in(OPERATOR)
        assert "shop" in alarm.body["embeds"][0]["description"]

    async def test_without_an_operator_channel_an_alert_is_logged(
        self, notifier: NotificationHub, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await notifier.owner.execute(DEAD, 10)
        for _ in range(2):
            await run_chores(notifier, "alert dead letters")

        assert capsys.readouterr().out.count("operator alert") == 1
        assert await notifier.owner.fetchval("select count(*) from notification.requests") == 0


DEAD = """
insert into public.event_queue (id, event_type, source_service, target_service, status, last_error)
select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'failed', 'boom' from generate_series(1, $1::integer)
"""
FAILED_CALLBACKS = """
select pabal.publish('hub', 'relay.callback.failed', jsonb_build_object('conversation_key', $1::text))
from generate_series(1, $2::integer)
"""
