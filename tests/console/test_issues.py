"""Issues on the overview: one translated sentence each, with a link to where it can be fixed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal.console.i18n import Translator
from pabal.console.overview import OverviewSnapshot, find_issues
from pabal.events.events import SubscriptionBacklog
from pabal.queue.chores import ChoreRun, overdue_after
from pabal.queue.processes import ProcessDetails, ProcessInfo
from pabal.queue.throughput import LANE_NAMES, ThroughputMinute
from pabal.stats import HubStats, LaneStats, UnhandledEvents
from pabal.status import MAX_WAIT, SILENT_AFTER

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE, SECOND, HOUR = timedelta(), timedelta(seconds=1), timedelta(hours=1)
PUSH = UUID("019a0000-0000-7000-8000-000000000001")


def worker(silent: timedelta = NONE, *lanes: str) -> ProcessInfo:
    return ProcessInfo("host-7", "host", 7, lanes or ("events", "notifications"), NOON, NOON, ProcessDetails(), silent)


def chore(**fields: Any) -> ChoreRun:
    return replace(ChoreRun("purge events", HOUR, SECOND, SECOND, 0, None), **fields)


def stats_of(**lanes: dict[str, Any]) -> HubStats:
    return HubStats(tuple(replace(LaneStats(lane, 0, NONE, 0, 0), **lanes.get(lane, {})) for lane in LANE_NAMES), 0, ())


WELL = OverviewSnapshot(
    listening=True,
    stats=stats_of(),
    throughput={lane: [ThroughputMinute(lane, NOON, 5, 1, 0, SECOND)] for lane in LANE_NAMES},
    workers=[worker()],
    chores=[chore()],
    backlogs=[],
)


def waiting_stats(lane: str, how_long: timedelta) -> HubStats:
    return stats_of(**{lane: {"waiting": 3, "oldest_due": how_long}})


CASES: dict[str, tuple[OverviewSnapshot, str, str]] = {
    "dead letters": (
        replace(WELL, stats=stats_of(events={"dead": 1200})),
        "1,200 unresolved dead letters",
        "/console/dead",
    ),
    "notifications that failed": (
        replace(
            WELL,
            throughput={**WELL.throughput, "notifications": [ThroughputMinute("notifications", NOON, 0, 0, 2, SECOND)]},
        ),
        "2 notifications failed in the last hour",
        "/console/notifications?state=failed",
    ),
    "an old message": (
        replace(WELL, stats=waiting_stats("relay", MAX_WAIT["relay"])),
        "The oldest message has been waiting for its bot for 1 min",
        "/console/relay",
    ),
    "an old event": (
        replace(WELL, stats=waiting_stats("events", MAX_WAIT["events"])),
        "The oldest event has been waiting for 5 min",
        "/console/events?status=pending",
    ),
    "an old notification": (
        replace(WELL, stats=waiting_stats("notifications", MAX_WAIT["notifications"])),
        "The oldest notification has been waiting for 5 min",
        "/console/notifications?state=pending",
    ),
    "events without a worker": (
        replace(WELL, stats=waiting_stats("events", SECOND), workers=[worker(NONE, "notifications")]),
        "3 events are waiting, but no worker is running",
        "/console#workers",
    ),
    "notifications without a worker": (
        replace(WELL, stats=waiting_stats("notifications", SECOND), workers=[]),
        "3 notifications are waiting, but no worker is running",
        "/console#workers",
    ),
    "a silent worker": (
        replace(WELL, workers=[worker(), worker(SILENT_AFTER)]),
        "Worker host-7 has sent no heartbeat for 45 s",
        "/console#workers",
    ),
    "a chore that fails": (
        replace(WELL, chores=[chore(error="no")]),
        "1 chore failed on its last run: purge events",
        "/console#chores",
    ),
    "chores without a worker": (
        replace(WELL, chores=[chore(name=f"number {n}", succeeded_ago=overdue_after(HOUR) + SECOND) for n in range(5)]),
        "5 chores are overdue: number 0, number 1, number 2, …",
        "/console#chores",
    ),
    "events without a consumer": (
        replace(WELL, stats=replace(stats_of(), unhandled=(UnhandledEvents("shop", 4), UnhandledEvents("keep", 0)))),
        "4 events for shop have no handler",
        "/console/events?target=shop&status=pending",
    ),
    "a paused subscription": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "paused", 7)]),
        "A subscription of shop is paused; 7 events are waiting",
        "/console/services/shop",
    ),
    "a disabled subscription": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "disabled", 7)]),
        "A subscription of shop is disabled; 7 events are waiting",
        "/console/services/shop",
    ),
    "a receiver that fails": (
        replace(WELL, backlogs=[SubscriptionBacklog(PUSH, "shop", "resting", 1000)]),
        "Deliveries to shop are suspended after repeated failures; 1,000+ events are waiting",
        "/console/services/shop",
    ),
    "a deaf doorbell": (
        replace(WELL, listening=False),
        "The notification channel (LISTEN) is disconnected; lanes are polled every second",
        "/console/health",
    ),
}


def test_a_healthy_hub_has_no_issues() -> None:
    assert find_issues(WELL) == []


@pytest.mark.parametrize("case", CASES)
def test_an_issue_is_one_sentence_with_a_link(case: str) -> None:
    save_screenshot, sentence, where = CASES[case]

    [issue] = find_issues(save_screenshot)

    assert (issue.translate(Translator("en")), issue.url) == (sentence, where)
    korean = issue.translate(t := Translator("ko"))
    assert "{" not in korean
    values = [f"{value:,}" if isinstance(value, int) else t.translate(value) for value in issue.values.values()]
    assert all(value in korean for value in values)


def test_durations_are_translated() -> None:
    [issue] = find_issues(replace(WELL, stats=waiting_stats("events", HOUR)))

    assert issue.translate(Translator("ko")) == "가장 오래된 이벤트가 1시간 0분 동안 대기하고 있습니다."


NOT_YET: dict[str, OverviewSnapshot] = {
    "a message that waits a little": replace(WELL, stats=waiting_stats("relay", MAX_WAIT["relay"] - SECOND)),
    "an event that waits a little": replace(WELL, stats=waiting_stats("events", MAX_WAIT["events"] - SECOND)),
    "messages without a worker": replace(WELL, stats=waiting_stats("relay", SECOND), workers=[]),
    "no worker and no backlog": replace(WELL, workers=[]),
    "a worker between two reports": replace(WELL, workers=[worker(SILENT_AFTER - SECOND)]),
    "a chore that is a little late": replace(
        WELL, chores=[chore(started_ago=2 * HOUR, succeeded_ago=overdue_after(HOUR))]
    ),
    "a chore that never ran": replace(WELL, chores=[chore(started_ago=None, rows=None)]),
    "notifications that failed before, and are over": replace(WELL, stats=stats_of(notifications={"dead": 9})),
}


@pytest.mark.parametrize("case", NOT_YET)
def test_normal_conditions_are_no_issues(case: str) -> None:
    assert find_issues(NOT_YET[case]) == []


def test_a_silent_worker_serves_no_lane() -> None:
    seen = replace(WELL, stats=waiting_stats("events", SECOND), workers=[worker(SILENT_AFTER)])

    assert [issue.text_id for issue in find_issues(seen)] == [
        "overview.issue.no_worker.events",
        "overview.issue.worker_silent",
    ]


def test_errors_come_before_warnings() -> None:
    seen = replace(WELL, listening=False, stats=stats_of(events={"dead": 1}, relay={"waiting": 1, "oldest_due": HOUR}))

    assert [issue.text_id for issue in find_issues(seen)] == [
        "overview.issue.dead_letters",
        "overview.issue.waiting.relay",
        "overview.issue.listener_disconnected",
    ]
