"""An event's story: everything that is known of it, under whatever name somebody has of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from pabal.core.errors import Invalid, NotFound
from pabal.core.ids import id_prefix_range
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.moments import (
    REPLAYED_ACTION,
    EventAuditEntry,
    EventTraceEntry,
    TracedDeadLetter,
    TracedEvent,
    event_trace_entries,
)

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
