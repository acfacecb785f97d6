"""The first page: how each lane is, who works, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.console import chart
from pabal.console.concerns import SILENT_AFTER, OverviewSnapshot, find_issues
from pabal.console.gate import Page
from pabal.console.pages import render_page
from pabal.events.backlog import MAX_BACKLOG_COUNT, list_subscription_backlogs
from pabal.operators.operators import OperatorSession
from pabal.queue import pulse, roll
from pabal.queue.census import LaneStats
from pabal.queue.pulse import ThroughputMinute
from pabal.wiring import Hub

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
        charts=chart,
        format_rate=format_rate,
    )


async def read_overview(hub: Hub) -> OverviewSnapshot:
    count = await hub.stats.read_cached()
    async with hub.autocommit() as tx:
        return OverviewSnapshot(
            listening=hub.doorbell.listening,
            stats=count,
            throughput=await pulse.last_hour_throughput(tx),
            workers=await roll.list_processes(tx),
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
