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
from support.audit_log import AuditLog
from support.dispatch import AUDIT, NotificationHub, has_attempts, open_notification_hub, run_chores
from support.fake_discord import FAILURE, FakeDiscord
from support.lane_under_test import Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
OPERATOR_CHANNEL = "901"


@pytest.fixture
async def alert_hub(settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel) -> Any:
    """A hub with an operator channel."""
    discord.guild.add(OPERATOR_CHANNEL)
    async with open_notification_hub(
        settings, database_urls, discord, travel, operator_channel=OPERATOR_CHANNEL
    ) as hub:
        yield hub


async def requests_of(notifier: NotificationHub, template: str) -> list[dict[str, Any]]:
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
            for count in (1, 2):
                await wait_until(lambda count=count: has_attempts(notifier, count))
                await notifier.travel(MINUTE)
            await wait_until(notifier.is_idle)
        return request

    async def test_after_three_attempts_it_is_a_toast_and_an_operator_alert(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        request = await self.fail(alert_hub, discord)
        assert await alert_hub.state(request) == ("failed", "exhausted", 3)

        async with alert_hub.hub.transaction() as tx:
            target = AlertTarget(alert_hub.hub.templates, OPERATOR_CHANNEL)
            assert [await alert_undelivered_emergencies(tx, target, 100) for _ in range(2)] == [1, 0]
        await alert_hub.dispatch()

        requests = [(row["recipient_type"], row["state"]) for row in await requests_of(alert_hub, "antinuke.triggered")]
        assert sorted(requests) == [("dashboard_toast", "sent"), ("user_dm", "failed")]
        assert await alert_hub.owner.fetchval("select recipient_id from notification.toasts") == "100"
        [alert] = discord.messages_in(OPERATOR_CHANNEL)
        assert "antinuke.triggered" in alert.body["embeds"][0]["description"]

    async def test_a_refusing_address_falls_back_at_once(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        request = await alert_hub.request("antinuke.triggered")
        await alert_hub.dispatch()
        await run_chores(alert_hub, "alert undelivered")
        await alert_hub.dispatch()

        assert await alert_hub.state(request) == ("failed", "refused", 1)
        assert await alert_hub.owner.fetchval("select count(*) from notification.toasts") == 1
        assert len(discord.messages_in(OPERATOR_CHANNEL)) == 1

    async def test_after_every_worker_died_it_is_a_toast(self, alert_hub: NotificationHub) -> None:
        request = await alert_hub.request("antinuke.triggered")
        for _ in range(4):  # the fourth claim fails it, because no attempt is left
            async with alert_hub.hub.autocommit() as tx:
                await LANE.claim(tx, 10, MINUTE, "crashing worker")
            await alert_hub.travel(2 * MINUTE)
        await run_chores(alert_hub, "alert undelivered")
        await alert_hub.dispatch()

        assert await alert_hub.state(request) == ("failed", "unknown", 3)
        assert await alert_hub.attempts(request) == [("unknown", 1), ("unknown", 2), ("unknown", 3)]
        assert await alert_hub.owner.fetchval("select count(*) from notification.toasts") == 1

    async def test_a_late_emergency_is_a_toast_and_is_still_sent(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.global_limit, discord.retry_after = 0, 400
        request = await alert_hub.request("antinuke.triggered")
        async with alert_hub.run_worker():
            await wait_until(lambda: has_attempts(alert_hub, 1))
        await alert_hub.travel(4 * MINUTE)
        await run_chores(alert_hub, "alert undelivered")
        assert await requests_of(alert_hub, "system.undelivered") == []

        await alert_hub.travel(MINUTE)
        not_late = await alert_hub.request("antinuke.triggered", "101")  # requested during the pause, so never claimed
        for _ in range(2):
            await run_chores(alert_hub, "alert undelivered")
        assert await alert_hub.state(request) == ("pending", None, 0)
        assert await alert_hub.state(not_late) == ("pending", None, 0)
        assert [row["recipient_type"] for row in await requests_of(alert_hub, "system.undelivered")] == [
            "guild_audit_channel"
        ]

        discord.global_limit = 1000
        await alert_hub.travel(2 * MINUTE)
        await alert_hub.dispatch()
        await run_chores(alert_hub, "alert undelivered")
        assert await alert_hub.state(request) == ("sent", None, 1)
        assert await alert_hub.owner.fetchval("select array_agg(recipient_id) from notification.toasts") == ["100"]
        assert len(await requests_of(alert_hub, "system.undelivered")) == 1

    async def test_without_an_operator_channel_the_toast_is_inserted(
        self, notifier: NotificationHub, discord: FakeDiscord
    ) -> None:
        await self.fail(notifier, discord)
        await run_chores(notifier, "alert undelivered")
        await notifier.dispatch()

        assert await notifier.owner.fetchval("select count(*) from notification.toasts") == 1
        assert await requests_of(notifier, "system.undelivered") == []

    async def test_a_failed_alert_causes_no_further_alert(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.guild.clear()  # neither the guild's channel nor the operator's exists
        await alert_hub.request("antinuke.triggered", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL)
        for _ in range(3):
            await alert_hub.dispatch()
            await run_chores(alert_hub, "alert undelivered")

        assert [row["state"] for row in await requests_of(alert_hub, "system.undelivered")] == ["failed"]
        assert await alert_hub.owner.fetchval("select count(*) from notification.requests") == 2

    async def test_a_failure_that_is_not_an_emergency_causes_no_alert(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        discord.closed_dms.add("100")
        await alert_hub.request()
        await alert_hub.dispatch()
        await run_chores(alert_hub, "alert undelivered")

        assert await alert_hub.owner.fetchval("select count(*) from notification.requests") == 1


class TestOperatorAlerts:
    async def test_a_reused_refresh_token_is_alerted_once(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        family = new_id()
        await alert_hub.owner.execute(
            "insert into public.token_families (id, service_name) values ($1, 'minu_find')", family
        )
        async with alert_hub.hub.transaction() as tx:
            assert await revoke_family(tx, family, REFRESH_TOKEN_REUSED, Actor("minu_find", "192.0.2.9"))
        for _ in range(2):
            await run_chores(alert_hub, "alert token reuse")
        await alert_hub.dispatch()

        [alert] = discord.messages_in(OPERATOR_CHANNEL)
        text = alert.body["embeds"][0]["description"].replace("\\", "")
        assert "minu_find" in text
        assert "192.0.2.9" in text

    async def test_many_dead_letters_are_alerted_once_an_hour(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        await alert_hub.owner.execute(INSERT_DEAD_LETTERS, 9)
        await run_chores(alert_hub, "alert dead letters")
        assert await requests_of(alert_hub, "system.dead_letters") == []

        await alert_hub.owner.execute(INSERT_DEAD_LETTERS, 1)
        for _ in range(2):
            await run_chores(alert_hub, "alert dead letters")
        await alert_hub.travel(60 * MINUTE)
        await run_chores(alert_hub, "alert dead letters")
        await alert_hub.dispatch()

        assert [message.title for message in discord.messages_in(OPERATOR_CHANNEL)] == ["데드 레터 10건"] * 2

    async def test_failing_callbacks_are_alerted_per_channel(
        self, alert_hub: NotificationHub, discord: FakeDiscord
    ) -> None:
        await alert_hub.owner.execute(FAILED_CALLBACKS, "shop:mina", 10)
        await alert_hub.owner.execute(FAILED_CALLBACKS, "quiet:jun", 9)
        await run_chores(alert_hub, "alert failing callbacks")
        await alert_hub.dispatch()

        [alert] = discord.messages_in(OPERATOR_CHANNEL)
        assert "shop" in alert.body["embeds"][0]["description"]

    async def test_a_cut_audit_chain_is_alerted_once_an_hour(
        self, alert_hub: NotificationHub, database_urls: DatabaseUrls, discord: FakeDiscord
    ) -> None:
        ledger = AuditLog(alert_hub.hub, database_urls, alert_hub.hub.key_ring)
        await ledger.write(1)
        await run_chores(alert_hub, "seal audit")
        await ledger.tamper("delete from pabal.audit_seals")
        for _ in range(2):
            await run_chores(alert_hub, "seal audit")
        await alert_hub.dispatch()

        [alert] = discord.messages_in(OPERATOR_CHANNEL)
        assert alert.title == "감사 로그 검증에 실패했어요"
        text = alert.body["embeds"][0]["description"].replace("\\", "")
        assert "does not contain seal 1:1:" in text
        assert "pabal audit accept-restore" in text

    async def test_without_an_operator_channel_an_alert_is_logged(
        self, notifier: NotificationHub, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await notifier.owner.execute(INSERT_DEAD_LETTERS, 10)
        for _ in range(2):
            await run_chores(notifier, "alert dead letters")

        assert capsys.readouterr().out.count("operator alert") == 1
        assert await notifier.owner.fetchval("select count(*) from notification.requests") == 0


INSERT_DEAD_LETTERS = """
insert into public.event_queue (id, event_type, source_service, target_service, status, last_error)
select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'failed', 'boom' from generate_series(1, $1::integer)
"""
FAILED_CALLBACKS = """
select pabal.publish('hub', 'relay.callback.failed', jsonb_build_object('conversation_key', $1::text))
from generate_series(1, $2::integer)
"""
