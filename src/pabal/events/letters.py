"""Dead letters: what failed for good, where a person looks, and how they say that it is seen to."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.faults import Orphan
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.read import as_like

Q = beside(__file__)

State = Literal["unresolved", "resolved", "all"]
MOST_GROUPS = 100
DAY = 24
"""Hours that the recent deaths of a group are counted in."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One death of one event, as a list shows it."""

    id: UUID
    event_id: UUID | None
    original_event_id: UUID
    origin_id: UUID
    death: int
    original_event_type: str
    original_source_service: str
    original_target_service: str | None
    error_message: str
    error_code: str | None
    signature: str
    total_retry_count: int
    failed_at: datetime
    resolved_at: datetime | None
    resolved_by_actor: str | None
    resolution_notes: str | None
    replayed_at: datetime | None
    replay_count: int


@dataclass(frozen=True, slots=True)
class WholeLetter(Letter):
    """A letter with everything that is known of its event and its end."""

    original_payload: dict[str, Any]
    original_envelope: dict[str, Any]
    error_stack: str | None
    error_history: Sequence[dict[str, Any]] | None
    resolved_by: UUID | None


@dataclass(frozen=True, slots=True)
class Group:
    """Letters that share what went wrong."""

    signature: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example: UUID
    event_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class Hour:
    """How many letters of a group are from one hour, so many hours ago."""

    signature: str
    ago: int
    count: int


@dataclass(frozen=True, slots=True)
class Pile:
    """A service whose open letters are many, and what most of them say."""

    service: str
    count: int
    error: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters; `event_type` may hold *. What is not said does not matter."""

    event_type: str | None = None
    source: str | None = None
    target: str | None = None
    signature: str | None = None
    error_code: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def columns(self) -> dict[str, Any]:
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return said | {"event_type": as_like(self.event_type) if self.event_type else None}


async def every(
    tx: Tx,
    chosen: Filter,
    state: State = "unresolved",
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Letter]:
    """The newest first; `before` is where the page before ended."""
    at, row = before or (None, None)
    said = chosen.columns() | halves(state)
    return await tx.all(Letter, Q.list, **said, before=at, before_id=row, limit=limit, reach=None)


async def groups(
    tx: Tx, chosen: Filter, state: State = "unresolved", *, limit: int = MOST_GROUPS, reach: int | None = None
) -> list[Group]:
    """What is broken: the letters by what they share, the most frequent first; of the newest `reach`, or of all."""
    return await tx.all(Group, Q.groups, **chosen.columns(), **halves(state), limit=limit, reach=reach)


async def recent(
    tx: Tx, signatures: Sequence[str], chosen: Filter, state: State = "unresolved", *, reach: int | None = None
) -> dict[str, list[int]]:
    """How many of each of these groups died in each hour of the last day, the latest hour last."""
    hours = {each: [0] * DAY for each in signatures}
    said = {name: value for name, value in chosen.columns().items() if name != "signature"}
    for each in await tx.all(Hour, Q.recent, **said, **halves(state), signatures=signatures, hours=DAY, reach=reach):
        hours[each.signature][DAY - 1 - each.ago] = each.count
    return hours


async def piles(tx: Tx, least: int) -> list[Pile]:
    """Services with at least so many letters that nobody has seen to."""
    return await tx.all(Pile, Q.piles, least=least)


async def find(tx: Tx, letter_id: UUID) -> WholeLetter:
    letter = await tx.maybe(WholeLetter, Q.find, id=letter_id)
    if letter is None:
        raise NotFound(f"there is no dead letter {letter_id}")
    return letter


async def hold(tx: Tx, ids: Sequence[UUID]) -> list[UUID]:
    """Those of these that are still open; nobody else closes them before this transaction ends."""
    return await tx.column(Q.hold, ids=ids)


async def resolve(tx: Tx, ids: Sequence[UUID], by: Actor, note: str, *, resolved_by: UUID | None = None) -> list[UUID]:
    """Say of these that they are seen to; gives those that were still open. Their events stay as they are.

    `resolved_by` is for somebody with a row in auth.users; the actor's name is kept of everybody.
    """
    try:
        return await tx.column(
            Q.resolve,
            ids=ids,
            note=note,
            resolved_by=resolved_by,
            actor=by.name,
            client_ip=by.client_ip,
            request_id=by.request_id,
        )
    except Orphan:
        raise Invalid.one("resolved_by", f"there is nobody {resolved_by} in auth.users") from None


async def resolve_one(tx: Tx, letter_id: UUID, by: Actor, note: str, *, resolved_by: UUID | None = None) -> WholeLetter:
    """The same for one, which must be there and open."""
    if not await resolve(tx, [letter_id], by, note, resolved_by=resolved_by):
        letter = await find(tx, letter_id)
        raise Conflict(closed(letter.replayed_at is not None, letter.resolved_by_actor))
    return await find(tx, letter_id)


async def purge(tx: Tx, keep: timedelta, batch: int) -> int:
    """Delete what was resolved longer than `keep` ago. What nobody has resolved stays."""
    return await tx.run(Q.purge, keep=keep, batch=batch)


async def clock(tx: Tx) -> datetime:
    """The database's time, which `since` and `until` are held against."""
    return await tx.value(Q.now)


def closed(replayed: bool, who: str | None) -> str:
    """What to say of a letter that somebody has dealt with."""
    return f"the dead letter was {'replayed' if replayed else 'resolved'} already" + (f", by {who}" if who else "")


def halves(state: State) -> dict[str, bool]:
    return {"open": state != "resolved", "ended": state != "unresolved"}
