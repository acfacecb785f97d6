"""The pulse: what became of rows is counted when it is written down, and by the minute."""

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
from pabal.notifications.dispatch.outcome import DispatchOutcome, NotificationSent, NotificationSuppressed
from pabal.notifications.dispatch.settle import NotificationDispatchLane
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
from support.clusters import connected
from support.fake_kakao import Kakao, kakao, kakao_says
from support.lane_under_test import Events, LaneUnderTest, Notifications, Travel
from support.relay_rows import Bot, Chat
from support.wait import until

pytestmark = pytest.mark.anyio

Counted = Counter[tuple[str, str]]
MINUTE = timedelta(minutes=1)
SOON = timedelta(milliseconds=10)
EVERY_OUTCOME: Sequence[Outcome] = (DONE, Retry("boom"), Dead("no"), Snooze("later", MINUTE))


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
def counted(hub: Hub) -> Counted:
    """What commits have brought to be counted."""
    counted: Counted = Counter()
    hub.db.on_outcome_counts = counted.update
    return counted


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        yield Events(hub, owner, travel)


@pytest.fixture
async def there() -> AsyncGenerator[Kakao]:
    async with kakao() as opened:
        yield opened


@pytest.fixture
async def bot(hub: Hub, database_urls: DatabaseUrls, there: Kakao) -> AsyncGenerator[Bot]:
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        yield await Bot.of(hub, Chat(owner), there)


async def last_hour(hub: Hub, lane: str = "events") -> Sequence[ThroughputMinute]:
    async with hub.autocommit() as tx:
        return (await last_hour_throughput(tx))[lane]


class TestWhatCounts:
    async def test_each_outcome_as_what_it_is(self, events: Events, counted: Counted) -> None:
        await events.put(4)
        held = await events.claim()

        await events.settle_all([*zip(held, EVERY_OUTCOME, strict=True)])

        assert counted == {("events", "done"): 1, ("events", "failed"): 1, ("events", "dead"): 1}

    async def test_a_retry_without_an_attempt_left_is_a_death(self, events: Events, counted: Counted) -> None:
        await events.put(max_retries=0)
        [held] = await events.claim()

        await events.settle(held, Retry("boom"))

        assert counted == {("events", "dead"): 1}

    async def test_whoever_lost_the_lease_counts_nothing_and_its_end_is_counted_once(
        self, events: Events, counted: Counted
    ) -> None:
        await events.put(1)
        await events.put(1, max_retries=0)
        held = await events.claim()
        await events.travel(minutes=1)
        async with events.hub.autocommit() as tx:
            assert await events.lane.revive(tx, 10) == 2

        await events.settle_all([(each, DONE) for each in held])

        assert counted == {("events", "failed"): 1, ("events", "dead"): 1}

    async def test_what_is_undone_is_not_counted(self, events: Events, counted: Counted) -> None:
        await events.put()
        [held] = await events.claim()

        with pytest.raises(ZeroDivisionError):
            async with events.hub.transaction() as tx:
                await events.lane.settle(tx, [Settlement(held, DONE)])
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with events.hub.autocommit() as tx, tx.atomic():
                await events.lane.settle(tx, [Settlement(held, DONE)])
                raise ZeroDivisionError

        assert counted == {}
        assert await events.settle(held, DONE)
        assert counted == {("events", "done"): 1}

    async def test_notifications_that_were_suppressed_are_done(
        self, hub: Hub, database_urls: DatabaseUrls, travel: Travel, counted: Counted
    ) -> None:
        assert database_urls.direct
        async with connected(database_urls.direct) as owner:
            lane: LaneUnderTest = Notifications(hub, owner, travel)
            await lane.prepare()
            await lane.put(6)
            held = await lane.claim()
            became: list[DispatchOutcome] = [
                NotificationSent(),
                Retry("boom"),
                Dead("no"),
                Snooze("later", MINUTE),
                NotificationSent({"message_id": "1"}),
                NotificationSuppressed(SuppressReason.DM_DISABLED),
            ]
            async with hub.autocommit() as tx:
                await NotificationDispatchLane().settle(
                    tx, [Settlement(*each) for each in zip(held, became, strict=True)]
                )

        assert counted == {("notifications", "done"): 3, ("notifications", "failed"): 1, ("notifications", "dead"): 1}

    async def test_a_message_is_done_once_however_often_its_bot_says_so(self, bot: Bot, counted: Counted) -> None:
        acked, answered = await bot.hears("acked"), await bot.hears("answered")
        async with bot.hub.autocommit() as tx:
            await ack_messages(tx, bot.owner.id, [acked])
            await ack_messages(tx, bot.owner.id, [acked])
        await bot.answers(acked, "hello")
        await bot.answers(answered, "hello")
        async with bot.hub.autocommit() as tx:
            await ack_messages(tx, bot.owner.id, [answered])

        assert counted == {("relay", "done"): 2}

    async def test_a_callback_that_fails_is_counted_and_so_is_a_late_answer(self, bot: Bot, counted: Counted) -> None:
        bot.there.mood = kakao_says("FAIL", "no")
        with pytest.raises(CallbackFailed):
            await bot.answers(await bot.hears("refused"), "hello")
        with pytest.raises(CallbackExpired):
            await bot.answers(await bot.hears("late", timedelta(seconds=-1)), "hello")

        assert counted == {("relay", "done"): 2, ("relay", "failed"): 1}

    async def test_messages_that_expire_and_posts_that_are_lost_failed(
        self, bot: Bot, counted: Counted, travel: Travel
    ) -> None:
        await bot.hears("unheard")
        lost = await bot.hears("lost")
        await bot.chat.db.execute(
            """
            insert into relay_replies (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at)
            values ($1, $2, $3, 'hub', 'sending', gen_random_uuid(), pabal.now())
            """,
            lost,
            bot.owner.id,
            bot.key,
        )
        await travel(timedelta(minutes=15))
        async with bot.hub.autocommit() as tx:
            assert await rescue_lost_callbacks(tx, 10) == 1
            assert await MESSAGES.expire(tx, 10) == 2

        assert counted == {("relay", "failed"): 3}


class TestTheMinutes:
    async def test_what_processes_counted_is_added_up(self, hub: Hub) -> None:
        one, other = ThroughputCounter(hub.db, SOON), ThroughputCounter(hub.db, SOON)
        await one.open()
        await other.open()
        one.add_counts({("events", "done"): 2, ("relay", "failed"): 1})
        other.add_counts({("events", "done"): 3, ("events", "dead"): 1})

        async def added() -> bool:
            return (await total(hub, "events"), await total(hub, "relay")) == ((5, 0, 1), (0, 1, 0))

        await until(added)
        one.add_counts({("events", "done"): 1})
        await one.close()
        await other.close()
        assert await total(hub, "events") == (6, 0, 1)

    async def test_a_process_that_stops_takes_nothing_with_it(
        self, settings: Settings, database_urls: DatabaseUrls, travel: Travel
    ) -> None:
        assert database_urls.direct
        async with connected(database_urls.direct) as owner:
            async with open_hub(settings, database_urls) as hub:
                events = Events(hub, owner, travel)
                await events.put(2)
                for held in await events.claim():
                    await events.settle(held, DONE)
                assert await total(hub, "events") == (0, 0, 0)
            async with open_hub(settings, database_urls) as hub:
                assert await total(hub, "events") == (2, 0, 0)

    async def test_a_database_that_is_away_is_waited_for(self, hub: Hub) -> None:
        patient = ThroughputCounter(hub.db)
        patient.add_counts({("events", "done"): 1})
        await hub.db.close()
        await patient._flush()
        patient.add_counts({("events", "done"): 1})

        await hub.db.open()
        await patient._flush()
        await patient._flush()

        assert await total(hub, "events") == (2, 0, 0)

    async def test_an_hour_is_sixty_minutes_the_present_one_last(self, hub: Hub, database_urls: DatabaseUrls) -> None:
        await set_clock(database_urls, "12:00:59")
        await add(hub, events=1)
        await set_clock(database_urls, "12:59:15")
        await add(hub, events=2)

        beats = await last_hour(hub)

        assert [beat.done for beat in beats] == [1, *[0] * 58, 2]
        assert {later.minute - earlier.minute for earlier, later in pairwise(beats)} == {MINUTE}
        assert {beat.elapsed for beat in beats[:-1]} == {MINUTE}
        assert beats[-1].elapsed == timedelta(seconds=15)
        await set_clock(database_urls, "13:00:00")
        assert [beat.done for beat in await last_hour(hub)] == [*[0] * 58, 2, 0]

    async def test_a_day_is_kept(self, hub: Hub, travel: Travel) -> None:
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


async def add(hub: Hub, **done: int) -> None:
    at_once = ThroughputCounter(hub.db, SOON)
    at_once.add_counts({(lane, "done"): number for lane, number in done.items()})
    await at_once._flush()


async def total(hub: Hub, lane: str) -> tuple[Any, ...]:
    beats = await last_hour(hub, lane)
    return tuple(sum(getattr(beat, what) for beat in beats) for what in ("done", "failed", "dead"))
