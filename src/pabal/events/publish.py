"""Publish: record events and owe them to whoever they are for.

Everybody publishes through the table: HTTP and the gatherer through `publish`, Python and SQL through the function
pabal.publish, anybody else by a plain INSERT. Its triggers do the owing, so all of them mean the same.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.backoff import spread
from pabal.core.errors import Conflict, Invalid, Unavailable
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.errors import CheckViolation, DatabaseError, ForeignKeyViolation, RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.bisect import bisect_failures

Q = load_queries(__file__)

MAX_EVENT_PAYLOAD_BYTES = 262_144
"""Most bytes a payload may have."""
IDEMPOTENCY_KEY_LIFETIME = timedelta(hours=24)
MAX_PUBLISH_ATTEMPTS = 5
PUBLISH_RETRY_DELAY = 0.2
"""Seconds to let somebody else go first."""

EVENT_CONSTRAINT_FIELDS = {
    "event_type_form": "event_type",
    "event_payload_is_object": "payload",
    "valid_priority": "priority",
    "valid_max_retries": "max_retries",
    "event_key_form": "idempotency_key",
    "valid_source_service": "source_service",
    "valid_target_service": "target_service",
}
"""The table's rules, and the field each is about."""


class EventDraft(msgspec.Struct, frozen=True):
    """An event to be. The payload is JSON text already: it is read once, by the database."""

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
    """An event that is recorded. `repeated` when its key was published before: then it is the first one."""

    id: UUID
    status: str
    created_at: datetime
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class InsertedEvent:
    id: UUID
    status: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SkippedDraft:
    draft_id: UUID
    id: UUID | None
    status: str | None
    created_at: datetime | None
    is_same_content: bool
    target_exists: bool


async def publish_events(tx: Tx, drafts: Sequence[EventDraft]) -> list[PublishResult | Exception]:
    """Record these, in this order; for each the event, or why not. Nothing is owed twice.

    One draft that the table itself refuses fails them all, unless it is the only one: whoever brings several halves.
    """
    brought = event_draft_columns(drafts)
    try:
        recorded = {each.id: each for each in await tx.all(InsertedEvent, Q.insert_events, **brought)}
    except (CheckViolation, ForeignKeyViolation) as error:
        if len(drafts) > 1:
            raise
        return [event_constraint_error(error)]
    ids: list[UUID] = brought["ids"]
    results: list[PublishResult | Exception] = []
    left = [place for place, each in enumerate(ids) if each not in recorded]
    why = await _find_skipped_drafts(tx, brought, left) if left else {}
    for place, each in enumerate(ids):
        row = recorded.get(each)
        results.append(
            PublishResult(row.id, row.status, row.created_at) if row else skipped_draft_result(drafts[place], why[each])
        )
    if recorded:
        tx.notify(Channel.EVENTS)
    return results


async def publish_event_batch(db: Database, drafts: Sequence[EventDraft]) -> list[PublishResult | Exception]:
    """Record many events in one statement and one commit. A bad draft fails alone; the others keep their order."""

    async def write(batch: Sequence[EventDraft]) -> list[PublishResult | Exception]:
        return await _publish_with_retries(db, batch, MAX_PUBLISH_ATTEMPTS)

    return await bisect_failures(drafts, write, fail=lambda _, error: error, on=(CheckViolation, ForeignKeyViolation))


async def _publish_with_retries(
    db: Database, drafts: Sequence[EventDraft], max_attempts: int
) -> list[PublishResult | Exception]:
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
    """Forget up to `batch` keys that are older than a day."""
    return await tx.run(Q.expire_idempotency_keys, keep=IDEMPOTENCY_KEY_LIFETIME, batch=batch)


async def _find_skipped_drafts(
    tx: Tx, columns: dict[str, list[Any]], positions: Sequence[int]
) -> dict[UUID, SkippedDraft]:
    asked = {
        name: [column[place] for place in positions]
        for name, column in columns.items()
        if name in Q.find_skipped_drafts.parameters
    }
    return {each.draft_id: each for each in await tx.all(SkippedDraft, Q.find_skipped_drafts, **asked)}


def skipped_draft_result(draft: EventDraft, skipped: SkippedDraft) -> PublishResult | Exception:
    """What to say of a draft that was left out."""
    if not skipped.target_exists:
        return Invalid.of_field("target_service", f"there is no service {draft.target}")
    if skipped.id is None or skipped.status is None or skipped.created_at is None:
        return RetryableError("the first event of this key went away this moment")
    if not skipped.is_same_content:
        return Conflict(f"idempotency_key: was used for another event, {skipped.id}")
    return PublishResult(skipped.id, skipped.status, skipped.created_at, repeated=True)


def event_constraint_error(error: DatabaseError) -> Invalid:
    """The table's refusal, by the field it is about. What has no constraint is a payload PostgreSQL cannot read."""
    field = EVENT_CONSTRAINT_FIELDS.get(error.constraint or "", "payload")
    return Invalid.of_field(
        field, "is not what the table takes" if error.constraint else "is not JSON that PostgreSQL can keep"
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
