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
from pabal.events.backlog import backlogs
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
    """A lane: what it carries, how fast, its last hour. `drains` is None where nobody can say when it will be empty."""

    lane: LaneCount
    beats: Sequence[Beat]
    done: float
    failed: float
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
    cards = [card(lane, seen.hour[lane.name]) for lane in seen.count.lanes]
    return page(
        request,
        "overview.html",
        session=session,
        cards=cards,
        concerns=concerns(seen),
        workers=seen.workers,
        chores=seen.chores,
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


def card(lane: LaneCount, beats: Sequence[Beat]) -> Card:
    """A lane with its pace: that of the last minutes, because what was an hour ago says little of now."""
    recent = beats[-RECENT:]
    minutes = sum((beat.lasted for beat in recent), timedelta()) / MINUTE or 1.0
    done, dead = sum(beat.done for beat in recent) / minutes, sum(beat.dead for beat in recent) / minutes
    failed = sum(beat.failed for beat in recent) / minutes + dead
    ends = done + dead
    return Card(lane, beats, done, failed, MINUTE * (lane.waiting / ends) if ends else None)


def pace(number: float) -> str:
    """So many a minute: a tenth where there are few."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"  # noqa: PLR2004 from there on it is noise


PAGES = (Look("/console", show),)
