"""What every trace is made of: matches of an id, audited actions, and the entries of a timeline."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pabal.core.messages import Message
from pabal.core.short_id import parse_id_pattern
from pabal.db.queries import Query, load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

MAX_MATCHES = 6
"""Matches of each kind that are read; more than one is already ambiguous."""
UNKNOWN_WORKER = Message("an unknown worker")

TraceSubjectKind = Literal["event", "dead letter", "correlation", "message", "reply", "conversation", "notification"]
"""What a trace is about, as the CLI's JSON names it."""
TraceEntryKind = Literal[
    # events
    "published", "owed", "claimed", "completed", "cancelled", "replayed", "resolved",
    # messages
    "accepted", "handed", "acked", "stalled", "answered", "late", "refused", "carried", "unseen",
    # notifications
    "asked", "decided", "suppressed", "arrived", "seen", "archived",
    # several of them
    "deed", "died", "expired", "failed", "sent", "shown", "snoozed", "unknown",
]  # fmt: skip
"""The kinds of entries, as the API and the CLI's JSON name them."""

TraceTone = Literal["bad", "warning", "good", "recovered"]
TRACE_TONES: Mapping[TraceEntryKind, TraceTone] = {
    **dict.fromkeys(("died", "refused", "unknown"), "bad"),
    **dict.fromkeys(("failed", "expired", "late", "suppressed"), "warning"),
    **dict.fromkeys(("completed", "sent"), "good"),
    **dict.fromkeys(("replayed", "resolved", "shown"), "recovered"),
}
"""How to colour an entry of each kind; the other kinds are neutral."""


@dataclass(frozen=True, slots=True)
class TraceMatch:
    """A row whose id starts with the requested prefix; `subject_id` is the row that its trace is about."""

    id: UUID
    kind: TraceSubjectKind
    subject_id: UUID


@dataclass(frozen=True, slots=True)
class AuditedAction:
    """An action on a traced row, from the audit log."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Something that happened to an event, a message or a notification."""

    at: datetime
    kind: TraceEntryKind
    says: str
    by: str | None = None
    took: timedelta | None = None
    """How long an attempt took, where that is known."""
    event_id: UUID | None = None
    """The event it happened to; None in the trace of a message or a notification."""
    letter_id: UUID | None = None
    """The dead letter it is about."""


def sort_entries(entries: Iterable[TraceEntry]) -> list[TraceEntry]:
    """Oldest first. Entries of the same time keep their order."""
    return sorted(entries, key=lambda entry: entry.at)


async def find_matches(tx: Tx, query: Query, text: str, **filters: object) -> dict[UUID, TraceMatch]:
    """The rows with this id, prefix or short id, by id; none if the text is none of them."""
    pattern = parse_id_pattern(text)
    if pattern is None:
        return {}
    matches = await tx.all(TraceMatch, query, limit=MAX_MATCHES, **pattern.bounds, **filters)
    return {match.id: match for match in matches}


async def list_audited_actions(tx: Tx, subjects: Collection[UUID]) -> list[AuditedAction]:
    return await tx.all(AuditedAction, Q.list_audited_actions, subjects=[*map(str, subjects)])


async def read_trace_time(tx: Tx) -> datetime:
    return await tx.value(Q.database_time)


def entry_documents(entries: Sequence[TraceEntry]) -> list[dict[str, Any]]:
    """Entries as JSON. `took` and `after`, the time since the previous entry, are in seconds."""
    documents: list[dict[str, Any]] = []
    previous: TraceEntry | None = None
    for entry in entries:
        of_event = entry.event_id is not None
        documents.append(
            {
                "at": entry.at,
                **({"event_id": entry.event_id} if of_event else {}),
                "kind": entry.kind,
                "says": entry.says,
                "by": entry.by,
                "took": entry.took.total_seconds() if entry.took is not None else None,
                **({"letter_id": entry.letter_id} if of_event else {}),
                "after": (entry.at - previous.at).total_seconds() if previous else None,
            }
        )
        previous = entry
    return documents
