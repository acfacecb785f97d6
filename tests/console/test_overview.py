"""The overview: lanes, throughput, workers, chores and issues."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from pabal.console.overview import format_rate
from pabal.events import events as backlog
from pabal.events.events import SubscriptionBacklog, list_subscription_backlogs
from pabal.hub import DatabaseUrls, Hub
from pabal.queue import processes
from pabal.queue.outcome import DONE, Dead
from pabal.queue.throughput import CountedOutcome, ThroughputCounter, ThroughputMinute
from pabal.stats import HubStats, LaneStats, UnhandledEvents
from pabal.status import count_blocked_events, measure_progress
from support.clusters import open_connection
from support.lane_under_test import Events, Travel
from support.operator import HOSTILE, SignedInOperator, is_escaped

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lane(waiting: int) -> LaneStats:
    return LaneStats("events", waiting, timedelta(), 0, 0)


def throughput_minutes(*minutes: tuple[int, int, int], now: timedelta = MINUTE) -> list[ThroughputMinute]:
    durations = [*[MINUTE] * (len(minutes) - 1), now]
    return [
        ThroughputMinute("events", NOON, *counts, duration) for counts, duration in zip(minutes, durations, strict=True)
    ]


class TestThroughput:
    def test_throughput_covers_the_last_five_minutes(self) -> None:
        card = measure_progress(lane(100), throughput_minutes((1000, 0, 0), *[(20, 4, 1)] * 5))

        assert (card.done_per_minute, card.failed_per_minute) == (20, 5)
        assert card.drain_time == 100 / 21 * MINUTE

    def test_the_current_minute_counts_proportionally(self) -> None:
        assert (
            measure_progress(lane(0), throughput_minutes((10, 0, 0), (5, 0, 0), now=MINUTE / 2)).done_per_minute == 10
        )

    def test_there_is_no_estimate_without_throughput(self) -> None:
        assert measure_progress(lane(100), throughput_minutes((1000, 0, 0), *[(0, 9, 0)] * 5)).drain_time is None

    def test_events_without_a_consumer_do_not_affect_the_estimate(self) -> None:
        assert measure_progress(lane(100), throughput_minutes((20, 0, 0)), blocked=60).drain_time == 2 * MINUTE
        assert measure_progress(lane(100), throughput_minutes((20, 0, 0)), blocked=100).drain_time is None
        assert (
            measure_progress(lane(7), throughput_minutes((20, 0, 0)), blocked=8).drain_time is None
        )  # the two counts are not from the same moment

    def test_an_event_of_two_subscriptions_is_counted_once(self) -> None:
        waits = [
            SubscriptionBacklog(uuid4(), service, "paused", n) for service, n in (("shop", 7), ("shop", 5), ("keep", 2))
        ]
        count = HubStats((lane(5000),), 0, (UnhandledEvents("till", 3), UnhandledEvents("keep", 1)))

        assert count_blocked_events(count, waits) == 7 + 2 + 3
        more = SubscriptionBacklog(uuid4(), "shop", "paused", backlog.MAX_BACKLOG_COUNT)
        assert count_blocked_events(count, [*waits, more]) == 5000

    @pytest.mark.parametrize(
        ("number", "text"), [(0, "0"), (0.25, "0.2"), (9.94, "9.9"), (12.3, "12"), (12345, "12,345")]
    )
    def test_throughput_is_rounded_to_its_precision(self, number: float, text: str) -> None:
        assert format_rate(number) == text


async def record_throughput(hub: Hub, lane: str = "events", **numbers: int) -> None:
    counter = ThroughputCounter(hub.db)
    counter.add_counts({(lane, cast("CountedOutcome", what)): number for what, number in numbers.items()})
    await counter.open()
    await counter.close()


async def report_worker(hub: Hub, name: str = "host-7", **details: Any) -> None:
    async with hub.autocommit() as tx:
        process = {"id": name, "host": "host", "pid": 7, "lanes": ["events"], "details": details}
        await tx.run(processes.Q.upsert_process, **process, first=True)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


async def test_a_lane_shows_its_throughput(
    hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator, travel: Travel
) -> None:
    assert database_urls.direct
    hub.db.on_outcome_counts = None
    await record_throughput(hub, done=1200, failed=30, dead=2)
    async with open_connection(database_urls.direct) as owner:
        events = Events(hub, owner, travel)
        await events.put(3)
        [held] = await events.claim(limit=1)
        await events.settle(held, Dead("no"))

        text = text_of((await admin.get("/console")).text)

    assert "Events: last hour, per minute" in text
    assert "Last hour: 1,200 done, 32 failed, peak 1,232 / min" in text
    assert "Waiting 2" in text
    assert "1 unresolved dead letter" in text
    assert "2 events are waiting, but no worker is running" in text
    assert " / min" in text


async def test_an_empty_hub_is_healthy_in_both_languages(admin: SignedInOperator, viewer: SignedInOperator) -> None:
    english, korean = await admin.get("/console"), await viewer.get("/console", "ko")

    assert "All systems normal." in english.text
    assert "No workers are running." in english.text
    assert english.text.count("never run") > 20
    assert "모두 정상입니다." in korean.text
    assert "실행 중인 워커가 없습니다." in korean.text
    assert korean.text.count("지난 1시간 동안 처리된 항목이 없습니다.") == 3


async def test_workers_and_chores_show_their_last_state(hub: Hub, admin: SignedInOperator, travel: Travel) -> None:
    await report_worker(hub, version="0.9.1", holds=4, program="till", handlers={"shop": ["order.*"]})
    await hub.chores.run_due()
    well = text_of((await admin.get("/console")).text)
    await travel(timedelta(minutes=3))
    late = text_of((await admin.get("/console")).text)

    assert re.search(r"host-7 0\.9\.1 Events till shop: order\.\* 4 .+? ago", well)
    assert re.search(r"seal audit \d+(\.\d)? s ago", well)
    assert "never run" not in well
    assert "Worker host-7 has sent no heartbeat for 3 min" in late
    assert "chores are overdue: " in late
    assert "purge events 3 min ago" in late


async def test_texts_of_chores_and_workers_are_escaped(
    hub: Hub, database_urls: DatabaseUrls, admin: SignedInOperator
) -> None:
    assert database_urls.direct
    await report_worker(hub, f"w {HOSTILE}", version=HOSTILE, program=HOSTILE, handlers={HOSTILE: [HOSTILE]})
    async with open_connection(database_urls.direct) as owner:
        await owner.execute(
            "insert into pabal.chores (name, last_started_at, last_error) values ('purge events', now(), $1)", HOSTILE
        )

    page = await admin.get("/console")

    assert page.status_code == 200
    assert "1 chore failed on its last run: purge events" in page.text
    assert page.text.count("&lt;script&gt;alert(1)") >= 5
    assert "{{7*7}}" in page.text
    assert is_escaped(page)


class TestBacklogs:
    @pytest.fixture
    async def events(self, hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> Any:
        assert database_urls.direct
        async with open_connection(database_urls.direct) as owner:
            yield Events(hub, owner, travel)

    async def subscribe(self, events: Events, **columns: Any) -> None:
        await events.owner.execute(
            """
            insert into pabal.subscriptions (service_name, mode, event_types, url, secret)
            values ('minu_build', 'push', '{order.*}', 'https://shop.example/hook', 'sealed')
            """
        )
        for name, value in columns.items():
            await events.owner.execute(f"update pabal.subscriptions set {name} = {value} where paused_at is null")

    async def list_backlogs(self, events: Events) -> list[tuple[str, str, int]]:
        async with events.hub.autocommit() as tx:
            return [
                (subscription_backlog.service, subscription_backlog.state, subscription_backlog.count)
                for subscription_backlog in await list_subscription_backlogs(tx)
            ]

    @pytest.mark.parametrize(
        ("column", "value", "state"),
        [
            ("paused_at", "now()", "paused"),
            ("disabled_at", "now(), disabled_reason = 'gone'", "disabled"),
            ("open_until", "now() + interval '1 minute'", "resting"),
        ],
    )
    async def test_the_backlog_of_an_inactive_subscription_is_listed(
        self, events: Events, column: str, value: str, state: str
    ) -> None:
        await self.subscribe(events, **{column: value})
        await events.put(3)
        assert await self.list_backlogs(events) == []  # too recent to count as blocked

        await events.travel(seconds=10)
        assert await self.list_backlogs(events) == [("minu_build", state, 3)]

    async def test_a_backlog_that_another_subscription_delivers_is_not_listed(self, events: Events) -> None:
        await events.put(3)
        await events.travel(minutes=1)
        await self.subscribe(events)
        assert await self.list_backlogs(events) == []

        await self.subscribe(events, paused_at="now()")
        assert await self.list_backlogs(events) == [("minu_build", "paused", 3)] * 2
        await self.subscribe(events)
        assert await self.list_backlogs(events) == []
        for held in await events.claim():
            await events.settle(held, DONE)
