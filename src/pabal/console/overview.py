"""The first page: how each lane is, who works, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from pabal.console import chart
from pabal.console.concerns import QUIET, Picture, concerns
from pabal.console.gate import Look
from pabal.console.pages import page
from pabal.events.backlog import MOST, backlogs
from pabal.operators.operators import Session
from pabal.queue import pulse, roll
from pabal.queue.census import LaneCount
from pabal.queue.pulse import Beat
from pabal.wiring import Hub

RECENT = 5
"""Minutes a pace is taken from, the present one included."""
MINUTE = timedelta(minutes=1)
ROOMS = {"relay": "/console/relay", "events": "/console/events", "notifications": "/console/notifications"}
DEAD = {"events": "/console/dead", "notifications": "/console/notifications?state=failed"}


@dataclass(frozen=True, slots=True)
class Card:
    """A lane: what it carries, how fast, its last hour.

    `held` of what waits is taken by nobody; `drains` is how long the rest will take, or None where nobody can say.
    """

    lane: LaneCount
    beats: Sequence[Beat]
    done: float
    failed: float
    held: int
    drains: timedelta | None

    @property
    def room(self) -> str:
        return ROOMS[self.lane.name]

    @property
    def dead(self) -> str | None:
        """Where the dead of this lane lie; no message ever dies."""
        return DEAD.get(self.lane.name)


async def show(hub: Hub, request: Request, session: Session) -> Response:
    seen = await look(hub)
    cards = [card(lane, seen.hour[lane.name], held(seen) if lane.name == "events" else 0) for lane in seen.count.lanes]
    return page(
        request,
        "overview.html",
        session=session,
        cards=cards,
        concerns=concerns(seen),
        workers=seen.workers,
        wrong=[run for run in seen.chores if run.error or run.overdue],
        well=[run for run in seen.chores if not run.error and not run.overdue],
        quiet=QUIET,
        chart=chart,
        pace=pace,
    )


async def look(hub: Hub) -> Picture:
    count = await hub.census.glance()
    async with hub.autocommit() as tx:
        return Picture(
            listening=hub.doorbell.listening,
            count=count,
            hour=await pulse.hour(tx),
            workers=await roll.every(tx),
            chores=await hub.chores.standing(tx),
            backlogs=await backlogs(tx),
        )


def held(seen: Picture) -> int:
    """Events that wait for a receiver who is sent nothing, or that no handler takes.

    Two subscriptions of one service may wait for the same events, so of each service the most that is known counts.
    Where there are more than were counted, it may be all that waits.
    """
    if any(each.count >= MOST for each in seen.backlogs):
        return seen.count.lane("events").waiting
    most: dict[str, int] = {}
    for each in (*seen.backlogs, *seen.count.unhandled):
        most[each.service] = max(each.count, most.get(each.service, 0))
    return sum(most.values())


def card(lane: LaneCount, beats: Sequence[Beat], held: int = 0) -> Card:
    """A lane with its pace: that of the last minutes, because what was an hour ago says little of now."""
    recent = beats[-RECENT:]
    minutes = sum((beat.lasted for beat in recent), timedelta()) / MINUTE or 1.0
    done, dead = sum(beat.done for beat in recent) / minutes, sum(beat.dead for beat in recent) / minutes
    failed = sum(beat.failed for beat in recent) / minutes + dead
    ends, moving = done + dead, max(lane.waiting - held, 0)
    return Card(lane, beats, done, failed, held, MINUTE * (moving / ends) if ends and moving else None)


def pace(number: float) -> str:
    """So many a minute: a tenth where there are few."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"  # noqa: PLR2004 from there on it is noise


PAGES = (Look("/console", show),)
