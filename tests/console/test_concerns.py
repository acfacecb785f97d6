"""What is wrong is said in words, in both languages, and leads to where it is mended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.console.i18n import Translator
from pabal.console.overview import MAX_WAIT, SILENT_AFTER, OverviewSnapshot, find_issues
from pabal.events.events import SubscriptionBacklog
from pabal.queue.chores import OVERDUE_AFTER, ChoreRun
from pabal.queue.processes import ProcessInfo
from pabal.queue.throughput import LANE_NAMES, ThroughputMinute
from pabal.stats import HubStats, LaneStats, UnhandledEvents

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE, SECOND, HOUR = timedelta(), timedelta(seconds=1), timedelta(hours=1)
PUSH = UUID("019a0000-0000-7000-8000-000000000001")


def worker(silent: timedelta = NONE, *lanes: str) -> ProcessInfo:
    return ProcessInfo("host-7", "host", 7, lanes or ("events", "notifications"), NOON, NOON, {}, silent)


def chore(**how: Any) -> ChoreRun:
    return replace(ChoreRun("purge events", HOUR, SECOND, 0, None), **how)


def carrying(**lanes: dict[str, Any]) -> HubStats:
    return HubStats(tuple(replace(LaneStats(lane, 0, NONE, 0, 0), **lanes.get(lane, {})) for lane in LANE_NAMES), 0, ())


WELL = OverviewSnapshot(
    listening=True,
    stats=carrying(),
    throughput={lane: [ThroughputMinute(lane, NOON, 5, 1, 0, SECOND)] for lane in LANE_NAMES},
    workers=[worker()],
    chores=[chore()],
    backlogs=[],
)


def waits(lane: str, how_long: timedelta) -> HubStats:
    return carrying(**{lane: {"waiting": 3, "oldest_due": how_long}})


CASES: dict[str, tuple[OverviewSnapshot, str, str]] = {
    "dead letters": (
        replace(WELL, stats=carrying(events={"dead": 1200})),
        "Dead letters that nobody has seen to: 1,200.",
        "/console/dead",
    ),
    "notifications that failed": (
        replace(
            WELL,
            throughput={**WELL.throughput, "notifications": [ThroughputMinute("notifications", NOON, 0, 0, 2, SECOND)]},
        ),
        "Notifications that could not be delivered in the last hour: 2.",
        "/console/notifications?state=failed",
    ),
    "an old message": (
        replace(WELL, stats=waits("relay", MAX_WAIT["relay"])),
        "The oldest message has waited 1 min for its bot.",
        "/console/relay",
    ),
    "an old event": (
        replace(WELL, stats=waits("events", MAX_WAIT["events"])),
        "The oldest event has waited 5 min.",
        "/console/events?status=pending",
    ),
    "an old notification": (
        replace(WELL, stats=waits("notifications", MAX_WAIT["notifications"])),
        "The oldest notification has waited 5 min.",
        "/console/notifications?state=pending",
    ),
    "events without a worker": (
        replace(WELL, stats=waits("events", SECOND), workers=[worker(NONE, "notifications")]),
        "Events wait (3), and no worker is there to take them.",
        "/console#workers",
    ),
    "notifications without anybody": (
        replace(WELL, stats=waits("notifications", SECOND), workers=[]),
        "Notifications wait (3), and no worker is there to take them.",
        "/console#workers",
    ),
    "a silent worker": (
        replace(WELL, workers=[worker(), worker(SILENT_AFTER)]),
        "The worker host-7 has not been heard of for 45.0 s.",
        "/console#workers",
    ),
    "a chore that fails": (
        replace(WELL, chores=[chore(error="no")]),
        "Chores that failed when they last ran (1): purge events",
        "/console#chores",
    ),
    "chores that nobody does": (
        replace(WELL, chores=[chore(name=f"number {n}", since=HOUR + OVERDUE_AFTER + SECOND) for n in range(5)]),
        "Chores that nobody has done in time (5): number 0, number 1, number 2, …",
        "/console#chores",
    ),
    "events nobody takes": (
        replace(WELL, stats=replace(carrying(), unhandled=(UnhandledEvents("shop", 4), UnhandledEvents("keep", 0)))),
        "Events for shop that none of its handlers takes: 4.",
        "/console/events?target=shop&status=pending",
    ),
    "a paused subscription": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "paused", 7)]),
        "A subscription of shop is paused, and events wait for it: 7.",
        "/console/services/shop",
    ),
    "a subscription that was given up": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "disabled", 7)]),
        "A subscription of shop was given up, and events wait for it: 7.",
        "/console/services/shop",
    ),
    "a receiver that fails": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "resting", 1000)]),
        "A receiver of shop keeps failing and is left in peace for a while; events wait for it: 1,000+.",
        "/console/services/shop",
    ),
    "a deaf doorbell": (
        replace(WELL, listening=False),
        "The doorbell (LISTEN) is not heard; lanes are looked at every second instead.",
        "/console/health",
    ),
}


def test_when_nothing_is_wrong_nothing_is_said() -> None:
    assert find_issues(WELL) == []


@pytest.mark.parametrize("case", CASES)
def test_each_is_one_sentence_and_a_way(case: str) -> None:
    picture, sentence, where = CASES[case]

    [concern] = find_issues(picture)

    assert (concern.translate(Translator("en")), concern.url) == (sentence, where)
    korean = concern.translate(t := Translator("ko"))
    assert "{" not in korean
    assert all(t.translate(fact) in korean for fact in concern.values.values())


def test_how_long_is_said_in_the_language_of_the_page() -> None:
    [concern] = find_issues(replace(WELL, stats=waits("events", HOUR)))

    assert concern.translate(Translator("ko")) == "가장 오래된 이벤트가 1시간 0분째 기다립니다."


NOT_YET: dict[str, OverviewSnapshot] = {
    "a message that waits a little": replace(WELL, stats=waits("relay", MAX_WAIT["relay"] - SECOND)),
    "an event that waits a little": replace(WELL, stats=waits("events", MAX_WAIT["events"] - SECOND)),
    "messages without a worker": replace(WELL, stats=waits("relay", SECOND), workers=[]),
    "nobody there, and nothing to do": replace(WELL, workers=[]),
    "a worker between two reports": replace(WELL, workers=[worker(SILENT_AFTER - SECOND)]),
    "a chore that is a little late": replace(WELL, chores=[chore(since=HOUR + OVERDUE_AFTER)]),
    "a chore that never ran": replace(WELL, chores=[chore(since=None, rows=None)]),
    "notifications that failed before, and are over": replace(WELL, stats=carrying(notifications={"dead": 9})),
}


@pytest.mark.parametrize("case", NOT_YET)
def test_what_may_happen_on_a_good_day_is_not_said(case: str) -> None:
    assert find_issues(NOT_YET[case]) == []


def test_a_silent_worker_works_nothing() -> None:
    seen = replace(WELL, stats=waits("events", SECOND), workers=[worker(SILENT_AFTER)])

    assert [concern.text_id for concern in find_issues(seen)] == ["events unworked", "worker silent"]


def test_what_does_not_mend_itself_comes_first() -> None:
    seen = replace(WELL, listening=False, stats=carrying(events={"dead": 1}, relay={"waiting": 1, "oldest_due": HOUR}))

    assert [concern.text_id for concern in find_issues(seen)] == ["letters left", "relay waiting", "doorbell deaf"]
