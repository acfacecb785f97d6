"""Publish: record events and owe them to whoever they are for.

Everybody publishes through the table: HTTP and the gatherer through `publish`, Python and SQL through the function
pabal.publish, anybody else by a plain INSERT. Its triggers do the owing, so all of them mean the same.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.errors import Conflict, Invalid, Unavailable
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Broken, Contended, Orphan, Unfit
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)

LARGEST = 262_144
"""Most bytes a payload may have."""
KEY_LIFE = timedelta(hours=24)
TRIES = 5
ASIDE = 0.2
"""Seconds to let somebody else go first."""

FIELDS = {
    "event_type_form": "event_type",
    "event_payload_is_object": "payload",
    "valid_priority": "priority",
    "valid_max_retries": "max_retries",
    "event_key_form": "idempotency_key",
    "valid_source_service": "source_service",
    "valid_target_service": "target_service",
}
"""The table's rules, and the field each is about."""


class Draft(msgspec.Struct, frozen=True):
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


class Published(msgspec.Struct, frozen=True):
    """An event that is recorded. `repeated` when its key was published before: then it is the first one."""

    id: UUID
    status: str
    created_at: datetime
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    id: UUID
    status: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Known:
    draft: UUID
    id: UUID | None
    status: str | None
    created_at: datetime | None
    same: bool
    has_target: bool


async def publish(tx: Tx, drafts: Sequence[Draft]) -> list[Published | Exception]:
    """Record these, in this order; for each the event, or why not. Nothing is owed twice.

    One draft that the table itself refuses fails them all, unless it is the only one: whoever brings several halves.
    """
    brought = columns(drafts)
    try:
        recorded = {each.id: each for each in await tx.all(Recorded, Q.record, **brought)}
    except (Unfit, Orphan) as error:
        if len(drafts) > 1:
            raise
        return [refusal(error)]
    ids: list[UUID] = brought["ids"]
    results: list[Published | Exception] = []
    left = [place for place, each in enumerate(ids) if each not in recorded]
    why = await _why(tx, brought, left) if left else {}
    for place, each in enumerate(ids):
        row = recorded.get(each)
        results.append(Published(row.id, row.status, row.created_at) if row else told(drafts[place], why[each]))
    if recorded:
        tx.ring(Bell.EVENTS)
    return results


async def publish_all(db: Database, drafts: Sequence[Draft], tries: int = TRIES) -> list[Published | Exception]:
    """Record many in one statement and commit; a bad one fails alone, the others keep their order."""
    try:
        async with db.autocommit() as tx:
            return await publish(tx, drafts)
    except Contended as error:  # two who bring the same keys in another order: the other needs a moment to be through
        if tries <= 1:
            return [error] * len(drafts)
        await asyncio.sleep(random.uniform(0.5, 1) * ASIDE)  # noqa: S311 spreads several who step aside
        return await publish_all(db, drafts, tries - 1)
    except Unavailable as error:
        return [error] * len(drafts)  # item by item: what another half has written stays written
    except (Unfit, Orphan):
        middle = len(drafts) // 2
        return [*await publish_all(db, drafts[:middle]), *await publish_all(db, drafts[middle:])]


async def clear_keys(tx: Tx, batch: int) -> int:
    """Forget up to `batch` keys that are older than a day."""
    return await tx.run(Q.clear_keys, keep=KEY_LIFE, batch=batch)


async def _why(tx: Tx, brought: dict[str, list[Any]], places: Sequence[int]) -> dict[UUID, Known]:
    asked = {name: [column[place] for place in places] for name, column in brought.items() if name in Q.known.takes}
    return {each.draft: each for each in await tx.all(Known, Q.known, **asked)}


def told(draft: Draft, known: Known) -> Published | Exception:
    """What to say of a draft that was left out."""
    if not known.has_target:
        return Invalid.one("target_service", f"there is no service {draft.target}")
    if known.id is None or known.status is None or known.created_at is None:
        return Contended("the first event of this key went away this moment")
    if not known.same:
        return Conflict(f"idempotency_key: was used for another event, {known.id}")
    return Published(known.id, known.status, known.created_at, repeated=True)


def refusal(error: Broken) -> Invalid:
    """The table's refusal, by the field it is about. What has no constraint is a payload PostgreSQL cannot read."""
    field = FIELDS.get(error.constraint or "", "payload")
    return Invalid.one(
        field, "is not what the table takes" if error.constraint else "is not JSON that PostgreSQL can keep"
    )


def columns(drafts: Sequence[Draft]) -> dict[str, list[Any]]:
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
