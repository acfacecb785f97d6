"""The overview: the state of each lane, the workers and chores, and what needs attention."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pabal.console import charts
from pabal.console.access.guards import Page
from pabal.console.first_run import FIRST_RUN_PATH, is_unused
from pabal.console.format import format_age, format_count
from pabal.console.i18n import Translator
from pabal.console.pages import build_url, render_page
from pabal.db.tx import Tx
from pabal.events.events import MAX_BACKLOG_COUNT, SubscriptionBacklog, list_subscription_backlogs
from pabal.hub import Hub
from pabal.notifications.dispatch.missing_transport import WithoutTransport, count_without_transport
from pabal.operators.operators import OperatorSession
from pabal.queue.chores import ChoreRun
from pabal.queue.processes import ProcessInfo, list_processes
from pabal.queue.throughput import ThroughputMinute, last_hour_throughput
from pabal.stats import HubStats, LaneStats
from pabal.status import MAX_WAIT, SILENT_AFTER, WORKER_LANES, LaneProgress, measure_lanes

PENDING_URLS = {
    "relay": "/console/relay",
    "events": "/console/events?status=pending",
    "notifications": "/console/notifications?state=pending",
}
MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """Everything the page shows, read at one moment."""

    listening: bool
    stats: HubStats
    throughput: Mapping[str, Sequence[ThroughputMinute]]
    workers: Sequence[ProcessInfo]
    chores: Sequence[ChoreRun]
    backlogs: Sequence[SubscriptionBacklog]
    is_unused: bool = False
    """Whether nothing has happened in any lane yet."""
    without_transport: WithoutTransport | None = None
    """Notifications for Discord on a hub without a token."""


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem: its text with values, and the page to look at. An error does not resolve itself."""

    text_id: str
    url: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_error: bool = True

    def translate(self, t: Translator) -> str:
        return t(self.text_id, **self.values)


def find_issues(snapshot: OverviewSnapshot) -> list[Issue]:
    """Return what needs attention, errors first."""
    issues = [
        *dead_letter_issues(snapshot),
        *waiting_issues(snapshot),
        *silent_worker_issues(snapshot),
        *chore_issues(snapshot),
        *receiver_issues(snapshot),
        *listener_issues(snapshot),
        *transport_issues(snapshot),
    ]
    return sorted(issues, key=lambda issue: not issue.is_error)


def dead_letter_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Report unresolved dead letters, and notifications that failed in the last hour: those are never resolved."""
    if dead_letters := snapshot.stats.lane("events").dead:
        yield Issue("overview.issue.dead_letters", "/console/dead", {"count": dead_letters})
    if failed := sum(minute.dead for minute in snapshot.throughput["notifications"]):
        yield Issue("overview.issue.notifications_failed", "/console/notifications?state=failed", {"count": failed})


def waiting_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Report lanes whose entries wait too long, or have no worker."""
    lanes_with_worker = {lane for worker in snapshot.workers if worker.silent < SILENT_AFTER for lane in worker.lanes}
    for lane in snapshot.stats.lanes:
        if lane.waiting and lane.name in WORKER_LANES and lane.name not in lanes_with_worker:
            yield Issue(f"overview.issue.no_worker.{lane.name}", "/console#workers", {"count": lane.waiting})
        elif lane.waiting and lane.oldest_due >= MAX_WAIT[lane.name]:
            yield Issue(
                f"overview.issue.waiting.{lane.name}",
                PENDING_URLS[lane.name],
                {"age": format_age(lane.oldest_due)},
                is_error=False,
            )


def silent_worker_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    for worker in snapshot.workers:
        if worker.silent >= SILENT_AFTER:
            values = {"worker": worker.id, "age": format_age(worker.silent)}
            yield Issue("overview.issue.worker_silent", "/console#workers", values)


def chore_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if failing := [run.name for run in snapshot.chores if run.error]:
        yield Issue("overview.issue.chores_failing", "/console#chores", count_and_names(failing))
    if overdue := [run.name for run in snapshot.chores if run.is_overdue]:
        yield Issue("overview.issue.chores_overdue", "/console#chores", count_and_names(overdue))


def receiver_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Report events that are not delivered: their subscription is stopped, or no handler takes them."""
    for backlog in snapshot.backlogs:
        values = {"service": backlog.service, "count": cap_count(backlog.count)}
        yield Issue(
            f"overview.issue.receiver.{backlog.state}", f"/console/services/{backlog.service}", values, is_error=False
        )
    for unhandled in snapshot.stats.unhandled:
        if unhandled.count:
            url = build_url("/console/events", target=unhandled.service, status="pending")
            yield Issue("overview.issue.unhandled", url, {"service": unhandled.service, "count": unhandled.count})


def listener_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if not snapshot.listening:
        yield Issue("overview.issue.listener_disconnected", "/console/health", is_error=False)


def transport_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Report that no Discord token is set, once notifications needed one."""
    counts = snapshot.without_transport
    if counts is None:
        return
    if counts.waiting:
        yield Issue("overview.issue.no_transport.waiting", PENDING_URLS["notifications"], {"count": counts.waiting})
    if counts.suppressed:
        url = "/console/notifications?state=suppressed"
        yield Issue("overview.issue.no_transport.suppressed", url, {"count": counts.suppressed}, is_error=False)


def count_and_names(names: Sequence[str]) -> dict[str, int | str]:
    """Return the number of names and the first few of them."""
    more = ", …" if len(names) > MAX_NAMES else ""
    return {"count": len(names), "names": ", ".join(names[:MAX_NAMES]) + more}


def cap_count(count: int) -> int | str:
    """Return the count, or `1,000+` where counting stopped."""
    return f"{format_count(count)}+" if count >= MAX_BACKLOG_COUNT else count


LANE_URLS = {"relay": "/console/relay", "events": "/console/events", "notifications": "/console/notifications"}
DEAD_URLS = {"events": "/console/dead", "notifications": "/console/notifications?state=failed"}


@dataclass(frozen=True, slots=True)
class LaneCard:
    """A lane with its rates and its last hour."""

    progress: LaneProgress
    minutes: Sequence[ThroughputMinute]

    @property
    def lane(self) -> LaneStats:
        return self.progress.lane

    @property
    def url(self) -> str:
        return LANE_URLS[self.lane.name]

    @property
    def dead_url(self) -> str | None:
        """The page with the failed entries of this lane. Relay messages expire instead of failing."""
        return DEAD_URLS.get(self.lane.name)


async def overview_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    snapshot = await read_overview(hub)
    cards = [
        LaneCard(progress, snapshot.throughput[progress.lane.name])
        for progress in measure_lanes(snapshot.stats, snapshot.throughput, snapshot.backlogs)
    ]
    return render_page(
        request,
        "overview.html",
        session=session,
        cards=cards,
        issues=find_issues(snapshot),
        first_run_path=FIRST_RUN_PATH if snapshot.is_unused else "",
        workers=snapshot.workers,
        failing_chores=[run for run in snapshot.chores if run.error or run.is_overdue],
        healthy_chores=[run for run in snapshot.chores if not run.error and not run.is_overdue],
        silent_after=SILENT_AFTER,
        charts=charts,
        format_rate=format_rate,
    )


async def read_overview(hub: Hub) -> OverviewSnapshot:
    stats = await hub.stats.read_cached()
    async with hub.autocommit() as tx:
        return OverviewSnapshot(
            listening=hub.doorbell.listening,
            stats=stats,
            throughput=await last_hour_throughput(tx),
            workers=await list_processes(tx),
            chores=await hub.chores.list_runs(tx),
            backlogs=await list_subscription_backlogs(tx),
            is_unused=await is_unused(tx),
            without_transport=await read_without_transport(hub, tx),
        )


async def read_without_transport(hub: Hub, tx: Tx) -> WithoutTransport | None:
    return None if hub.settings.has_discord_transport else await count_without_transport(tx)


def format_rate(number: float) -> str:
    """Format a rate per minute, with one decimal below 10."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"  # noqa: PLR2004 decimals are noise from there on


PAGES = (Page("/console", overview_page),)
