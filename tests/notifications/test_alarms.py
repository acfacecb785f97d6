"""What the hub says by itself: an emergency nobody took, and what its operator must know."""

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
from support.dispatch import AUDIT, Office, chore, office, tried
from support.fake_discord import FAILS, Discord
from support.lane_under_test import Travel
from support.wait import until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
OPERATOR = "901"


@pytest.fixture
async def watched(settings: Settings, database_urls: DatabaseUrls, there: Discord, travel: Travel) -> Any:
    """A hub whose operator has a channel."""
    there.guild.add(OPERATOR)
    async with office(settings, database_urls, there, travel, operator_channel=OPERATOR) as opened:
        yield opened


async def made(desk: Office, template: str) -> list[dict[str, Any]]:
    rows = await desk.owner.fetch(
        "select recipient_type, state from notification.requests where template_key = $1",
        template,
    )
    return [dict(row) for row in rows]


class TestAnEmergencyDiscordDoesNotTake:
    async def fail(self, desk: Office, there: Discord) -> UUID:
        there.dm_of("100")
        there.script.extend([FAILS] * 3)
        request = await desk.ask("antinuke.triggered")
        async with desk.working():
            for times in (1, 2):
                await until(lambda times=times: tried(desk, times))
                await desk.travel(MINUTE)
            await until(desk.is_idle)
        return request

    async def test_is_tried_three_times_then_put_into_the_dashboard_and_told_to_the_operator(
        self, watched: Office, there: Discord
    ) -> None:
        request = await self.fail(watched, there)
        assert await watched.state(request) == ("failed", "exhausted", 3)

        async with watched.hub.transaction() as tx:
            operator = AlertTarget(watched.hub.templates, OPERATOR)
            assert [await alert_undelivered_emergencies(tx, operator, 100) for _ in range(2)] == [1, 0]
        await watched.dispatch()

        nukes = [(each["recipient_type"], each["state"]) for each in await made(watched, "antinuke.triggered")]
        assert sorted(nukes) == [("dashboard_toast", "sent"), ("user_dm", "failed")]
        assert await watched.owner.fetchval("select recipient_id from notification.toasts") == "100"
        [alarm] = there.said_in(OPERATOR)
        assert "antinuke.triggered" in alarm.body["embeds"][0]["description"]

    async def test_falls_back_at_once_when_the_address_refuses(self, watched: Office, there: Discord) -> None:
        there.closed.add("100")
        request = await watched.ask("antinuke.triggered")
        await watched.dispatch()
        await chore(watched, "raise undelivered")
        await watched.dispatch()

        assert await watched.state(request) == ("failed", "refused", 1)
        assert await watched.owner.fetchval("select count(*) from notification.toasts") == 1
        assert len(there.said_in(OPERATOR)) == 1

    async def test_also_when_every_worker_that_had_it_died(self, watched: Office) -> None:
        request = await watched.ask("antinuke.triggered")
        for _ in range(4):  # the fourth claim finds that no attempt is left
            async with watched.hub.autocommit() as tx:
                await LANE.claim(tx, 10, MINUTE, "mayfly")
            await watched.travel(2 * MINUTE)
        await chore(watched, "raise undelivered")
        await watched.dispatch()

        assert await watched.state(request) == ("failed", "unknown", 3)
        assert await watched.attempts(request) == [("unknown", 1), ("unknown", 2), ("unknown", 3)]
        assert await watched.owner.fetchval("select count(*) from notification.toasts") == 1

    async def test_is_in_the_dashboard_when_discord_keeps_it_waiting_and_is_sent_in_the_end(
        self, watched: Office, there: Discord
    ) -> None:
        there.everywhere, there.retry_after = 0, 400
        request = await watched.ask("antinuke.triggered")
        async with watched.working():
            await until(lambda: tried(watched, 1))
        await watched.travel(4 * MINUTE)
        await chore(watched, "raise undelivered")
        assert await made(watched, "system.undelivered") == []

        await watched.travel(MINUTE)
        meanwhile = await watched.ask("antinuke.triggered", "101")  # which nothing is claimed for
        for _ in range(2):
            await chore(watched, "raise undelivered")
        assert await watched.state(request) == ("pending", None, 0)
        assert await watched.state(meanwhile) == ("pending", None, 0)
        assert [each["recipient_type"] for each in await made(watched, "system.undelivered")] == ["guild_audit_channel"]

        there.everywhere = 1000
        await watched.travel(2 * MINUTE)
        await watched.dispatch()
        await chore(watched, "raise undelivered")
        assert await watched.state(request) == ("sent", None, 1)
        assert await watched.owner.fetchval("select array_agg(recipient_id) from notification.toasts") == ["100"]
        assert len(await made(watched, "system.undelivered")) == 1

    async def test_without_an_operators_channel_there_is_still_the_toast(self, desk: Office, there: Discord) -> None:
        await self.fail(desk, there)
        await chore(desk, "raise undelivered")
        await desk.dispatch()

        assert await desk.owner.fetchval("select count(*) from notification.toasts") == 1
        assert await made(desk, "system.undelivered") == []

    async def test_an_alarm_that_fails_raises_no_other(self, watched: Office, there: Discord) -> None:
        there.guild.clear()  # neither the guild's channel nor the operator's is there
        await watched.ask("antinuke.triggered", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL)
        for _ in range(3):
            await watched.dispatch()
            await chore(watched, "raise undelivered")

        assert [each["state"] for each in await made(watched, "system.undelivered")] == ["failed"]
        assert await watched.owner.fetchval("select count(*) from notification.requests") == 2

    async def test_a_failure_that_is_no_emergency_raises_nothing(self, watched: Office, there: Discord) -> None:
        there.closed.add("100")
        await watched.ask()
        await watched.dispatch()
        await chore(watched, "raise undelivered")

        assert await watched.owner.fetchval("select count(*) from notification.requests") == 1


class TestWhatTheOperatorMustKnow:
    async def test_a_refresh_token_used_twice_is_told_once(self, watched: Office, there: Discord) -> None:
        family = new_id()
        await watched.owner.execute(
            "insert into public.token_families (id, service_name) values ($1, 'minu_find')", family
        )
        async with watched.hub.transaction() as tx:
            assert await revoke_family(tx, family, REFRESH_TOKEN_REUSED, Actor("minu_find", "192.0.2.9"))
        for _ in range(2):
            await chore(watched, "tell token reuse")
        await watched.dispatch()

        [alarm] = there.said_in(OPERATOR)
        said = alarm.body["embeds"][0]["description"].replace("\\", "")
        assert "minu_find" in said
        assert "192.0.2.9" in said

    async def test_dead_letters_that_pile_up_are_told_once_an_hour(self, watched: Office, there: Discord) -> None:
        await watched.owner.execute(DEAD, 9)
        await chore(watched, "tell dead letters")
        assert await made(watched, "system.dead_letters") == []

        await watched.owner.execute(DEAD, 1)
        for _ in range(2):
            await chore(watched, "tell dead letters")
        await watched.travel(60 * MINUTE)
        await chore(watched, "tell dead letters")
        await watched.dispatch()

        assert [each.title for each in there.said_in(OPERATOR)] == ["데드 레터 10건"] * 2

    async def test_callbacks_that_fail_are_told_by_their_channel(self, watched: Office, there: Discord) -> None:
        await watched.owner.execute(FAILED_CALLBACKS, "shop:mina", 10)
        await watched.owner.execute(FAILED_CALLBACKS, "quiet:jun", 9)
        await chore(watched, "tell failing callbacks")
        await watched.dispatch()

        [alarm] = there.said_in(OPERATOR)
        assert "shop" in alarm.body["embeds"][0]["description"]

    async def test_without_a_channel_an_alarm_is_a_line_in_the_log(
        self, desk: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await desk.owner.execute(DEAD, 10)
        for _ in range(2):
            await chore(desk, "tell dead letters")

        assert capsys.readouterr().out.count("operator alert") == 1
        assert await desk.owner.fetchval("select count(*) from notification.requests") == 0


DEAD = """
insert into public.event_queue (id, event_type, source_service, target_service, status, last_error)
select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'failed', 'boom' from generate_series(1, $1::integer)
"""
FAILED_CALLBACKS = """
select pabal.publish('hub', 'relay.callback.failed', jsonb_build_object('conversation_key', $1::text))
from generate_series(1, $2::integer)
"""
