"""A slow Discord delays neither toasts nor emergencies nor other recipients."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from pabal.hub_workers import build_workers
from pabal.notifications.decision.decide import Criticality, NotificationChannel
from pabal.notifications.dispatch.concurrency import CONCURRENCY_SHARES, DISPATCH_CONCURRENCY, SHARE_BY_KIND
from pabal.notifications.dispatch.discord_rate_limit import MAX_WAIT, MAX_WAITING_PER_ROUTE
from pabal.outside.discord import DISCORD_TIMEOUT
from pabal.queue.worker import ScheduledClaim, Worker
from support.dispatch import AUDIT, NotificationHub, has_attempts
from support.fake_discord import FakeDiscord, ScriptedReply, error_reply
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MAX_DELAY = 3.0
"""Seconds. A call without a response times out after ten."""
FLOOD = 300
[MAX_DMS] = [share.max_in_flight for share in CONCURRENCY_SHARES if share.channels == (NotificationChannel.USER_DM,)]
DETECTED = {"guild": "Seoul", "actor": "mallory", "action": "ban"}


async def flood(notifier: NotificationHub, recipient: Callable[[int], str], count: int = FLOOD) -> None:
    """Many direct messages that have been due for a minute."""
    await notifier.owner.executemany(
        "insert into notification.requests "
        "(id, recipient_type, recipient_id, template_key, payload, state, scheduled_at) "
        """values (pabal.uuid7(), 'user_dm', $1, 'payment.succeeded', """
        """'{"item": "Pro", "amount": 1, "currency": "KRW"}', 'pending', pabal.now() - interval '1 minute')""",
        [(recipient(number),) for number in range(count)],
    )


async def open_dm_channels(notifier: NotificationHub) -> None:
    """Store a DM channel for every recipient: each channel is a separate route."""
    await notifier.owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id) "
        "select distinct recipient_type, recipient_id, 9 || recipient_id from notification.requests"
    )


async def wait_for_rounds(worker: Worker[Any, Any, Any], count: int) -> None:
    """Wait until the worker has polled this many times more."""
    rounds_done, next_schedule = 0, worker.schedule

    async def counted_schedule() -> Sequence[ScheduledClaim[Any]]:
        nonlocal rounds_done
        rounds_done += 1
        return await next_schedule()

    worker.schedule = counted_schedule
    await wait_until(lambda: rounds_done >= count)


async def seconds_until(condition: Callable[[], bool | Awaitable[bool]]) -> float:
    started = monotonic()
    await wait_until(condition, within=DISCORD_TIMEOUT.total_seconds() + 5)
    return monotonic() - started


async def count_toasts(notifier: NotificationHub) -> int:
    return await notifier.owner.fetchval("select count(*) from notification.toasts")


def test_every_kind_has_a_concurrency_share_and_toasts_have_their_own() -> None:
    kinds = {(channel, criticality.priority) for channel in NotificationChannel for criticality in Criticality}

    assert SHARE_BY_KIND.keys() == kinds
    assert sum(len(share.channels) * len(share.priorities) for share in CONCURRENCY_SHARES) == len(kinds)
    others = [
        share.max_in_flight for share in CONCURRENCY_SHARES if NotificationChannel.DASHBOARD_TOAST not in share.channels
    ]
    assert DISPATCH_CONCURRENCY - sum(others) >= 20


async def test_an_unresponsive_discord_delays_no_toast(notifier: NotificationHub, discord: FakeDiscord) -> None:
    discord.unresponsive = True
    await flood(notifier, str)
    await open_dm_channels(notifier)
    async with notifier.run_worker() as worker:
        await wait_until(lambda: worker.in_flight >= MAX_DMS)
        for number in range(50):
            await notifier.request(recipient=str(number), channel=NotificationChannel.DASHBOARD_TOAST)

        async def arrived() -> bool:
            return await count_toasts(notifier) == 50

        assert await seconds_until(arrived) < MAX_DELAY
        await wait_until(lambda: worker.in_flight == MAX_DMS)
        await wait_for_rounds(worker, 10)
        assert worker.in_flight == MAX_DMS, "the limit holds for any number of due messages"


async def test_an_unresponsive_discord_delays_no_emergency(notifier: NotificationHub, discord: FakeDiscord) -> None:
    discord.unresponsive = True
    await flood(notifier, str)
    await open_dm_channels(notifier)
    async with notifier.run_worker() as worker:
        await wait_until(lambda: worker.in_flight >= MAX_DMS)
        await notifier.save_dm_channel("5000", "5001")
        await notifier.request("antinuke.triggered", "5001")

        assert await seconds_until(lambda: any("/5000/" in request.target for request in discord.requests)) < MAX_DELAY


async def test_an_unresponsive_channel_delays_no_other_channel(notifier: NotificationHub, discord: FakeDiscord) -> None:
    discord.unresponsive_users.add("100")
    await notifier.save_dm_channel(discord.dm_channel_of("100"))
    await flood(notifier, lambda _number: "100")
    async with notifier.run_worker():
        await wait_until(lambda: bool(discord.requests))
        await notifier.request(recipient="101")
        await notifier.request(
            "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
        )

        assert await seconds_until(lambda: bool(discord.messages_to("101") and discord.messages_in(AUDIT))) < MAX_DELAY
    assert len([request for request in discord.requests if f"/{discord.dm_channel_of('100')}/" in request.target]) == 1


async def test_requeued_notifications_come_back_spread_out_without_spending_attempts(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    discord.unresponsive_users.add("100")
    await notifier.save_dm_channel(discord.dm_channel_of("100"))
    await flood(notifier, lambda _number: "100", 60)
    async with notifier.run_worker():

        async def are_snoozed() -> bool:
            return (
                await notifier.owner.fetchval("select count(*) from notification.attempts")
                >= 60 - MAX_WAITING_PER_ROUTE - 1
            )

        await wait_until(are_snoozed)
    waits = await notifier.owner.fetch(
        "select extract(epoch from r.scheduled_at - a.ended_at)::float as wait, r.attempt_count "
        "from notification.requests r join notification.attempts a on a.request_id = r.id "
        "where a.outcome = 'snooze' and a.why = 'too many messages are waiting for the same channel' order by 1"
    )

    assert {row["attempt_count"] for row in waits} == {0}
    assert waits[0]["wait"] >= 1
    assert waits[-1]["wait"] > 8, "they return at five per second"


async def test_a_claimed_notification_waits_two_seconds_for_its_route(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    discord.unresponsive_users.add("100")
    await notifier.save_dm_channel(discord.dm_channel_of("100"))
    await flood(notifier, lambda _number: "100", 2)
    async with notifier.run_worker():
        await wait_until(lambda: has_attempts(notifier, 1))
        attempt = await notifier.owner.fetchrow(
            "select outcome, ended_at - started_at as took from notification.attempts"
        )

    assert attempt is not None
    assert attempt["outcome"] == "snooze"
    assert MAX_WAIT <= attempt["took"] < 2 * MAX_WAIT


async def test_nothing_is_claimed_for_discord_while_it_is_paused(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    discord.script.append(ScriptedReply(error_reply(401, 0, "401: Unauthorized")))
    await notifier.request(recipient="99")
    async with notifier.run_worker():
        await wait_until(lambda: has_attempts(notifier, 1))
        await flood(notifier, str)
        toast = await notifier.request(channel=NotificationChannel.DASHBOARD_TOAST)

        async def arrived() -> bool:
            return (await notifier.state(toast))[0] == "sent"

        await wait_until(arrived)  # the worker keeps polling
        assert (
            await notifier.owner.fetchval("select max(attempt_count) from notification.requests where state <> 'sent'")
            == 0
        )
        assert await notifier.owner.fetchval("select count(*) from notification.attempts") == 2

        await notifier.travel(timedelta(seconds=61))
        await wait_until(lambda: len(discord.messages) > 50)


async def test_a_pause_that_starts_during_the_wait_is_respected(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    tat_query = "select tat from pabal.limits where key = 'discord calls:all'"
    await notifier.owner.execute(
        "insert into pabal.limits (key, tat) values ('discord calls:all', pabal.now() + interval '2.5 s')"
    )
    tat_before = await notifier.owner.fetchval(tat_query)
    await notifier.save_dm_channel(discord.dm_channel_of("100"))
    request = await notifier.request()

    async def has_reserved() -> bool:
        return await notifier.owner.fetchval(tat_query) > tat_before

    async with notifier.run_worker():
        await wait_until(has_reserved)
        await notifier.owner.execute(
            "insert into pabal.limits (key, tat) values ('discord:all routes', pabal.now() + interval '1 minute')"
        )
        await wait_until(lambda: has_attempts(notifier, 1))

    assert discord.requests == []
    assert await notifier.state(request) == ("pending", None, 0)


async def test_the_hubs_worker_uses_the_concurrency_shares(notifier: NotificationHub) -> None:
    [dispatch_worker] = [
        worker for worker in build_workers(notifier.hub) if getattr(worker, "name", "").startswith("dispatch:")
    ]
    workers: Any = dispatch_worker

    assert workers.schedule == notifier.hub.dispatcher.schedule
    assert workers.config.concurrency == DISPATCH_CONCURRENCY


async def test_a_long_queue_for_one_channel_is_not_claimed_again_and_again(
    notifier: NotificationHub, discord: FakeDiscord
) -> None:
    """Each refill claims as many as the channel accepts, so every notification is snoozed only a few times."""
    discord.channel_limit, discord.retry_after = 5, 5
    count = 60
    for _ in range(count):
        await notifier.request(
            "antinuke.detected", AUDIT, channel=NotificationChannel.GUILD_AUDIT_CHANNEL, payload=DETECTED
        )
    async with notifier.run_worker():
        while len(discord.messages_in(AUDIT)) < count:
            delivered = len(discord.messages_in(AUDIT))
            discord.refill()
            await notifier.travel(timedelta(seconds=6))
            await wait_until(lambda delivered=delivered: len(discord.messages_in(AUDIT)) > delivered)
            await wait_until(notifier.is_idle)

    snoozed = await notifier.owner.fetchval("select count(*) from notification.attempts where outcome = 'snooze'")
    assert snoozed < 5 * count, "no refill may claim most of the queue"
    assert discord.rejected_calls == 0
