"""A notification's story, from whoever asked for it to the screen it was read on, and what an event made of them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.core.ids import spanned
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.moments import Deed, Moment, Traced, Tried, told

Q = beside(__file__)

FEW = 6
SOME = 20
"""Notifications of an event that are told of one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one notification. `now` is the database's time."""

    now: datetime
    request: Traced
    tries: list[Tried]
    moments: list[Moment]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many ended alike, or wait."""

    state: str
    count: int


@dataclass(frozen=True, slots=True)
class Made:
    """What events made: all of it counted by state, the first of it told."""

    counts: list[Tally]
    stories: list[Story]


async def whatever_begins(tx: Tx, name: str) -> list[UUID]:
    """Every notification whose id begins so; nothing for what cannot be the beginning of an id."""
    span = spanned(name)
    if span is None:
        return []
    low, high = span
    return await tx.column(Q.named, low=low, high=high, limit=FEW)


async def story(tx: Tx, row: UUID) -> Story:
    """Tell the story of one notification."""
    for found in await stories(tx, [row]):
        return found
    raise NotFound(f"there is no notification {row}")


async def stories(tx: Tx, ids: Collection[UUID]) -> list[Story]:
    """Tell the stories of these, the oldest first."""
    asked = [*ids]
    requests = await tx.all(Traced, Q.requests, ids=asked)
    tries = await tx.all(Tried, Q.attempts, ids=asked)
    deeds = await tx.all(Deed, Q.deeds, subjects=[*map(str, asked)])
    now: datetime = await tx.value(Q.now)
    found: list[Story] = []
    for request in requests:
        own = [each for each in tries if each.request_id == request.id]
        done = [each for each in deeds if each.subject == str(request.id)]
        found.append(Story(now, request, own, told(request, own, done)))
    return found


async def made_by(tx: Tx, events: Collection[UUID], correlation: str | None = None) -> Made:
    """What the rules made of these events, and whatever was asked for under the same correlation id."""
    meant = {"events": [*events], "correlation": correlation}
    counts = await tx.all(Tally, Q.tally, **meant)
    first = await tx.column(Q.made, **meant, limit=SOME) if counts else []
    return Made(counts, await stories(tx, first) if first else [])
