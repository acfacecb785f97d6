"""The trace of events: everything recorded about an event, its deliveries, its dead letters and its replays."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.errors import NotFound
from pabal.core.messages import Message
from pabal.core.short_id import ambiguous_id
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.consume.consumers import SILENT_CONSUMER_AFTER
from pabal.events.delivery_state import (
    MAX_COUNTED_DELIVERIES,
    DeliveryState,
    describe_deliveries,
    read_delivery_state,
    read_delivery_states,
)
from pabal.events.events import OPERATOR_ACCESS
from pabal.trace.entry import (
    AuditedAction,
    TraceEntry,
    TraceMatch,
    TraceSubjectKind,
    find_matches,
    list_audited_actions,
    read_trace_time,
)
from pabal.trace.event_entries import (
    REPLAYED_ACTION,
    TracedDeadLetter,
    TracedEvent,
    event_status_text,
    event_trace_entries,
)
from pabal.trace.notifications import EventNotifications, trace_notifications_of_events

Q = load_queries(__file__)

MAX_TRACED_EVENTS = 500
"""Events in one trace. Of a larger broadcast only the first deliveries are traced."""


@dataclass(frozen=True, slots=True)
class EventTrace:
    """The trace of one event, or of all events with a correlation id. `now` is the database's time."""

    subject: str
    kind: TraceSubjectKind
    now: datetime
    events: list[TracedEvent]
    dead_letters: list[TracedDeadLetter]
    entries: list[TraceEntry]
    delivery_states: dict[UUID, DeliveryState]


@dataclass(frozen=True, slots=True)
class FullEventTrace:
    """The trace of events, and of the notifications that the rules created from them."""

    trace: EventTrace
    notifications: EventNotifications


@dataclass(frozen=True, slots=True)
class _EventTraceRows:
    """Everything recorded about some events. `replayed_as` maps a dead letter to the event its replay created."""

    events: list[TracedEvent]
    dead_letters: list[TracedDeadLetter]
    actions: list[AuditedAction]
    replayed_as: dict[UUID, UUID]


async def find_event_matches(tx: Tx, prefix: str) -> dict[UUID, TraceMatch]:
    """The events and dead letters with this id, prefix or short id."""
    return await find_matches(tx, Q.find_event_matches, prefix)


async def trace_event(tx: Tx, name: str) -> EventTrace:
    """Trace an event, a delivery, a dead letter (each by id or unambiguous id prefix) or a correlation id."""
    match [*(await find_event_matches(tx, name)).values()]:
        case [found]:
            return await collect_event_trace(tx, str(found.id), found.kind, [found.subject_id])
        case []:
            pass
        case several:
            raise ambiguous_id(name, [match.id for match in several])
    if correlated := await tx.column(Q.list_correlated_event_ids, correlation_id=name, limit=MAX_TRACED_EVENTS):
        return await collect_event_trace(tx, name, "correlation", correlated)
    raise NotFound(f"No event, delivery, dead letter or correlation id matches {name}")


async def trace_single_event(tx: Tx, event_id: UUID, *, include_notes: bool) -> list[TraceEntry]:
    """The timeline of one event, without its deliveries and replays.

    `include_notes` shows the notes with which an operator resolved its dead letter; they are for operators only.
    """
    rows = await _load_event_trace_rows(tx, [event_id])
    letters = rows.dead_letters
    if not include_notes:
        letters = [replace(letter, resolution_notes=None) for letter in letters]
    return event_trace_entries(rows.events, letters, rows.actions, rows.replayed_as)


async def read_event_status(tx: Tx, event_id: UUID) -> str:
    """The current state of one event, with what it waits for."""
    [event] = await tx.all(TracedEvent, Q.list_traced_events, ids=[event_id], silent_after=SILENT_CONSUMER_AFTER)
    if event.is_broadcast:
        return describe_deliveries(await read_delivery_state(tx, event_id, OPERATOR_ACCESS))
    return event_status_text(event, await read_trace_time(tx))


async def collect_event_trace(tx: Tx, subject: str, kind: TraceSubjectKind, event_ids: Iterable[UUID]) -> EventTrace:
    """Follow events to their deliveries, to the events they were replayed from, and to their own replays."""
    visited, pending = dict[UUID, None](), dict.fromkeys(event_ids)
    events, letters, actions = dict[UUID, TracedEvent](), dict[UUID, TracedDeadLetter](), list[AuditedAction]()
    replayed_as: dict[UUID, UUID] = {}
    while pending:
        visited |= pending
        rows = await _load_event_trace_rows(tx, [*pending])
        events |= {event.id: event for event in rows.events}
        letters |= {letter.id: letter for letter in rows.dead_letters}
        actions += rows.actions
        replayed_as |= rows.replayed_as
        parents = [event.id for event in rows.events if event.parent_id is None]
        deliveries = await tx.column(Q.list_delivery_ids, ids=parents, limit=MAX_TRACED_EVENTS) if parents else []
        origins = [event.origin_id for event in rows.events if event.origin_id]
        origins += [letter.origin_id for letter in rows.dead_letters]
        related = [event_id for event_id in (*origins, *deliveries, *replayed_as.values()) if event_id not in visited]
        pending = dict.fromkeys(related[: max(0, MAX_TRACED_EVENTS - len(visited))])
    entries = event_trace_entries(events.values(), [*letters.values()], actions, replayed_as)
    now = await read_trace_time(tx)
    broadcasts = [event.id for event in events.values() if event.is_broadcast]
    states = await read_delivery_states(tx, broadcasts, OPERATOR_ACCESS, MAX_COUNTED_DELIVERIES)
    return EventTrace(subject, kind, now, [*events.values()], [*letters.values()], entries, states)


async def _load_event_trace_rows(tx: Tx, ids: list[UUID]) -> _EventTraceRows:
    events = await tx.all(TracedEvent, Q.list_traced_events, ids=ids, silent_after=SILENT_CONSUMER_AFTER)
    letters = await tx.all(TracedDeadLetter, Q.list_traced_dead_letters, ids=ids)
    actions = await list_audited_actions(tx, [*ids, *(letter.id for letter in letters)])
    replayed_as = {
        UUID(action.subject): UUID(action.details["event"]) for action in actions if action.action == REPLAYED_ACTION
    }
    return _EventTraceRows(events, letters, actions, replayed_as)


async def add_notifications(tx: Tx, trace: EventTrace) -> FullEventTrace:
    """Add the notifications that the events of this trace created."""
    correlation_id = trace.subject if trace.kind == "correlation" else None
    event_ids = [event.id for event in trace.events] + list_purged_events(trace)
    return FullEventTrace(trace, await trace_notifications_of_events(tx, event_ids, correlation_id))


def list_purged_events(trace: EventTrace) -> list[UUID]:
    """The events whose rows are purged, so that only their dead letters are left."""
    ids = {event.id for event in trace.events}
    originals = dict.fromkeys(letter.original_event_id for letter in trace.dead_letters)
    return [event_id for event_id in originals if event_id not in ids]


def broadcast_status_text(event: TracedEvent, trace: EventTrace) -> Message:
    """The current state of a broadcast: how many of its deliveries are done."""
    return describe_deliveries(trace.delivery_states[event.id])


def label_events(trace: EventTrace) -> dict[UUID, str]:
    """A label for each event if there are several: its receiver, or its id if the receiver is ambiguous."""
    event_ids = dict.fromkeys(entry.event_id for entry in trace.entries if entry.event_id)
    if len(event_ids) == 1:
        return {}
    all_subscribers = Message("all subscribers")
    targets: dict[UUID, str] = {
        event.id: Message("→ {}", event.target_service or all_subscribers) for event in trace.events
    }
    counts = Counter(targets.values())
    return {
        event_id: targets[event_id] if counts.get(targets.get(event_id, "")) == 1 else str(event_id)
        for event_id in event_ids
    }
