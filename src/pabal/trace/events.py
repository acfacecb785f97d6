"""An event's story: everything that is known of it, under whatever name somebody has of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import id_prefix_range
from pabal.core.messages import Message, duration_message, message_table
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

MAX_ERROR_HISTORY = 20
"""How many failed attempts an event remembers."""
REPLAYED_ACTION = "dead_letter.replayed"
ACTIONS_SHOWN_BY_ROWS = frozenset({REPLAYED_ACTION, "dead_letter.resolved", "event.cancelled"})
"""Deeds that the rows they changed tell of themselves."""
CANCELLED_BY_PREFIX = "cancelled by "
EVENT_STATUS_TEXTS = message_table("pending", "processing", "completed", "failed", "cancelled")
UNKNOWN_WORKER = Message("somebody")


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """An event as its row tells it."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: str
    retry_count: int
    max_retries: int
    created_at: datetime
    updated_at: datetime
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_history: Sequence[dict[str, Any]] | None
    expires_at: datetime | None
    ordering_key: str | None
    correlation_id: str | None
    parent_id: UUID | None
    origin_id: UUID | None
    is_broadcast: bool
    is_unhandled: bool
    held_until: datetime | None


@dataclass(frozen=True, slots=True)
class TracedDeadLetter:
    """A dead letter as a story tells it."""

    id: UUID
    original_event_id: UUID
    origin_id: UUID
    death: int
    original_event_type: str
    original_source_service: str
    original_target_service: str | None
    error_message: str
    error_history: Sequence[dict[str, Any]] | None
    failed_at: datetime
    resolved_at: datetime | None
    resolved_by_actor: str | None
    resolution_notes: str | None
    replayed_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventAuditEntry:
    """What somebody did, as the audit log has it."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventTraceEntry:
    """Something that happened. `took` is how long an attempt lasted, where that is known."""

    at: datetime
    event_id: UUID
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None
    letter_id: UUID | None = None


def event_trace_entries(
    events: Iterable[TracedEvent],
    dead_letters: Sequence[TracedDeadLetter],
    audit_entries: Sequence[EventAuditEntry],
    replayed_as: Mapping[UUID, UUID],
) -> list[EventTraceEntry]:
    """Everything that happened to these events, the first first. `lives` says which event each replay revived."""
    rows = {event.id: event for event in events}
    moments: list[EventTraceEntry] = []
    for event in rows.values():
        moments += event_row_entries(event, rows)
    for event_id in dict.fromkeys(death.original_event_id for death in dead_letters):
        own = [death for death in dead_letters if death.original_event_id == event_id]
        if event_id not in rows:
            moments += event_attempt_entries(event_id, own[-1].error_history or ())
        for death in own:
            moments += dead_letter_entries(death, replayed_as.get(death.id))
    moments += event_audit_log_entries(audit_entries, rows)
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def event_row_entries(event: TracedEvent, rows: Mapping[UUID, TracedEvent]) -> Iterator[EventTraceEntry]:
    if event.origin_id in {None, event.id}:
        yield event_published_entry(event, rows)
    history = event.error_history or ()
    started, ended = event.processing_started_at, event.processed_at
    yield from event_attempt_entries(event.id, history)
    by = event.processor_id
    match event.status:
        case "processing" if started:
            says = Message("attempt {} began, by {}", event.retry_count + 1, by or UNKNOWN_WORKER)
            yield EventTraceEntry(started, event.id, "claimed", says, by)
        case "pending" if is_snoozed_event(event, history):
            says = Message("put off, no attempt spent: {}", event.last_error)
            yield EventTraceEntry(event.updated_at, event.id, "snoozed", says)
        case "completed" if ended and not event.is_broadcast:
            took = ended - started if started else None
            which = Message("attempt {} by {} succeeded", event.retry_count + 1, by or UNKNOWN_WORKER)
            says = which if started else Message("completed by hand")
            yield EventTraceEntry(ended, event.id, "completed", says, by if started else None, took)
        case "cancelled" if ended:
            yield event_cancelled_entry(event, ended)
        case _:
            return


def event_cancelled_entry(event: TracedEvent, at: datetime) -> EventTraceEntry:
    why = event.last_error or ""
    if why == "expired":
        return EventTraceEntry(at, event.id, "expired", Message("expired: nobody was handed it in time"))
    if why.startswith(CANCELLED_BY_PREFIX):
        by = why.removeprefix(CANCELLED_BY_PREFIX)
        return EventTraceEntry(at, event.id, "cancelled", Message("cancelled by {}", by), by)
    return EventTraceEntry(at, event.id, "cancelled", why or EVENT_STATUS_TEXTS["cancelled"])


def event_published_entry(event: TracedEvent, rows: Mapping[UUID, TracedEvent]) -> EventTraceEntry:
    if event.parent_id in rows:
        return EventTraceEntry(event.created_at, event.id, "owed", Message("owed to {}", event.target_service))
    whom = event.target_service or Message("everybody who wants it")
    says = Message("{} published by {} for {}", event.event_type, event.source_service, whom)
    if event.parent_id:
        says = Message("{}, a delivery of {}", says, event.parent_id)
    if is_scheduled_event(event):
        says = Message("{}, to be delivered later", says)
    return EventTraceEntry(event.created_at, event.id, "published", says, event.source_service)


def is_scheduled_event(event: TracedEvent) -> bool:
    """The publisher said when, and nothing has happened since that would have moved it."""
    untouched = not event.error_history and not event.last_error and event.processing_started_at is None
    return untouched and event.next_retry_at is not None and event.next_retry_at > event.created_at


def event_attempt_entries(event_id: UUID, history: Sequence[Mapping[str, Any]]) -> Iterator[EventTraceEntry]:
    """Those that failed. Of one from the days before it was noted nobody knows when it began."""
    for place, each in enumerate(history, 1):
        at, began = datetime.fromisoformat(each["at"]), each.get("began")
        took = at - datetime.fromisoformat(began) if began else None
        worker = each.get("worker")
        says = Message("attempt {} by {} failed: {}", each["attempt"], worker or UNKNOWN_WORKER, each["error"])
        if place == 1 and len(history) >= MAX_ERROR_HISTORY:
            says = Message("{} (those before are no longer kept)", says)
        yield EventTraceEntry(at, event_id, "failed", says, worker, took)


def is_snoozed_event(event: TracedEvent, history: Sequence[Mapping[str, Any]]) -> bool:
    """A reason that is no failed attempt's was given with a time to come back."""
    if not event.last_error or not event.next_retry_at:
        return False
    return not history or not event.last_error.startswith(history[-1]["error"])


def dead_letter_entries(dead_letter: TracedDeadLetter, replayed_as: UUID | None) -> Iterator[EventTraceEntry]:
    event_id, letter = dead_letter.original_event_id, dead_letter.id
    says = Message("died: {}; dead letter {}", dead_letter.error_message, letter)
    if dead_letter.death > 1:
        says = Message(
            "died, for the {}. time: {}; dead letter {}", dead_letter.death, dead_letter.error_message, letter
        )
    yield EventTraceEntry(dead_letter.failed_at, event_id, "died", says, letter_id=letter)
    by = dead_letter.resolved_by_actor
    if dead_letter.replayed_at:
        says = Message("replayed by {}", by) if by else Message("replayed")
        if replayed_as and replayed_as != event_id:
            says = Message("{}, as the new event {}", says, replayed_as)
        yield EventTraceEntry(dead_letter.replayed_at, event_id, "replayed", says, by, letter_id=letter)
    elif dead_letter.resolved_at:
        says = Message("dead letter resolved by {}", by) if by else Message("dead letter resolved")
        if dead_letter.resolution_notes:
            says = Message("{}: {}", says, dead_letter.resolution_notes)
        yield EventTraceEntry(dead_letter.resolved_at, event_id, "resolved", says, by, letter_id=letter)


def event_status_text(event: TracedEvent, now: datetime) -> str:
    """How it stands now, in a few words."""
    match event.status:
        case "pending" if event.next_retry_at and event.next_retry_at > now:
            return Message("pending, due in {}", duration_message(event.next_retry_at - now))
        case "pending" if event.is_unhandled:
            return Message("pending, due; no handler of {} takes {}", event.target_service, event.event_type)
        case "pending":
            in_line = Message("pending, behind or at the head of its line")
            return in_line if event.ordering_key else Message("pending, due")
        case "processing" if event.held_until and event.held_until > now:
            left = duration_message(event.held_until - now)
            return Message("processing, held by {}; the lease ends in {}", event.processor_id, left)
        case "processing" if event.held_until:
            return Message("processing, held by {}; the lease has ended", event.processor_id)
        case status:
            return EVENT_STATUS_TEXTS.get(status, status)


def event_audit_log_entries(
    audit_entries: Iterable[EventAuditEntry], rows: Mapping[UUID, TracedEvent]
) -> Iterator[EventTraceEntry]:
    """What the rows do not tell: other deeds, and what was done to a broadcast or to an event that is gone."""
    for deed in audit_entries:
        subject = UUID(deed.subject)
        row = rows.get(subject)
        if deed.action == "event.cancelled" and (row is None or row.status != "cancelled"):
            says = Message("cancelled by {}", deed.actor)
            if row and row.is_broadcast:
                says = Message("{}, {} deliveries", says, deed.details.get("count", 1))
            yield EventTraceEntry(deed.at, subject, "cancelled", says, deed.actor)
        elif deed.action not in ACTIONS_SHOWN_BY_ROWS:
            yield EventTraceEntry(deed.at, subject, "deed", Message("{} by {}", deed.action, deed.actor), deed.actor)


Q = load_queries(__file__)

MAX_EVENT_MATCHES = 6
MAX_TRACED_EVENTS = 500
"""Events of one story. A broadcast to more than so many is told of the first of them."""


@dataclass(frozen=True, slots=True)
class EventMatch:
    """Something whose id was meant: its kind, and the event it is about."""

    matched_id: UUID
    event_id: UUID
    kind: str


@dataclass(frozen=True, slots=True)
class EventTrace:
    """What became of one event, or of all that share a correlation id. `now` is the database's time."""

    subject: str
    kind: str
    now: datetime
    events: list[TracedEvent]
    dead_letters: list[TracedDeadLetter]
    entries: list[EventTraceEntry]


async def trace_event(tx: Tx, name: str) -> EventTrace:
    """Tell the story of an event, a delivery, a dead letter or a correlation id.

    The beginning of an id is enough if nothing else begins so.
    """
    meant = await find_event_matches(tx, name)
    if len(meant) > 1:
        some = ", ".join(map(str, [*meant][: MAX_EVENT_MATCHES - 1]))
        raise Invalid.of_field(
            "id", f"several begin with {name}: {some}{' …' if len(meant) >= MAX_EVENT_MATCHES else ''}"
        )
    for one in meant.values():
        return await collect_event_trace(tx, str(one.matched_id), one.kind, [one.event_id])
    if correlated := await tx.column(Q.list_correlated_event_ids, correlation_id=name, limit=MAX_TRACED_EVENTS):
        return await collect_event_trace(tx, name, "correlation", correlated)
    raise NotFound(f"there is no event, delivery, dead letter or correlation id {name}")


async def find_event_matches(tx: Tx, prefix: str) -> dict[UUID, EventMatch]:
    """Everything whose id begins so; nothing for what cannot be the beginning of an id."""
    span = id_prefix_range(prefix)
    if span is None:
        return {}
    low, high = span
    return {
        each.matched_id: each
        for each in await tx.all(EventMatch, Q.find_event_matches, low=low, high=high, limit=MAX_EVENT_MATCHES)
    }


async def trace_single_event(tx: Tx, event_id: UUID, *, include_notes: bool) -> list[EventTraceEntry]:
    """What happened to one event, and to nothing that came before or after it.

    What an operator noted when resolving its letter is for operators, unless `notes`.
    """
    row = await _load_event_trace_rows(tx, [event_id])
    deaths = (
        row.dead_letters if include_notes else [replace(death, resolution_notes=None) for death in row.dead_letters]
    )
    return event_trace_entries(row.events, deaths, row.audit_entries, row.replayed_as)


async def collect_event_trace(tx: Tx, subject: str, kind: str, event_ids: Iterable[UUID]) -> EventTrace:
    """Follow an event to its deliveries, to what it was before and to what it was replayed as."""
    known, look = dict[UUID, None](), dict.fromkeys(event_ids)
    events, deaths, deeds = dict[UUID, TracedEvent](), dict[UUID, TracedDeadLetter](), list[EventAuditEntry]()
    lives: dict[UUID, UUID] = {}
    while look:
        known |= look
        rows = await _load_event_trace_rows(tx, [*look])
        events |= {event.id: event for event in rows.events}
        deaths |= {death.id: death for death in rows.dead_letters}
        deeds += rows.audit_entries
        lives |= rows.replayed_as
        spread = [event.id for event in rows.events if event.parent_id is None]
        after = await tx.column(Q.list_delivery_ids, ids=spread, limit=MAX_TRACED_EVENTS) if spread else []
        before = [event.origin_id for event in rows.events if event.origin_id]
        before += [death.origin_id for death in rows.dead_letters]
        room = max(0, MAX_TRACED_EVENTS - len(known))
        look = dict.fromkeys([each for each in (*before, *after, *lives.values()) if each not in known][:room])
    moments = event_trace_entries(events.values(), [*deaths.values()], deeds, lives)
    return EventTrace(subject, kind, await tx.value(Q.database_now), [*events.values()], [*deaths.values()], moments)


@dataclass(frozen=True, slots=True)
class _EventTraceRows:
    """All that is written down of some events; `lives` says which event each replayed letter became."""

    events: list[TracedEvent]
    dead_letters: list[TracedDeadLetter]
    audit_entries: list[EventAuditEntry]
    replayed_as: dict[UUID, UUID]


async def _load_event_trace_rows(tx: Tx, ids: list[UUID]) -> _EventTraceRows:
    events = await tx.all(TracedEvent, Q.list_traced_events, ids=ids)
    deaths = await tx.all(TracedDeadLetter, Q.list_traced_dead_letters, ids=ids)
    deeds = await tx.all(
        EventAuditEntry, Q.list_audit_entries, subjects=[str(each) for each in (*ids, *(death.id for death in deaths))]
    )
    lives = {UUID(deed.subject): UUID(deed.details["event"]) for deed in deeds if deed.action == REPLAYED_ACTION}
    return _EventTraceRows(events, deaths, deeds, lives)
