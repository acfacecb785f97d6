"""Publish: record events. The triggers of public.event_queue queue one delivery for each subscriber.

The API and the batcher insert through this module, Python and SQL clients through the function pabal.publish, others
with a plain INSERT. All have the same effect, because the triggers do the work.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.backoff import spread
from pabal.core.errors import Conflict, Forbidden, Invalid, PabalError, Unavailable
from pabal.core.event_types import HUB_EVENT_TYPES, HUB_SERVICE, is_allowed_event_type
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.errors import CheckViolation, DatabaseError, ForeignKeyViolation, RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.stored_json import DIGITS_TO_ZERO
from pabal.db.tx import Tx
from pabal.events.types import EventStatus
from pabal.queue.bisect import bisect_failures

Q = load_queries(__file__)

MAX_EVENT_PAYLOAD_BYTES = 262_144
MAX_PUBLISH_ATTEMPTS = 5
PUBLISH_RETRY_DELAY = 0.2
"""Seconds to wait for the other transaction after a deadlock."""

LARGE_EXPONENT = re.compile(rb"[eE][+-]?[0-9]{4}")
NUMBER_WITH_LARGE_EXPONENT = re.compile(rb"[\s:,\[]-?[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{4}")
MAX_USUAL_DIGITS = 8_000
DIGIT_RUN = b"0" * MAX_USUAL_DIGITS

EVENT_CONSTRAINT_FIELDS = {
    "event_type_form": "event_type",
    "event_payload_is_object": "payload",
    "valid_priority": "priority",
    "valid_max_retries": "max_retries",
    "event_key_form": "idempotency_key",
    "valid_source_service": "source_service",
    "valid_target_service": "target_service",
}
"""The constraints of the table, and the field that each is about."""


class EventDraft(msgspec.Struct, frozen=True):
    """An event to publish. `payload` is JSON text; only the database parses it."""

    source: str
    event_type: str
    payload: bytes = b"{}"
    target: str | None = None
    priority: int = 5
    max_retries: int = 3
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    ordering_key: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


class PublishResult(msgspec.Struct, frozen=True):
    """A recorded event. `repeated`: the idempotency key was used before, and this is the first event with it."""

    id: UUID
    status: EventStatus
    created_at: datetime
    repeated: bool = False


class InsertedEvent(msgspec.Struct, frozen=True):
    """`is_notified`: other processes were notified at the commit."""

    id: UUID
    status: EventStatus
    created_at: datetime
    is_notified: bool


@dataclass(frozen=True, slots=True)
class SkippedDraft:
    """A draft that was not inserted, and the first event with its idempotency key."""

    draft_id: UUID
    id: UUID | None
    status: EventStatus | None
    created_at: datetime | None
    is_same_content: bool
    target_exists: bool


def check_publish_right(source: str, event_type: str, may_publish: Sequence[str] | None) -> None:
    """Raise Forbidden unless the service may publish events of this type. `pabal.publish` checks the same in SQL."""
    if event_type in HUB_EVENT_TYPES and source != HUB_SERVICE:
        raise Forbidden(f"event_type: only the hub publishes {event_type}")
    if not is_allowed_event_type(event_type, may_publish):
        raise Forbidden(f"event_type: {source} may not publish {event_type}")


async def publish_events(
    tx: Tx, drafts: Sequence[EventDraft], doorbell: Doorbell | None = None
) -> list[PublishResult | PabalError]:
    """Record events in this order; return the event or the error for each draft.

    A draft that violates a constraint of the table raises, and none of them is recorded, unless it is the only one.
    The caller then splits the batch. With a doorbell, which needs autocommit, a single draft may notify other processes
    at its own commit.
    """
    columns = event_draft_columns(drafts)
    notification = None
    if doorbell is not None and len(drafts) == 1 and (sender := doorbell.reserve_commit_notification()):
        notification = f"{sender} {event_wakeup(drafts[0])}"
    try:
        rows = await tx.all(
            InsertedEvent, Q.insert_events, **columns, notify_channel=NOTIFY_CHANNEL, notification=notification
        )
    except (CheckViolation, ForeignKeyViolation) as error:
        if len(drafts) > 1:
            raise
        return [event_constraint_error(error)]
    inserted = {event.id: event for event in rows}
    ids: list[UUID] = columns["ids"]
    skipped_indexes = [index for index, draft_id in enumerate(ids) if draft_id not in inserted]
    skipped = await _find_skipped_drafts(tx, columns, skipped_indexes) if skipped_indexes else {}
    results: list[PublishResult | PabalError] = []
    for draft, draft_id in zip(drafts, ids, strict=True):
        if event := inserted.get(draft_id):
            results.append(PublishResult(event.id, event.status, event.created_at))
        else:
            results.append(skipped_draft_result(draft, skipped[draft_id]))
    if doorbell is not None and any(event.is_notified for event in rows):
        doorbell.wake_here(event_wakeup(drafts[0]))
        return results
    targets = {draft.target for draft, draft_id in zip(drafts, ids, strict=True) if not skipped or draft_id in inserted}
    for topic in {""} if None in targets else targets:
        tx.notify(Channel.EVENTS, topic or "")
    return results


def event_wakeup(draft: EventDraft) -> Wakeup:
    """The wakeup of a new event. The services of a broadcast are known to the database only, so it addresses all."""
    return Wakeup(Channel.EVENTS, draft.target or "")


def has_unusual_numbers(payload: bytes) -> bool:
    """Whether the payload may contain a number that PostgreSQL refuses, such as 1e-99999.

    It stores at most 16,383 digits after the point; a number is within that if it has fewer than 8,000 digits and its
    exponent has fewer than four. A text counts too if a word of it looks like such a number. An id in hexadecimal does
    not: it is a whole text, and a number follows a space or one of `:,[`.
    """
    if LARGE_EXPONENT.search(payload) and NUMBER_WITH_LARGE_EXPONENT.search(payload):  # the first is twice as fast
        return True
    return len(payload) >= MAX_USUAL_DIGITS and DIGIT_RUN in payload.translate(DIGITS_TO_ZERO)


async def publish_single_event(db: Database, draft: EventDraft) -> PublishResult:
    """Record one event in a statement and a commit of its own: for a draft that the database may refuse.

    In a batch it would delay the events of other callers, because a refused batch is split until the draft is alone.
    """
    [result] = await publish_event_batch(db, [draft])
    if isinstance(result, PabalError):
        raise result
    return result


async def publish_event_batch(db: Database, drafts: Sequence[EventDraft]) -> list[PublishResult | PabalError]:
    """Record events in one statement and commit. An invalid draft fails alone; the others keep their order."""

    async def write(batch: Sequence[EventDraft]) -> list[PublishResult | PabalError]:
        return await _publish_with_retries(db, batch, MAX_PUBLISH_ATTEMPTS)

    return await bisect_failures(drafts, write, fail=lambda _, error: error, on=(CheckViolation, ForeignKeyViolation))


async def _publish_with_retries(
    db: Database, drafts: Sequence[EventDraft], max_attempts: int
) -> list[PublishResult | PabalError]:
    try:
        async with db.autocommit() as tx:
            return await publish_events(tx, drafts)
    except RetryableError as error:  # another transaction publishes the same keys in a different order
        if max_attempts <= 1:
            return [error] * len(drafts)
        await asyncio.sleep(spread(PUBLISH_RETRY_DELAY, 0.5, 1))
        return await _publish_with_retries(db, drafts, max_attempts - 1)
    except Unavailable as error:
        return [error] * len(drafts)  # per item: drafts of another half may already be recorded


async def expire_idempotency_keys(tx: Tx, batch: int) -> int:
    """Delete up to `batch` idempotency keys that were used more than 24 hours ago."""
    return await tx.run(Q.expire_idempotency_keys, batch=batch)


async def _find_skipped_drafts(
    tx: Tx, columns: dict[str, list[Any]], indexes: Sequence[int]
) -> dict[UUID, SkippedDraft]:
    parameters = {
        name: [column[index] for index in indexes]
        for name, column in columns.items()
        if name in Q.find_skipped_drafts.parameters
    }
    return {skipped.draft_id: skipped for skipped in await tx.all(SkippedDraft, Q.find_skipped_drafts, **parameters)}


def skipped_draft_result(draft: EventDraft, skipped: SkippedDraft) -> PublishResult | PabalError:
    if not skipped.target_exists:
        return Invalid.of_field("target_service", f"no such service: {draft.target}")
    if skipped.id is None or skipped.status is None or skipped.created_at is None:
        return RetryableError("the first event with this idempotency key was deleted meanwhile")
    if not skipped.is_same_content:
        return Conflict(f"idempotency_key: already used for a different event, {skipped.id}")
    return PublishResult(skipped.id, skipped.status, skipped.created_at, repeated=True)


def event_constraint_error(error: DatabaseError) -> Invalid:
    """Name the invalid field. An error without a constraint means that PostgreSQL cannot parse the payload."""
    field = EVENT_CONSTRAINT_FIELDS.get(error.constraint or "", "payload")
    return Invalid.of_field(
        field, "is not a valid value" if error.constraint else "is not JSON that PostgreSQL can store"
    )


def event_draft_columns(drafts: Sequence[EventDraft]) -> dict[str, list[Any]]:
    return {
        "ids": [new_id() for _ in drafts],
        "sources": [draft.source for draft in drafts],
        "event_types": [draft.event_type for draft in drafts],
        "targets": [draft.target for draft in drafts],
        "payloads": [draft.payload.decode() for draft in drafts],
        "priorities": [draft.priority for draft in drafts],
        "max_retries": [draft.max_retries for draft in drafts],
        "deliver_ats": [draft.deliver_at for draft in drafts],
        "expires_ats": [draft.expires_at for draft in drafts],
        "keys": [draft.idempotency_key for draft in drafts],
        "ordering_keys": [draft.ordering_key for draft in drafts],
        "correlation_ids": [draft.correlation_id for draft in drafts],
        "traceparents": [draft.traceparent for draft in drafts],
    }
