"""Sight: what a look through a long list finds that goes so far and no further, however rare what it looks for is."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

REACH = 20_000
"""Rows that one look goes through at most."""
FURTHER = 20
"""How much further it goes each time it found too little: what is common is found near."""

Row = TypeVar("Row")
Place = tuple[datetime, UUID]


@dataclass(frozen=True, slots=True)
class Seen:
    """A row that a look came by: one that was meant, or the last one it reached along its road."""

    id: UUID
    created_at: datetime
    is_chosen: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class Sight(Generic[Row]):
    """What a look found. `end` is where to look on, unless there is nothing older; `tired` if it gave up there."""

    rows: list[Row]
    end: Seen | None
    tired: bool


async def look_on(along: Callable[[int], Awaitable[Iterable[Seen]]], limit: int, furthest: int) -> list[Seen]:
    """Look so many rows along every road, a little way first; what is known of `limit` rows, the newest first."""
    most = min(limit, furthest)
    while True:
        seen = known(await along(most))[:limit]
        if most == furthest or len(seen) == limit or not is_tired(seen):
            return seen
        most = min(most * FURTHER, furthest)


def known(seen: Iterable[Seen]) -> list[Seen]:
    """In their order, as far as every road was looked along: the first that ends ends them all."""
    ordered = sorted(seen, key=lambda each: (each.created_at, each.id), reverse=True)
    return ordered[: next((place for place, each in enumerate(ordered, 1) if each.is_last), len(ordered))]


def is_tired(seen: Sequence[Seen]) -> bool:
    return bool(seen) and seen[-1].is_last


def sight_of(rows: list[Row], seen: Sequence[Seen], limit: int) -> Sight[Row]:
    full, tired = len(seen) == limit, is_tired(seen)
    return Sight(rows, seen[-1] if full or tired else None, tired and not full)
