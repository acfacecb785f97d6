"""Whoever waits for Discord keeps nobody else waiting: toasts, emergencies and other people's notices go on."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from pabal.hub import build_workers
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.dispatch.concurrency import CONCURRENCY_SHARES, DISPATCH_CONCURRENCY, SHARE_BY_KIND
from pabal.notifications.dispatch.discord_rate_limit import MAX_WAIT, MAX_WAITING_PER_ROUTE
from pabal.outside.discord import DISCORD_TIMEOUT
from pabal.queue.worker import ClaimFilter, Worker
from support.dispatch import AUDIT, Office, tried
from support.fake_discord import Discord, Fate, error
from support.wait import until

pytestmark = pytest.mark.anyio

SOON = 3.0
"""Seconds. A call that hangs is given up after ten."""
FLOOD = 300
[MOST_DMS] = [share.max_in_flight for share in CONCURRENCY_SHARES if share.channels == (NotificationChannel.USER_DM,)]
DETECTED = {"guild": "Seoul", "actor": "mallory", "action": "ban"}


async def flood(desk: Office, people: Callable[[int], str], count: int = FLOOD) -> None:
    """Many direct messages that have been due for a minute."""
    await desk.owner.executemany(
        "insert into notification.requests "
        "(id, recipient_type, recipient_id, template_key, payload, state, scheduled_at) "
        """values (pabal.uuid7(), 'user_dm', $1, 'payment.succeeded', """
        """'{"item": "Pro", "amount": 1, "currency": "KRW"}', 'pending', pabal.now() - interval '1 minute')""",
        [(people(each),) for each in range(count)],
    )


async def acquainted(desk: Office) -> None:
    """Let everybody's DM channel have been opened before: each is a route of its own."""
    await desk.owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id) "
        "select distinct recipient_type, recipient_id, 9 || recipient_id from notification.requests"
    )


async def rounds(worker: Worker[Any, Any], count: int) -> None:
    """Let a worker look for work so many times more."""
    looked, ask = 0, worker.schedule

    async def counted() -> Sequence[ClaimFilter]:
        nonlocal looked
        looked += 1
        return await ask()

    worker.schedule = counted
    await until(lambda: looked >= count)


async def how_long(happens: Callable[[], bool | Awaitable[bool]]) -> float:
    began = monotonic()
    await until(happens, within=DISCORD_TIMEOUT.total_seconds() + 5)
    return monotonic() - began


async def toasts(desk: Office) -> int:
    return await desk.owner.fetchval("select count(*) from notification.toasts")


def test_every_kind_of_request_has_its_hands_and_toasts_some_of_their_own() -> None:
    kinds = {(channel, each.priority) for channel in NotificationChannel for each in Criticality}

    assert SHARE_BY_KIND.keys() == kinds
    assert sum(len(share.channels) * len(share.priorities) for share in CONCURRENCY_SHARES) == len(kinds)
    others = [
        share.max_in_flight for share in CONCURRENCY_SHARES if NotificationChannel.DASHBOARD_TOAST not in share.channels
    ]
    assert DISPATCH_CONCURRENCY - sum(others) >= 20


async def test_a_discord_that_answers_nobody_delays_no_toast(desk: Office, there: Discord) -> None:
    there.silent = True
    await flood(desk, str)
    await acquainted(desk)
    async with desk.working() as worker:
        await until(lambda: worker.in_flight >= MOST_DMS)
        for each in range(50):
            await desk.ask(recipient=str(each), channel=NotificationChannel.DASHBOARD_TOAST)

        async def arrived() -> bool:
            return await toasts(desk) == 50

        assert await how_long(arrived) < SOON
        await until(lambda: worker.in_flight == MOST_DMS)
        await rounds(worker, 10)
        assert worker.in_flight == MOST_DMS, "whatever else is due"


async def test_nor_does_one_delay_an_emergency(desk: Office, there: Discord) -> None:
    there.silent = True
    await flood(desk, str)
    await acquainted(desk)
    async with desk.working() as worker:
        await until(lambda: worker.in_flight >= MOST_DMS)
        await desk.knows("5000", "nuked")
        await desk.ask("antinuke.triggered", "nuked")

        assert await how_long(lambda: any("/5000/" in each.target for each in there.requests)) < SOON


async def test_somebody_whose_messages_hang_delays_nobody_else(desk: Office, there: Discord) -> None:
    there.stuck.add("100")
    await desk.knows(there.dm_of("100"))
    await flood(desk, lambda _each: "100")
    async with desk.working():
        await until(lambda: bool(there.requests))
        await desk.ask(recipient="101")
        await desk.ask("antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED)

        assert await how_long(lambda: bool(there.said_to("101") and there.said_in(AUDIT))) < SOON
    assert len([each for each in there.requests if f"/{there.dm_of('100')}/" in each.target]) == 1


async def test_who_is_turned_away_comes_back_in_turn_and_spends_nothing(desk: Office, there: Discord) -> None:
    there.stuck.add("100")
    await desk.knows(there.dm_of("100"))
    await flood(desk, lambda _each: "100", 60)
    async with desk.working():

        async def turned_away() -> bool:
            return (
                await desk.owner.fetchval("select count(*) from notification.attempts")
                >= 60 - MAX_WAITING_PER_ROUTE - 1
            )

        await until(turned_away)
    waits = await desk.owner.fetch(
        "select extract(epoch from r.scheduled_at - a.ended_at)::float as wait, r.attempt_count "
        "from notification.requests r join notification.attempts a on a.request_id = r.id "
        "where a.outcome = 'snooze' and a.why = 'too many messages are waiting for the same channel' order by 1"
    )

    assert {each["attempt_count"] for each in waits} == {0}
    assert waits[0]["wait"] >= 1
    assert waits[-1]["wait"] > 8, "five a second"


async def test_a_hand_is_waited_in_for_two_seconds_and_no_longer(desk: Office, there: Discord) -> None:
    there.stuck.add("100")
    await desk.knows(there.dm_of("100"))
    await flood(desk, lambda _each: "100", 2)
    async with desk.working():
        await until(lambda: tried(desk, 1))
        kept = await desk.owner.fetchrow("select outcome, ended_at - started_at as took from notification.attempts")

    assert kept is not None
    assert kept["outcome"] == "snooze"
    assert MAX_WAIT <= kept["took"] < 2 * MAX_WAIT


async def test_while_discord_wants_nothing_nothing_is_claimed_for_it(desk: Office, there: Discord) -> None:
    there.script.append(Fate(error(401, 0, "401: Unauthorized")))
    await desk.ask(recipient="99")
    async with desk.working():
        await until(lambda: tried(desk, 1))
        await flood(desk, str)
        toast = await desk.ask(channel=NotificationChannel.DASHBOARD_TOAST)

        async def arrived() -> bool:
            return (await desk.state(toast))[0] == "sent"

        await until(arrived)  # the rounds go on
        assert (
            await desk.owner.fetchval("select max(attempt_count) from notification.requests where state <> 'sent'") == 0
        )
        assert await desk.owner.fetchval("select count(*) from notification.attempts") == 2

        await desk.travel(timedelta(seconds=61))
        await until(lambda: len(there.messages) > 50)


async def test_a_limit_that_came_while_somebody_waited_for_their_place_is_kept(desk: Office, there: Discord) -> None:
    pace = "select tat from pabal.limits where key = 'discord calls:all'"
    await desk.owner.execute(
        "insert into pabal.limits (key, tat) values ('discord calls:all', pabal.now() + interval '2.5 s')"
    )
    free = await desk.owner.fetchval(pace)
    await desk.knows(there.dm_of("100"))
    request = await desk.ask()

    async def has_a_place() -> bool:
        return await desk.owner.fetchval(pace) > free

    async with desk.working():
        await until(has_a_place)
        await desk.owner.execute(
            "insert into pabal.limits (key, tat) values ('discord:all routes', pabal.now() + interval '1 minute')"
        )
        await until(lambda: tried(desk, 1))

    assert there.requests == []
    assert await desk.state(request) == ("pending", None, 0)


async def test_the_hub_employs_somebody_who_works_like_that(desk: Office) -> None:
    [dispatching] = [each for each in build_workers(desk.hub) if getattr(each, "name", "").startswith("dispatch:")]
    employed: Any = dispatching

    assert employed.schedule == desk.hub.dispatcher.schedule
    assert employed.config.concurrency == DISPATCH_CONCURRENCY


async def test_a_long_line_for_one_channel_is_not_walked_over_again_and_again(desk: Office, there: Discord) -> None:
    """As many as a channel takes at once, each time it takes any: who waits longest is turned away a few times."""
    there.per_channel, there.retry_after = 5, 5
    count = 60
    for _ in range(count):
        await desk.ask("antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED)
    async with desk.working():
        while len(there.said_in(AUDIT)) < count:
            said = len(there.said_in(AUDIT))
            there.refill()
            await desk.travel(timedelta(seconds=6))
            await until(lambda said=said: len(there.said_in(AUDIT)) > said)
            await until(desk.is_idle)

    snoozed = await desk.owner.fetchval("select count(*) from notification.attempts where outcome = 'snooze'")
    assert snoozed < 5 * count, "not half of all there are, each time"
    assert there.refused == 0
