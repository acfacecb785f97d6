"""The first page: how each lane is, who works, and what is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pabal.console import charts
from pabal.console.format import format_age, format_count
from pabal.console.guards import Page
from pabal.console.i18n import Translator
from pabal.console.pages import build_url, render_page
from pabal.events.events import MAX_BACKLOG_COUNT, SubscriptionBacklog, list_subscription_backlogs
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.queue.chores import ChoreRun
from pabal.queue.processes import HEARTBEAT_INTERVAL, ProcessInfo, list_processes
from pabal.queue.throughput import ThroughputMinute, last_hour_throughput
from pabal.stats import HubStats, LaneStats

MAX_WAIT = {"relay": timedelta(minutes=1), "events": timedelta(minutes=5), "notifications": timedelta(minutes=5)}
"""How long the oldest of a lane may be due before somebody should look. A message's callback lives for a minute."""
PENDING_URLS = {
    "relay": "/console/relay",
    "events": "/console/events?status=pending",
    "notifications": "/console/notifications?state=pending",
}
WORKER_LANES = ("events", "notifications")
"""The lanes that need a worker; messages wait for their bots."""
SILENT_AFTER = 3 * HEARTBEAT_INTERVAL
"""Three reports missed: who is silent for so long is hung, cut off or dead."""
MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """Everything that is looked at, at one moment."""

    listening: bool
    stats: HubStats
    throughput: Mapping[str, Sequence[ThroughputMinute]]
    workers: Sequence[ProcessInfo]
    chores: Sequence[ChoreRun]
    backlogs: Sequence[SubscriptionBacklog]


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that is wrong: the sentence, what it speaks of, where to go. What is `bad` does not mend itself."""

    text_id: str
    url: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_error: bool = True

    def translate(self, t: Translator) -> str:
        return t(self.text_id).format(**{name: t.translate(fact) for name, fact in self.values.items()})


def find_issues(snapshot: OverviewSnapshot) -> list[Issue]:
    """What somebody should look at, the worst first."""
    found = [
        *dead_letter_issues(snapshot),
        *waiting_issues(snapshot),
        *silent_worker_issues(snapshot),
        *chore_issues(snapshot),
        *receiver_issues(snapshot),
        *listener_issues(snapshot),
    ]
    return sorted(found, key=lambda concern: not concern.is_error)


def dead_letter_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Letters until somebody has seen to them; of notifications, which stay failed, those of the last hour."""
    if letters := snapshot.stats.lane("events").dead:
        yield Issue("letters left", "/console/dead", {"count": format_count(letters)})
    if notices := sum(beat.dead for beat in snapshot.throughput["notifications"]):
        yield Issue("notices undelivered", "/console/notifications?state=failed", {"count": format_count(notices)})


def waiting_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """What waits long, or for nobody."""
    worked = {lane for worker in snapshot.workers if worker.silent < SILENT_AFTER for lane in worker.lanes}
    for lane in snapshot.stats.lanes:
        if lane.waiting and lane.name in WORKER_LANES and lane.name not in worked:
            yield Issue(f"{lane.name} unworked", "/console#workers", {"count": format_count(lane.waiting)})
        elif lane.waiting and lane.oldest_due >= MAX_WAIT[lane.name]:
            yield Issue(
                f"{lane.name} waiting", PENDING_URLS[lane.name], {"age": format_age(lane.oldest_due)}, is_error=False
            )


def silent_worker_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    for worker in snapshot.workers:
        if worker.silent >= SILENT_AFTER:
            yield Issue("worker silent", "/console#workers", {"worker": worker.id, "age": format_age(worker.silent)})


def chore_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if failing := [run.name for run in snapshot.chores if run.error]:
        yield Issue("chores failing", "/console#chores", count_and_names(failing))
    if late := [run.name for run in snapshot.chores if run.is_overdue]:
        yield Issue("chores overdue", "/console#chores", count_and_names(late))


def receiver_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Events that wait for a receiver who gets none, or that no handler takes."""
    for backlog in snapshot.backlogs:
        facts = {"service": backlog.service, "count": format_capped_count(backlog.count)}
        yield Issue(f"receiver {backlog.state}", f"/console/services/{backlog.service}", facts, is_error=False)
    for left in snapshot.stats.unhandled:
        if left.count:
            facts = {"service": left.service, "count": format_count(left.count)}
            yield Issue("events unhandled", build_url("/console/events", target=left.service, status="pending"), facts)


def listener_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if not snapshot.listening:
        yield Issue("doorbell deaf", "/console/health", is_error=False)


def count_and_names(names: Sequence[str]) -> dict[str, str]:
    """How many, and the first of them."""
    more = ", …" if len(names) > MAX_NAMES else ""
    return {"count": format_count(len(names)), "names": ", ".join(names[:MAX_NAMES]) + more}


def format_capped_count(number: int) -> str:
    return f"{format_count(number)}+" if number >= MAX_BACKLOG_COUNT else format_count(number)


RATE_MINUTES = 5
"""Minutes a pace is taken from, the present one included."""
MINUTE = timedelta(minutes=1)
LANE_URLS = {"relay": "/console/relay", "events": "/console/events", "notifications": "/console/notifications"}
DEAD_URLS = {"events": "/console/dead", "notifications": "/console/notifications?state=failed"}


@dataclass(frozen=True, slots=True)
class LaneCard:
    """A lane: what it carries, how fast, its last hour.

    `held` of what waits is taken by nobody; `drains` is how long the rest will take, or None where nobody can say.
    """

    lane: LaneStats
    minutes: Sequence[ThroughputMinute]
    done_per_minute: float
    failed_per_minute: float
    blocked: int
    drain_time: timedelta | None

    @property
    def url(self) -> str:
        return LANE_URLS[self.lane.name]

    @property
    def dead_url(self) -> str | None:
        """Where the dead of this lane lie; no message ever dies."""
        return DEAD_URLS.get(self.lane.name)


async def overview_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    seen = await read_overview(hub)
    cards = [
        lane_card(lane, seen.throughput[lane.name], count_blocked_events(seen) if lane.name == "events" else 0)
        for lane in seen.stats.lanes
    ]
    return render_page(
        request,
        "overview.html",
        session=session,
        cards=cards,
        issues=find_issues(seen),
        workers=seen.workers,
        failing_chores=[run for run in seen.chores if run.error or run.is_overdue],
        healthy_chores=[run for run in seen.chores if not run.error and not run.is_overdue],
        silent_after=SILENT_AFTER,
        charts=charts,
        format_rate=format_rate,
    )


async def read_overview(hub: Hub) -> OverviewSnapshot:
    count = await hub.stats.read_cached()
    async with hub.autocommit() as tx:
        return OverviewSnapshot(
            listening=hub.doorbell.listening,
            stats=count,
            throughput=await last_hour_throughput(tx),
            workers=await list_processes(tx),
            chores=await hub.chores.list_runs(tx),
            backlogs=await list_subscription_backlogs(tx),
        )


def count_blocked_events(snapshot: OverviewSnapshot) -> int:
    """Events that wait for a receiver who is sent nothing, or that no handler takes.

    Two subscriptions of one service may wait for the same events, so of each service the most that is known counts.
    Where there are more than were counted, it may be all that waits.
    """
    if any(each.count >= MAX_BACKLOG_COUNT for each in snapshot.backlogs):
        return snapshot.stats.lane("events").waiting
    most: dict[str, int] = {}
    for each in (*snapshot.backlogs, *snapshot.stats.unhandled):
        most[each.service] = max(each.count, most.get(each.service, 0))
    return sum(most.values())


def lane_card(lane: LaneStats, throughput: Sequence[ThroughputMinute], blocked: int = 0) -> LaneCard:
    """A lane with its pace: that of the last minutes, because what was an hour ago says little of now."""
    recent = throughput[-RATE_MINUTES:]
    minutes = sum((beat.elapsed for beat in recent), timedelta()) / MINUTE or 1.0
    done, dead = sum(beat.done for beat in recent) / minutes, sum(beat.dead for beat in recent) / minutes
    failed = sum(beat.failed for beat in recent) / minutes + dead
    ends, moving = done + dead, max(lane.waiting - blocked, 0)
    return LaneCard(lane, throughput, done, failed, blocked, MINUTE * (moving / ends) if ends and moving else None)


def format_rate(number: float) -> str:
    """So many a minute: a tenth where there are few."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"  # noqa: PLR2004 from there on it is noise


PAGES = (Page("/console", overview_page),)
