"""The storm guard: an emergency is sent at once, a storm of them as one summary."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.lane import LANE
from support.dispatch import AUDIT, NotificationHub, has_attempts
from support.fake_discord import FAILURE, FakeDiscord
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def request_emergency(
    notifier: NotificationHub, incident: str | None = None, recipient: str = "100", **overrides: Any
) -> UUID:
    return await notifier.request("antinuke.triggered", recipient, incident=incident, **overrides)


async def states_or_reasons(notifier: NotificationHub, *requests: UUID) -> list[str]:
    rows = [await notifier.row(request) for request in requests]
    return [row["reason"] or row["state"] for row in rows]


async def summaries(notifier: NotificationHub) -> list[dict[str, Any]]:
    rows = await notifier.owner.fetch(
        "select id, payload ->> 'count' as count, scheduled_at - pabal.now() as wait, state from notification.requests "
        "where template_key = 'system.storm_summary' order by created_at"
    )
    return [dict(row) for row in rows]


async def test_a_recipient_gets_the_same_incident_once_a_minute(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    first = await request_emergency(notifier, "raid-1")
    await notifier.dispatch()
    same_incident, other_incident, without_incident = (
        await request_emergency(notifier, "raid-1"),
        await request_emergency(notifier, "raid-2"),
        await request_emergency(notifier),
    )
    other_recipient = await request_emergency(notifier, "raid-1", recipient="101")
    toast = await request_emergency(notifier, "raid-1", channel=NotificationChannel.DASHBOARD_TOAST)
    await notifier.dispatch()

    assert await states_or_reasons(notifier, first, same_incident, other_incident, without_incident) == [
        "sent",
        "storm",
        "sent",
        "sent",
    ]
    assert await states_or_reasons(notifier, other_recipient, toast) == ["sent", "sent"]
    assert '"at_send", "same_incident"' in (await notifier.row(same_incident))["decision"]
    assert await notifier.state(same_incident) == ("suppressed", "storm", 0)

    await notifier.travel(61 * SECOND)
    later = await request_emergency(notifier, "raid-1")
    await notifier.dispatch()
    assert await states_or_reasons(notifier, later) == ["sent"]
    assert len(discord.messages_to("100")) == 4


async def test_incidents_of_different_services_are_different(notifier: NotificationHub, discord: FakeDiscord) -> None:
    requests = [
        await request_emergency(notifier, "raid-1", source=service)
        for service in ("minu_find", "minu_keep", None, "minu_find")
    ]
    await notifier.dispatch()

    assert sorted(await states_or_reasons(notifier, *requests)) == ["sent", "sent", "sent", "storm"]
    assert len(discord.messages_to("100")) == 3


async def test_two_workers_send_one_of_concurrent_emergencies(
    notifier: NotificationHub, database_urls: DatabaseUrls, discord: FakeDiscord
) -> None:
    requests = [await request_emergency(notifier, "raid-1") for _ in range(12)]
    async with (
        open_hub(notifier.hub.settings, database_urls) as other,
        notifier.run_worker(),
        notifier.run_worker(other),
    ):
        await wait_until(notifier.is_idle)

    assert sorted(await states_or_reasons(notifier, *requests)) == ["sent"] + ["storm"] * 11
    assert len(discord.messages) == 1


async def test_a_retry_is_not_counted_as_a_second_emergency(notifier: NotificationHub, discord: FakeDiscord) -> None:
    discord.dm_channel_of("100")
    discord.script.append(FAILURE)
    first = await request_emergency(notifier, "raid-1")
    async with notifier.run_worker():
        await wait_until(lambda: has_attempts(notifier, 1))
        await notifier.travel(5 * SECOND)
        await wait_until(notifier.is_idle)

    assert await notifier.state(first) == ("sent", None, 2)


async def test_a_retry_is_sent_despite_later_emergencies(notifier: NotificationHub, discord: FakeDiscord) -> None:
    discord.dm_channel_of("100")
    discord.script.append(FAILURE)
    first = await request_emergency(notifier)
    async with notifier.run_worker():
        await wait_until(lambda: has_attempts(notifier, 1))
    others = [await request_emergency(notifier) for _ in range(5)]
    await notifier.dispatch()
    await notifier.travel(5 * SECOND)
    await notifier.dispatch()

    assert sorted(await states_or_reasons(notifier, *others)) == ["sent"] * 4 + ["storm"]
    assert await notifier.state(first) == ("sent", None, 2)


async def test_emergencies_beyond_five_in_ten_minutes_become_one_summary(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    sent = [await request_emergency(notifier) for _ in range(5)]
    await notifier.dispatch()
    await notifier.travel(MINUTE)
    suppressed = [await request_emergency(notifier) for _ in range(3)]
    await notifier.dispatch()
    last_suppressed = await request_emergency(notifier)
    await notifier.dispatch()

    assert await states_or_reasons(notifier, *sent) == ["sent"] * 5
    assert await states_or_reasons(notifier, *suppressed, last_suppressed) == ["storm"] * 4
    [summary] = await summaries(notifier)
    assert (summary["count"], summary["state"]) == ("4", "pending")
    assert timedelta(minutes=8, seconds=30) < summary["wait"] <= timedelta(minutes=9)

    await notifier.travel(9 * MINUTE)
    await notifier.dispatch()
    titles = [message.title for message in discord.messages_to("100")]
    assert titles[5:] == ["긴급 알림 4건을 모았어요"]

    after_storm = await request_emergency(notifier)
    await notifier.dispatch()
    assert await states_or_reasons(notifier, after_storm) == ["sent"]


async def test_a_summary_of_a_dead_worker_is_still_updated(notifier: NotificationHub) -> None:
    for _ in range(6):
        await request_emergency(notifier)
    await notifier.dispatch()
    await notifier.travel(11 * MINUTE)
    async with notifier.hub.autocommit() as tx:
        [claimed] = await LANE.claim(tx, 1, MINUTE, "crashed worker")
    await notifier.travel(2 * MINUTE)
    storm = [await request_emergency(notifier) for _ in range(6)]
    postpone = "update notification.requests set scheduled_at = pabal.now() + interval '1 day' where id = $1"
    await notifier.owner.execute(postpone, claimed.id)
    await notifier.dispatch()

    assert sorted(await states_or_reasons(notifier, *storm)) == ["sent"] * 5 + ["storm"]
    assert [(summary["id"], summary["count"]) for summary in await summaries(notifier)] == [(claimed.id, "2")]


async def test_a_summary_overrides_preferences(notifier: NotificationHub, discord: FakeDiscord) -> None:
    await notifier.owner.execute("insert into notification.people (discord_id, dm_enabled) values ('100', false)")
    for _ in range(6):
        await request_emergency(notifier)
    await notifier.dispatch()
    await notifier.travel(11 * MINUTE)
    await notifier.dispatch()

    assert [summary["state"] for summary in await summaries(notifier)] == ["sent"]
    assert len(discord.messages_to("100")) == 6


async def test_the_limit_is_per_recipient_across_workers(
    notifier: NotificationHub, database_urls: DatabaseUrls, discord: FakeDiscord
) -> None:
    requests = [
        await request_emergency(notifier, recipient=recipient) for recipient in ("100", "101") for _ in range(20)
    ]
    guild_requests = [
        await request_emergency(notifier, recipient=AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL)
        for _ in range(7)
    ]
    async with (
        open_hub(notifier.hub.settings, database_urls) as other,
        notifier.run_worker(),
        notifier.run_worker(other),
    ):
        await wait_until(notifier.is_idle)

    assert sorted(await states_or_reasons(notifier, *requests)) == ["sent"] * 10 + ["storm"] * 30
    assert sorted(await states_or_reasons(notifier, *guild_requests)) == ["sent"] * 5 + ["storm"] * 2
    assert (len(discord.messages_to("100")), len(discord.messages_to("101")), len(discord.messages_in(AUDIT))) == (
        5,
        5,
        5,
    )
    assert sorted(summary["count"] for summary in await summaries(notifier)) == ["15", "15", "2"]


async def test_other_notifications_are_never_suppressed_by_the_storm_guard(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    await asyncio.gather(*(notifier.request(incident="raid-1") for _ in range(8)))
    await notifier.dispatch()

    assert len(discord.messages) == 8
