"""Throughput: outcomes are counted at commit, per minute."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from conftest import execute
from pabal.core.errors import CallbackExpired, CallbackFailed
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.notifications.decision.decide import SuppressReason
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.dispatch.outcome import DispatchOutcome, NotificationSent, NotificationSuppressed
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal.queue.throughput import (
    THROUGHPUT_RETENTION,
    ThroughputCounter,
    ThroughputMinute,
    last_hour_throughput,
    purge_throughput,
)
from pabal.relay.delivery.lane import LANE as MESSAGES
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.reply.callback import rescue_lost_callbacks
from pabal.settings import Settings
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, kakao_response, run_fake_kakao
from support.lane_under_test import Events, LaneUnderTest, Notifications, Travel
from support.relay_rows import Bot, Chat
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Counts = Counter[tuple[str, str]]
MINUTE = timedelta(minutes=1)
SHORT_INTERVAL = timedelta(milliseconds=10)
EVERY_OUTCOME: Sequence[Outcome] = (DONE, Retry("boom"), Dead("no"), Snooze("later", MINUTE))


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
def counts(hub: Hub) -> Counts:
    """The outcomes that commits have counted."""
    counts: Counts = Counter()
    hub.db.on_outcome_counts = counts.update
    return counts


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        yield Events(hub, owner, travel)


@pytest.fixture
async def fake_kakao() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as server:
        yield server


@pytest.fixture
async def bot(hub: Hub, database_urls: DatabaseUrls, fake_kakao: FakeKakao) -> AsyncGenerator[Bot]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        yield await Bot.of(hub, Chat(owner), fake_kakao)


async def last_hour(hub: Hub, lane: str = "events") -> Sequence[ThroughputMinute]:
    async with hub.autocommit() as tx:
        return (await last_hour_throughput(tx))[lane]


class TestCounting:
    async def test_each_outcome_counts_as_its_kind(self, events: Events, counts: Counts) -> None:
        await events.put(4)
        claimed = await events.claim()

        await events.settle_all([*zip(claimed, EVERY_OUTCOME, strict=True)])

        assert counts == {("events", "done"): 1, ("events", "failed"): 1, ("events", "dead"): 1}

    async def test_a_retry_without_attempts_left_counts_as_dead(self, events: Events, counts: Counts) -> None:
        await events.put(max_retries=0)
        [claimed] = await events.claim()

        await events.settle(claimed, Retry("boom"))

        assert counts == {("events", "dead"): 1}

    async def test_settling_under_a_lost_lease_counts_nothing_and_its_expiry_counts_once(
        self, events: Events, counts: Counts
    ) -> None:
        await events.put(1)
        await events.put(1, max_retries=0)
        claimed = await events.claim()
        await events.travel(minutes=1)
        async with events.hub.autocommit() as tx:
            assert await events.lane.revive(tx, 10) == 2

        await events.settle_all([(event, DONE) for event in claimed])

        assert counts == {("events", "failed"): 1, ("events", "dead"): 1}

    async def test_a_rolled_back_outcome_is_not_counted(self, events: Events, counts: Counts) -> None:
        await events.put()
        [claimed] = await events.claim()

        with pytest.raises(ZeroDivisionError):
            async with events.hub.transaction() as tx:
                await events.lane.settle(tx, [Settlement(claimed, DONE)])
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with events.hub.autocommit() as tx, tx.atomic():
                await events.lane.settle(tx, [Settlement(claimed, DONE)])
                raise ZeroDivisionError

        assert counts == {}
        assert await events.settle(claimed, DONE)
        assert counts == {("events", "done"): 1}

    async def test_suppressed_notifications_count_as_done(
        self, hub: Hub, database_urls: DatabaseUrls, travel: Travel, counts: Counts
    ) -> None:
        assert database_urls.direct
        async with open_connection(database_urls.direct) as owner:
            lane: LaneUnderTest = Notifications(hub, owner, travel)
            await lane.prepare()
            await lane.put(6)
            claimed = await lane.claim()
            outcomes: list[DispatchOutcome] = [
                NotificationSent(),
                Retry("boom"),
                Dead("no"),
                Snooze("later", MINUTE),
                NotificationSent({"message_id": "1"}),
                NotificationSuppressed(SuppressReason.DM_DISABLED),
            ]
            async with hub.autocommit() as tx:
                await NotificationDispatchLane().settle(
                    tx, [Settlement(row, outcome) for row, outcome in zip(claimed, outcomes, strict=True)]
                )

        assert counts == {("notifications", "done"): 3, ("notifications", "failed"): 1, ("notifications", "dead"): 1}

    async def test_a_message_that_is_answered_and_acknowledged_counts_once(self, bot: Bot, counts: Counts) -> None:
        acked, answered = await bot.insert_message("acked"), await bot.insert_message("answered")
        async with bot.hub.autocommit() as tx:
            await ack_messages(tx, bot.owner.id, [acked])
            await ack_messages(tx, bot.owner.id, [acked])
        await bot.send_reply(acked, "hello")
        await bot.send_reply(answered, "hello")
        async with bot.hub.autocommit() as tx:
            await ack_messages(tx, bot.owner.id, [answered])

        assert counts == {("relay", "done"): 2}

    async def test_a_failed_callback_and_a_late_reply_are_counted(self, bot: Bot, counts: Counts) -> None:
        bot.kakao.responder = kakao_response("FAIL", "no")
        with pytest.raises(CallbackFailed):
            await bot.send_reply(await bot.insert_message("refused"), "hello")
        with pytest.raises(CallbackExpired):
            await bot.send_reply(await bot.insert_message("late", timedelta(seconds=-1)), "hello")

        assert counts == {("relay", "done"): 2, ("relay", "failed"): 1}

    async def test_expired_messages_and_lost_callbacks_count_as_failed(
        self, bot: Bot, counts: Counts, travel: Travel
    ) -> None:
        await bot.insert_message("undelivered")
        lost_message = await bot.insert_message("lost")
        await bot.chat.db.execute(
            """
            insert into relay_replies (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at)
            values ($1, $2, $3, 'hub', 'sending', gen_random_uuid(), pabal.now())
            """,
            lost_message,
            bot.owner.id,
            bot.key,
        )
        await travel(timedelta(minutes=15))
        async with bot.hub.autocommit() as tx:
            assert await rescue_lost_callbacks(tx, 10) == 1
            assert await MESSAGES.expire(tx, 10) == 2

        assert counts == {("relay", "failed"): 3}


class TestMinutes:
    async def test_the_counts_of_several_processes_are_summed(self, hub: Hub) -> None:
        first, second = ThroughputCounter(hub.db, SHORT_INTERVAL), ThroughputCounter(hub.db, SHORT_INTERVAL)
        await first.open()
        await second.open()
        first.add_counts({("events", "done"): 2, ("relay", "failed"): 1})
        second.add_counts({("events", "done"): 3, ("events", "dead"): 1})

        async def is_written() -> bool:
            return (await total(hub, "events"), await total(hub, "relay")) == ((5, 0, 1), (0, 1, 0))

        await wait_until(is_written)
        first.add_counts({("events", "done"): 1})
        await first.close()
        await second.close()
        assert await total(hub, "events") == (6, 0, 1)

    async def test_a_stopping_process_writes_its_remaining_counts(
        self, settings: Settings, database_urls: DatabaseUrls, travel: Travel
    ) -> None:
        assert database_urls.direct
        async with open_connection(database_urls.direct) as owner:
            async with open_hub(settings, database_urls) as hub:
                events = Events(hub, owner, travel)
                await events.put(2)
                for claimed in await events.claim():
                    await events.settle(claimed, DONE)
                assert await total(hub, "events") == (0, 0, 0)
            async with open_hub(settings, database_urls) as hub:
                assert await total(hub, "events") == (2, 0, 0)

    async def test_counts_survive_an_unavailable_database(self, hub: Hub) -> None:
        counter = ThroughputCounter(hub.db)
        counter.add_counts({("events", "done"): 1})
        await hub.db.close()
        await counter._flush()
        counter.add_counts({("events", "done"): 1})

        await hub.db.open()
        await counter._flush()
        await counter._flush()

        assert await total(hub, "events") == (2, 0, 0)

    async def test_an_hour_has_sixty_minutes_with_the_current_one_last(
        self, hub: Hub, database_urls: DatabaseUrls
    ) -> None:
        await set_clock(database_urls, "12:00:59")
        await add(hub, events=1)
        await set_clock(database_urls, "12:59:15")
        await add(hub, events=2)

        minutes = await last_hour(hub)

        assert [minute.done for minute in minutes] == [1, *[0] * 58, 2]
        assert {later.minute - earlier.minute for earlier, later in pairwise(minutes)} == {MINUTE}
        assert {minute.elapsed for minute in minutes[:-1]} == {MINUTE}
        assert minutes[-1].elapsed == timedelta(seconds=15)
        await set_clock(database_urls, "13:00:00")
        assert [minute.done for minute in await last_hour(hub)] == [*[0] * 58, 2, 0]

    async def test_minutes_are_kept_for_a_day(self, hub: Hub, travel: Travel) -> None:
        await add(hub, events=1, relay=1)
        await travel(THROUGHPUT_RETENTION - MINUTE)
        async with hub.autocommit() as tx:
            assert await purge_throughput(tx, 10) == 0
        await travel(2 * MINUTE)
        async with hub.autocommit() as tx:
            assert await purge_throughput(tx, 1) == 1
            assert await purge_throughput(tx, 10) == 1


async def set_clock(database_urls: DatabaseUrls, time: str) -> None:
    await execute(
        database_urls.direct or database_urls.main,
        "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
        f"return timestamptz '2026-01-01 {time}+00'",
    )


async def add(hub: Hub, **counts: int) -> None:
    counter = ThroughputCounter(hub.db, SHORT_INTERVAL)
    counter.add_counts({(lane, "done"): number for lane, number in counts.items()})
    await counter._flush()


async def total(hub: Hub, lane: str) -> tuple[Any, ...]:
    minutes = await last_hour(hub, lane)
    return tuple(sum(getattr(minute, kind) for minute in minutes) for kind in ("done", "failed", "dead"))
