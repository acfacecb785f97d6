"""Trace an id: find what it names, collect what happened to it, render the result.

    resolve_trace         id, id prefix, short id, correlation id or conversation -> Trace
    find_trace_matches    which rows have such an id                       (entry.py)
    trace_match           collect the trace of one row                     (events.py, relay.py, notifications.py)
    trace_by_name         collect by correlation id or conversation
    trace_document        render as JSON                                   (documents.py)

`*_entries.py` turn rows into the entries of a timeline; the CLI and the console render those entries themselves.
`explain_notification.py` explains one notification in full sentences.
"""

from uuid import UUID

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import NotFound
from pabal.core.short_id import ambiguous_id
from pabal.db.tx import Tx
from pabal.trace.documents import trace_document
from pabal.trace.entry import TRACE_TONES, TraceEntry, TraceMatch
from pabal.trace.events import (
    EventTrace,
    FullEventTrace,
    add_notifications,
    broadcast_status_text,
    collect_event_trace,
    find_event_matches,
    label_events,
    list_purged_events,
    trace_event,
)
from pabal.trace.notifications import (
    FullNotificationTrace,
    find_notification_matches,
    merge_entries,
    trace_notification,
    trace_notifications_of_events,
)
from pabal.trace.relay import MessageTrace, find_message_matches, trace_conversation, trace_message

__all__ = [
    "TRACE_TONES",
    "FullEventTrace",
    "FullNotificationTrace",
    "Trace",
    "TraceEntry",
    "TraceMatch",
    "broadcast_status_text",
    "find_trace_matches",
    "label_events",
    "list_purged_events",
    "merge_entries",
    "resolve_trace",
    "trace_by_name",
    "trace_document",
    "trace_match",
]

Trace = FullEventTrace | FullNotificationTrace | MessageTrace


async def resolve_trace(tx: Tx, name: str) -> Trace:
    """Trace an id, an unambiguous id prefix or short id, a correlation id or a conversation."""
    match await find_trace_matches(tx, name):
        case []:
            return await trace_by_name(tx, name)
        case [found]:
            return await trace_match(tx, found)
        case several:
            raise ambiguous_id(name, [match.id for match in several])


async def find_trace_matches(tx: Tx, prefix: str) -> list[TraceMatch]:
    """The rows of every kind with this id, prefix or short id; a few of each kind."""
    events, messages = await find_event_matches(tx, prefix), await find_message_matches(tx, prefix)
    notifications = await find_notification_matches(tx, prefix)
    return [*events.values(), *messages.values(), *notifications.values()]


async def trace_match(tx: Tx, found: TraceMatch) -> Trace:
    """Collect the trace of a matching row."""
    match found.kind:
        case "message" | "reply":
            return await trace_message(tx, found)
        case "notification":
            trace = await trace_notification(tx, found.subject_id)
            return FullNotificationTrace(trace, await list_source_entries(tx, trace.request.event_id))
        case kind:
            return await add_notifications(tx, await collect_event_trace(tx, str(found.id), kind, [found.subject_id]))


async def trace_by_name(tx: Tx, name: str) -> Trace:
    """Collect the trace of a conversation, or of everything with a correlation id."""
    if conversation := await trace_conversation(tx, name):
        return conversation
    try:
        return await add_notifications(tx, await trace_event(tx, name))
    except NotFound:
        return await trace_requested_notifications(tx, name)


async def trace_requested_notifications(tx: Tx, correlation_id: str) -> FullEventTrace:
    """The notifications that were requested with a correlation id which no event has."""
    notifications = await trace_notifications_of_events(tx, [], correlation_id)
    if not notifications.traces:
        kinds = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
        raise NotFound(f"No {kinds} matches {correlation_id}")
    now = notifications.traces[0].now
    return FullEventTrace(EventTrace(correlation_id, "correlation", now, [], [], [], {}), notifications)


async def list_source_entries(tx: Tx, event_id: UUID | None) -> list[TraceEntry]:
    """How an event was published and handled by the hub's rules, without its deliveries to other services."""
    if event_id is None:
        return []
    trace = await collect_event_trace(tx, str(event_id), "event", [event_id])
    hub_events = {event.id for event in trace.events if event.target_service == HUB_ACTOR.name}
    return [entry for entry in trace.entries if entry.event_id in hub_events or entry.kind == "published"]
