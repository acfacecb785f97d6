"""What is wrong is said in words, in both languages, and leads to where it is mended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.console.concerns import LONG, QUIET, Picture, concerns
from pabal.console.texts import Texts
from pabal.events.backlog import Backlog
from pabal.queue.census import Count, LaneCount, Unhandled
from pabal.queue.chores import LATE, Run
from pabal.queue.pulse import LANES, Beat
from pabal.queue.roll import Entry

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE, SECOND, HOUR = timedelta(), timedelta(seconds=1), timedelta(hours=1)
PUSH = UUID("019a0000-0000-7000-8000-000000000001")


def worker(silent: timedelta = NONE, *lanes: str) -> Entry:
    return Entry("host-7", "host", 7, lanes or ("events", "notifications"), NOON, NOON, {}, silent)


def chore(**how: Any) -> Run:
    return replace(Run("purge events", HOUR, SECOND, 0, None), **how)


def carrying(**lanes: dict[str, Any]) -> Count:
    return Count(tuple(replace(LaneCount(lane, 0, NONE, 0, 0), **lanes.get(lane, {})) for lane in LANES), 0, ())


WELL = Picture(
    listening=True,
    count=carrying(),
    hour={lane: [Beat(lane, NOON, 5, 1, 0, SECOND)] for lane in LANES},
    workers=[worker()],
    chores=[chore()],
    backlogs=[],
)


def waits(lane: str, how_long: timedelta) -> Count:
    return carrying(**{lane: {"waiting": 3, "oldest_due": how_long}})


CASES: dict[str, tuple[Picture, str, str]] = {
    "dead letters": (
        replace(WELL, count=carrying(events={"dead": 1200})),
        "Dead letters that nobody has seen to: 1,200.",
        "/console/dead",
    ),
    "notifications that failed": (
        replace(WELL, hour={**WELL.hour, "notifications": [Beat("notifications", NOON, 0, 0, 2, SECOND)]}),
        "Notifications that could not be delivered in the last hour: 2.",
        "/console/notifications?state=failed",
    ),
    "an old message": (
        replace(WELL, count=waits("relay", LONG["relay"])),
        "The oldest message has waited 1 min for its bot.",
        "/console/relay",
    ),
    "an old event": (
        replace(WELL, count=waits("events", LONG["events"])),
        "The oldest event has waited 5 min.",
        "/console/events?status=pending",
    ),
    "an old notification": (
        replace(WELL, count=waits("notifications", LONG["notifications"])),
        "The oldest notification has waited 5 min.",
        "/console/notifications?state=pending",
    ),
    "events without a worker": (
        replace(WELL, count=waits("events", SECOND), workers=[worker(NONE, "notifications")]),
        "Events wait (3), and no worker is there to take them.",
        "/console#workers",
    ),
    "notifications without anybody": (
        replace(WELL, count=waits("notifications", SECOND), workers=[]),
        "Notifications wait (3), and no worker is there to take them.",
        "/console#workers",
    ),
    "a silent worker": (
        replace(WELL, workers=[worker(), worker(QUIET)]),
        "The worker host-7 has not been heard of for 45.0 s.",
        "/console#workers",
    ),
    "a chore that fails": (
        replace(WELL, chores=[chore(error="no")]),
        "Chores that failed when they last ran (1): purge events",
        "/console#chores",
    ),
    "chores that nobody does": (
        replace(WELL, chores=[chore(name=f"number {n}", since=HOUR + LATE + SECOND) for n in range(5)]),
        "Chores that nobody has done in time (5): number 0, number 1, number 2, …",
        "/console#chores",
    ),
    "events nobody takes": (
        replace(WELL, count=replace(carrying(), unhandled=(Unhandled("shop", 4), Unhandled("keep", 0)))),
        "Events for shop that none of its handlers takes: 4.",
        "/console/events?target=shop&status=pending",
    ),
    "a paused subscription": (
        replace(WELL, backlogs=[Backlog(PUSH, "shop", "paused", 7)]),
        "A subscription of shop is paused, and events wait for it: 7.",
        "/console/services/shop",
    ),
    "a subscription that was given up": (
        replace(WELL, backlogs=[Backlog(PUSH, "shop", "disabled", 7)]),
        "A subscription of shop was given up, and events wait for it: 7.",
        "/console/services/shop",
    ),
    "a receiver that fails": (
        replace(WELL, backlogs=[Backlog(PUSH, "shop", "resting", 1000)]),
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
    assert concerns(WELL) == []


@pytest.mark.parametrize("case", CASES)
def test_each_is_one_sentence_and_a_way(case: str) -> None:
    picture, sentence, where = CASES[case]

    [concern] = concerns(picture)

    assert (concern.told(Texts("en")), concern.where) == (sentence, where)
    korean = concern.told(t := Texts("ko"))
    assert "{" not in korean
    assert all(t.retell(fact) in korean for fact in concern.facts.values())


def test_how_long_is_said_in_the_language_of_the_page() -> None:
    [concern] = concerns(replace(WELL, count=waits("events", HOUR)))

    assert concern.told(Texts("ko")) == "가장 오래된 이벤트가 1시간 0분째 기다립니다."


NOT_YET: dict[str, Picture] = {
    "a message that waits a little": replace(WELL, count=waits("relay", LONG["relay"] - SECOND)),
    "an event that waits a little": replace(WELL, count=waits("events", LONG["events"] - SECOND)),
    "messages without a worker": replace(WELL, count=waits("relay", SECOND), workers=[]),
    "nobody there, and nothing to do": replace(WELL, workers=[]),
    "a worker between two reports": replace(WELL, workers=[worker(QUIET - SECOND)]),
    "a chore that is a little late": replace(WELL, chores=[chore(since=HOUR + LATE)]),
    "a chore that never ran": replace(WELL, chores=[chore(since=None, rows=None)]),
    "notifications that failed before, and are over": replace(WELL, count=carrying(notifications={"dead": 9})),
}


@pytest.mark.parametrize("case", NOT_YET)
def test_what_may_happen_on_a_good_day_is_not_said(case: str) -> None:
    assert concerns(NOT_YET[case]) == []


def test_a_silent_worker_works_nothing() -> None:
    seen = replace(WELL, count=waits("events", SECOND), workers=[worker(QUIET)])

    assert [concern.says for concern in concerns(seen)] == ["events unworked", "worker silent"]


def test_what_does_not_mend_itself_comes_first() -> None:
    seen = replace(WELL, listening=False, count=carrying(events={"dead": 1}, relay={"waiting": 1, "oldest_due": HOUR}))

    assert [concern.says for concern in concerns(seen)] == ["letters left", "relay waiting", "doorbell deaf"]
