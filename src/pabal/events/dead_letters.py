"""Dead letters: what failed for good, where a person looks, and how they say that it is seen to."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.events import like_pattern

Q = load_queries(__file__)

DeadLetterState = Literal["unresolved", "resolved", "all"]
MAX_DEAD_LETTER_GROUPS = 100
RECENT_HOURS = 24
"""Hours that the recent deaths of a group are counted in."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
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
class DeadLetterDetail(DeadLetter):
    """A letter with everything that is known of its event and its end."""

    original_payload: dict[str, Any]
    original_envelope: dict[str, Any]
    error_stack: str | None
    error_history: Sequence[dict[str, Any]] | None
    resolved_by: UUID | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Letters that share what went wrong."""

    signature: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example: UUID
    event_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeadLetterHour:
    """How many letters of a group are from one hour, so many hours ago."""

    signature: str
    hours_ago: int
    count: int


@dataclass(frozen=True, slots=True)
class DeadLetterBacklog:
    """A service whose open letters are many, and what most of them say."""

    service: str
    count: int
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
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
        return said | {"event_type": like_pattern(self.event_type) if self.event_type else None}


async def list_dead_letters(
    tx: Tx,
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[DeadLetter]:
    """The newest first; `before` is where the page before ended."""
    at, row = before or (None, None)
    said = criteria.columns() | dead_letter_state_params(state)
    return await tx.all(DeadLetter, Q.list_dead_letters, **said, before=at, before_id=row, limit=limit, reach=None)


async def group_dead_letters(
    tx: Tx,
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    limit: int = MAX_DEAD_LETTER_GROUPS,
    scan_limit: int | None = None,
) -> list[DeadLetterGroup]:
    """What is broken: the letters by what they share, the most frequent first; of the newest `reach`, or of all."""
    return await tx.all(
        DeadLetterGroup,
        Q.group_dead_letters,
        **criteria.columns(),
        **dead_letter_state_params(state),
        limit=limit,
        reach=scan_limit,
    )


async def count_dead_letters_by_hour(
    tx: Tx,
    signatures: Sequence[str],
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    scan_limit: int | None = None,
) -> dict[str, list[int]]:
    """How many of each of these groups died in each hour of the last day, the latest hour last."""
    hours = {each: [0] * RECENT_HOURS for each in signatures}
    said = {name: value for name, value in criteria.columns().items() if name != "signature"}
    for each in await tx.all(
        DeadLetterHour,
        Q.count_dead_letters_by_hour,
        **said,
        **dead_letter_state_params(state),
        signatures=signatures,
        hours=RECENT_HOURS,
        reach=scan_limit,
    ):
        hours[each.signature][RECENT_HOURS - 1 - each.hours_ago] = each.count
    return hours


async def list_dead_letter_backlogs(tx: Tx, min_count: int) -> list[DeadLetterBacklog]:
    """Services with at least so many letters that nobody has seen to."""
    return await tx.all(DeadLetterBacklog, Q.list_dead_letter_backlogs, least=min_count)


async def find_dead_letter(tx: Tx, dead_letter_id: UUID) -> DeadLetterDetail:
    letter = await tx.maybe(DeadLetterDetail, Q.find_dead_letter, id=dead_letter_id)
    if letter is None:
        raise NotFound(f"there is no dead letter {dead_letter_id}")
    return letter


async def lock_open_dead_letters(tx: Tx, ids: Sequence[UUID]) -> list[UUID]:
    """Those of these that are still open; nobody else closes them before this transaction ends."""
    return await tx.column(Q.lock_open_dead_letters, ids=ids)


async def resolve_dead_letters(
    tx: Tx, ids: Sequence[UUID], actor: Actor, note: str, *, resolved_by: UUID | None = None
) -> list[UUID]:
    """Say of these that they are seen to; gives those that were still open. Their events stay as they are.

    `resolved_by` is for somebody with a row in auth.users; the actor's name is kept of everybody.
    """
    try:
        return await tx.column(
            Q.resolve_dead_letters,
            ids=ids,
            note=note,
            resolved_by=resolved_by,
            actor=actor.name,
            client_ip=actor.client_ip,
            request_id=actor.request_id,
        )
    except ForeignKeyViolation:
        raise Invalid.of_field("resolved_by", f"there is nobody {resolved_by} in auth.users") from None


async def resolve_dead_letter(
    tx: Tx, dead_letter_id: UUID, actor: Actor, note: str, *, resolved_by: UUID | None = None
) -> DeadLetterDetail:
    """The same for one, which must be there and open."""
    if not await resolve_dead_letters(tx, [dead_letter_id], actor, note, resolved_by=resolved_by):
        letter = await find_dead_letter(tx, dead_letter_id)
        raise Conflict(already_closed_message(letter.replayed_at is not None, letter.resolved_by_actor))
    return await find_dead_letter(tx, dead_letter_id)


async def purge_dead_letters(tx: Tx, keep: timedelta, batch: int) -> int:
    """Delete what was resolved longer than `keep` ago. What nobody has resolved stays."""
    return await tx.run(Q.purge_dead_letters, keep=keep, batch=batch)


async def database_now(tx: Tx) -> datetime:
    """The database's time, which `since` and `until` are held against."""
    return await tx.value(Q.database_now)


def already_closed_message(is_replayed: bool, actor_name: str | None) -> str:
    """What to say of a letter that somebody has dealt with."""
    return f"the dead letter was {'replayed' if is_replayed else 'resolved'} already" + (
        f", by {actor_name}" if actor_name else ""
    )


def dead_letter_state_params(state: DeadLetterState) -> dict[str, bool]:
    return {"open": state != "resolved", "ended": state != "unresolved"}
