"""Dead letters: deliveries that failed for good. Operators list, group, resolve and replay them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.error_history import FailedAttempt, parse_error_history
from pabal.events.events import like_pattern

Q = load_queries(__file__)

DeadLetterState = Literal["unresolved", "resolved", "all"]
MAX_DEAD_LETTER_GROUPS = 100
RECENT_HOURS = 24
"""How many hours `count_dead_letters_by_hour` covers."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One final failure of an event; `death` counts them. Dead letters with the same cause share a `signature`."""

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
    """A dead letter with the payload of its event and the error of each attempt."""

    original_payload: dict[str, Any]
    original_envelope: dict[str, Any]
    error_stack: str | None
    error_history: Sequence[FailedAttempt] = field(metadata={"parse": parse_error_history})
    resolved_by: UUID | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same signature. `example` is the newest of them."""

    signature: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    example: UUID
    event_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeadLetterHour:
    """The number of dead letters of a group in one hour."""

    signature: str
    hours_ago: int
    count: int


@dataclass(frozen=True, slots=True)
class DeadLetterBacklog:
    """A service with many unresolved dead letters, and their most frequent error."""

    service: str
    count: int
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters. `event_type` may contain `*`; None matches everything."""

    event_type: str | None = None
    source: str | None = None
    target: str | None = None
    signature: str | None = None
    error_code: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def columns(self) -> dict[str, Any]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return columns | {"event_type": like_pattern(self.event_type) if self.event_type else None}


@dataclass(frozen=True, slots=True)
class DeadLetterAccess:
    """Which dead letters a caller may see: of events sent to `consumer` or by `publisher`, or all."""

    consumer: str | None = None
    publisher: str | None = None
    all_services: bool = False

    def allows(self, dead_letter: DeadLetter) -> bool:
        return (
            self.all_services
            or self.may_replay(dead_letter)
            or (self.publisher is not None and dead_letter.original_source_service == self.publisher)
        )

    def may_replay(self, dead_letter: DeadLetter) -> bool:
        """A service may replay what was sent to it: it is the one that gets it again."""
        return self.all_services or (self.consumer is not None and dead_letter.original_target_service == self.consumer)


ALL_DEAD_LETTERS = DeadLetterAccess(all_services=True)


async def list_dead_letters(
    tx: Tx,
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    access: DeadLetterAccess = ALL_DEAD_LETTERS,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[DeadLetter]:
    """List dead letters that `access` allows, the newest first. `before` is the end of the previous page."""
    failed_at, dead_letter_id = before or (None, None)
    if not access.all_services:
        return await tx.all(
            DeadLetter,
            Q.list_service_dead_letters,
            **criteria.columns(),
            **dead_letter_state_params(state),
            consumer=access.consumer,
            publisher=access.publisher,
            before=failed_at,
            before_id=dead_letter_id,
            limit=limit,
        )
    return await tx.all(
        DeadLetter,
        Q.list_dead_letters,
        **criteria.columns(),
        **dead_letter_state_params(state),
        before=failed_at,
        before_id=dead_letter_id,
        limit=limit,
        no_limit=None,
    )


async def group_dead_letters(
    tx: Tx,
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    limit: int = MAX_DEAD_LETTER_GROUPS,
    scan_limit: int | None = None,
) -> list[DeadLetterGroup]:
    """Group dead letters by error signature, the largest group first.

    Reads only the newest `scan_limit` dead letters if that is given.
    """
    return await tx.all(
        DeadLetterGroup,
        Q.group_dead_letters,
        **criteria.columns(),
        **dead_letter_state_params(state),
        limit=limit,
        scan_limit=scan_limit,
    )


async def count_dead_letters_by_hour(
    tx: Tx,
    signatures: Sequence[str],
    criteria: DeadLetterFilter,
    state: DeadLetterState = "unresolved",
    *,
    scan_limit: int | None = None,
) -> dict[str, list[int]]:
    """Count the dead letters of these groups for each hour of the last day, the latest hour last."""
    counts = {signature: [0] * RECENT_HOURS for signature in signatures}
    columns = {name: value for name, value in criteria.columns().items() if name != "signature"}
    for hour in await tx.all(
        DeadLetterHour,
        Q.count_dead_letters_by_hour,
        **columns,
        **dead_letter_state_params(state),
        signatures=signatures,
        hours=RECENT_HOURS,
        scan_limit=scan_limit,
    ):
        counts[hour.signature][RECENT_HOURS - 1 - hour.hours_ago] = hour.count
    return counts


async def list_dead_letter_backlogs(tx: Tx, min_count: int) -> list[DeadLetterBacklog]:
    """List the services with at least `min_count` unresolved dead letters."""
    return await tx.all(DeadLetterBacklog, Q.list_dead_letter_backlogs, min_count=min_count)


async def find_dead_letter(
    tx: Tx, dead_letter_id: UUID, access: DeadLetterAccess = ALL_DEAD_LETTERS
) -> DeadLetterDetail:
    dead_letter = await tx.maybe(DeadLetterDetail, Q.find_dead_letter, id=dead_letter_id)
    if dead_letter is None or not access.allows(dead_letter):
        raise NotFound(f"No such dead letter: {dead_letter_id}")
    return dead_letter


async def lock_open_dead_letters(tx: Tx, ids: Sequence[UUID]) -> list[UUID]:
    """Lock those of these dead letters that are unresolved, until the transaction ends."""
    return await tx.column(Q.lock_open_dead_letters, ids=ids)


async def resolve_dead_letters(
    tx: Tx, ids: Sequence[UUID], actor: Actor, note: str, *, resolved_by: UUID | None = None
) -> list[UUID]:
    """Mark dead letters as resolved; return the ids of those that were unresolved. Their events do not change.

    `resolved_by` is a user in auth.users; the actor's name is recorded in any case.
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
        raise Invalid.of_field("resolved_by", f"no such user in auth.users: {resolved_by}") from None


async def resolve_dead_letter(
    tx: Tx, dead_letter_id: UUID, actor: Actor, note: str, *, resolved_by: UUID | None = None
) -> DeadLetterDetail:
    """Resolve one dead letter. It must exist and be unresolved."""
    if not await resolve_dead_letters(tx, [dead_letter_id], actor, note, resolved_by=resolved_by):
        dead_letter = await find_dead_letter(tx, dead_letter_id)
        raise Conflict(already_resolved_message(dead_letter.replayed_at is not None, dead_letter.resolved_by_actor))
    return await find_dead_letter(tx, dead_letter_id)


async def purge_dead_letters(tx: Tx, keep: timedelta, batch: int) -> int:
    """Delete dead letters resolved longer than `keep` ago. Unresolved ones stay."""
    return await tx.run(Q.purge_dead_letters, keep=keep, batch=batch)


async def database_now(tx: Tx) -> datetime:
    """Return the database's time, which `since` and `until` are compared with."""
    return await tx.value(Q.database_now)


def already_resolved_message(is_replayed: bool, actor_name: str | None) -> str:
    resolution = "replayed" if is_replayed else "resolved"
    return f"The dead letter was already {resolution}{f' by {actor_name}' if actor_name else ''}"


def dead_letter_state_params(state: DeadLetterState) -> dict[str, bool]:
    return {"open": state != "resolved", "ended": state != "unresolved"}
