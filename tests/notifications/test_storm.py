"""An emergency is told at once; a storm of them is told as one, and nothing of it is lost without a word."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.lane import LANE
from support.dispatch import AUDIT, Office, tried
from support.fake_discord import FAILS, Discord
from support.wait import until

pytestmark = pytest.mark.anyio

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def nuke(desk: Office, incident: str | None = None, recipient: str = "100", **how: Any) -> UUID:
    return await desk.ask("antinuke.triggered", recipient, incident=incident, **how)


async def states(desk: Office, *requests: UUID) -> list[str]:
    rows = [await desk.row(each) for each in requests]
    return [row["reason"] or row["state"] for row in rows]


async def summaries(desk: Office) -> list[dict[str, Any]]:
    rows = await desk.owner.fetch(
        "select id, payload ->> 'count' as count, scheduled_at - pabal.now() as wait, state from notification.requests "
        "where template_key = 'system.storm_summary' order by created_at"
    )
    return [dict(row) for row in rows]


async def test_the_same_incident_goes_to_a_recipient_once_in_a_minute(desk: Office, there: Discord) -> None:
    first = await nuke(desk, "raid-1")
    await desk.dispatch()
    same, other, unnamed = await nuke(desk, "raid-1"), await nuke(desk, "raid-2"), await nuke(desk)
    elsewhere = await nuke(desk, "raid-1", recipient="101")
    toast = await nuke(desk, "raid-1", channel=NotificationChannel.DASHBOARD_TOAST)
    await desk.dispatch()

    assert await states(desk, first, same, other, unnamed) == ["sent", "storm", "sent", "sent"]
    assert await states(desk, elsewhere, toast) == ["sent", "sent"]
    assert '"at_send", "same_incident"' in (await desk.row(same))["decision"]
    assert await desk.state(same) == ("suppressed", "storm", 0)

    await desk.travel(61 * SECOND)
    again = await nuke(desk, "raid-1")
    await desk.dispatch()
    assert await states(desk, again) == ["sent"]
    assert len(there.said_to("100")) == 4


async def test_an_incident_is_its_services_own(desk: Office, there: Discord) -> None:
    requests = [await nuke(desk, "raid-1", source=each) for each in ("minu_find", "minu_keep", None, "minu_find")]
    await desk.dispatch()

    assert sorted(await states(desk, *requests)) == ["sent", "sent", "sent", "storm"]
    assert len(there.said_to("100")) == 3


async def test_of_those_that_come_at_once_to_two_workers_one_goes_out(
    desk: Office, database_urls: DatabaseUrls, there: Discord
) -> None:
    requests = [await nuke(desk, "raid-1") for _ in range(12)]
    async with open_hub(desk.hub.settings, database_urls) as other, desk.working(), desk.working(other):
        await until(desk.is_idle)

    assert sorted(await states(desk, *requests)) == ["sent"] + ["storm"] * 11
    assert len(there.messages) == 1


async def test_a_retry_is_not_taken_for_a_second_emergency(desk: Office, there: Discord) -> None:
    there.dm_of("100")
    there.script.append(FAILS)
    first = await nuke(desk, "raid-1")
    async with desk.working():
        await until(lambda: tried(desk, 1))
        await desk.travel(5 * SECOND)
        await until(desk.is_idle)

    assert await desk.state(first) == ("sent", None, 2)


async def test_a_retry_goes_out_however_many_passed_meanwhile(desk: Office, there: Discord) -> None:
    there.dm_of("100")
    there.script.append(FAILS)
    first = await nuke(desk)
    async with desk.working():
        await until(lambda: tried(desk, 1))
    others = [await nuke(desk) for _ in range(5)]
    await desk.dispatch()
    await desk.travel(5 * SECOND)
    await desk.dispatch()

    assert sorted(await states(desk, *others)) == ["sent"] * 4 + ["storm"]
    assert await desk.state(first) == ("sent", None, 2)


async def test_after_five_in_ten_minutes_there_is_one_summary(desk: Office, there: Discord) -> None:
    passed = [await nuke(desk) for _ in range(5)]
    await desk.dispatch()
    await desk.travel(MINUTE)
    held = [await nuke(desk) for _ in range(3)]
    await desk.dispatch()
    late = await nuke(desk)
    await desk.dispatch()

    assert await states(desk, *passed) == ["sent"] * 5
    assert await states(desk, *held, late) == ["storm"] * 4
    [summary] = await summaries(desk)
    assert (summary["count"], summary["state"]) == ("4", "pending")
    assert timedelta(minutes=8, seconds=30) < summary["wait"] <= timedelta(minutes=9)

    await desk.travel(9 * MINUTE)
    await desk.dispatch()
    titles = [each.title for each in there.said_to("100")]
    assert titles[5:] == ["긴급 알림 4건을 모았어요"]

    again = await nuke(desk)
    await desk.dispatch()
    assert await states(desk, again) == ["sent"]


async def test_a_summary_whose_holder_died_is_still_the_one_that_counts(desk: Office) -> None:
    for _ in range(6):
        await nuke(desk)
    await desk.dispatch()
    await desk.travel(11 * MINUTE)
    async with desk.hub.autocommit() as tx:
        [held] = await LANE.claim(tx, 1, MINUTE, "mayfly")
    await desk.travel(2 * MINUTE)
    storm = [await nuke(desk) for _ in range(6)]
    later = "update notification.requests set scheduled_at = pabal.now() + interval '1 day' where id = $1"
    await desk.owner.execute(later, held.id)
    await desk.dispatch()

    assert sorted(await states(desk, *storm)) == ["sent"] * 5 + ["storm"]
    assert [(each["id"], each["count"]) for each in await summaries(desk)] == [(held.id, "2")]


async def test_a_summary_reaches_whoever_switched_dms_off(desk: Office, there: Discord) -> None:
    await desk.owner.execute("insert into notification.people (discord_id, dm_enabled) values ('100', false)")
    for _ in range(6):
        await nuke(desk)
    await desk.dispatch()
    await desk.travel(11 * MINUTE)
    await desk.dispatch()

    assert [each["state"] for each in await summaries(desk)] == ["sent"]
    assert len(there.said_to("100")) == 6


async def test_the_limit_is_each_recipients_own_and_holds_for_two_workers(
    desk: Office, database_urls: DatabaseUrls, there: Discord
) -> None:
    requests = [await nuke(desk, recipient=each) for each in ("100", "101") for _ in range(20)]
    in_guild = [await nuke(desk, recipient=AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL) for _ in range(7)]
    async with open_hub(desk.hub.settings, database_urls) as other, desk.working(), desk.working(other):
        await until(desk.is_idle)

    assert sorted(await states(desk, *requests)) == ["sent"] * 10 + ["storm"] * 30
    assert sorted(await states(desk, *in_guild)) == ["sent"] * 5 + ["storm"] * 2
    assert (len(there.said_to("100")), len(there.said_to("101")), len(there.said_in(AUDIT))) == (5, 5, 5)
    assert sorted(each["count"] for each in await summaries(desk)) == ["15", "15", "2"]


async def test_what_is_no_emergency_is_never_held(desk: Office, there: Discord) -> None:
    await asyncio.gather(*(desk.ask(incident="raid-1") for _ in range(8)))
    await desk.dispatch()

    assert len(there.messages) == 8
