"""Trace: what somebody means by an id, and its whole story, in whichever lane it is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import Invalid, NotFound
from pabal.core.messages import Message, join_messages
from pabal.db.tx import Tx
from pabal.trace.events import (
    EVENT_STATUS_TEXTS,
    EventTrace,
    EventTraceEntry,
    TracedEvent,
    collect_event_trace,
    event_status_text,
    find_event_matches,
    trace_event,
)
from pabal.trace.notifications import (
    EventNotifications,
    NotificationTrace,
    NotificationTraceEntry,
    find_notification_matches,
    notification_status_text,
    trace_notification,
    trace_notifications_of_events,
)
from pabal.trace.relay import (
    MessageMatch,
    MessageTrace,
    MessageTraceEntry,
    find_message_matches,
    message_status_text,
    trace_conversation,
    trace_message,
)

TRACE_TONES = {
    **dict.fromkeys(("died", "refused", "unknown"), "bad"),
    **dict.fromkeys(("failed", "expired", "late", "suppressed"), "so-so"),
    **dict.fromkeys(("completed", "sent"), "good"),
    **dict.fromkeys(("replayed", "resolved", "shown"), "mended"),
}
"""How a moment of each kind is to be taken; of the others there is nothing to feel."""
MAX_LISTED_MATCHES = 5
TraceEntry = EventTraceEntry | MessageTraceEntry | NotificationTraceEntry


@dataclass(frozen=True, slots=True)
class TraceMatch:
    """Something whose id begins as somebody said: what it is, and the row whose story tells of it."""

    id: UUID
    kind: str
    subject_id: UUID


@dataclass(frozen=True, slots=True)
class FullEventTrace:
    """An event's story, and what the rules made of it."""

    trace: EventTrace
    notifications: EventNotifications


@dataclass(frozen=True, slots=True)
class FullNotificationTrace:
    """A notification's story, and what happened before: to the event that made it."""

    trace: NotificationTrace
    event_entries: list[EventTraceEntry]


Trace = FullEventTrace | FullNotificationTrace | MessageTrace


async def resolve_trace(tx: Tx, name: str) -> Trace:
    """Find out what was meant, in whichever lane it is."""
    found = await find_trace_matches(tx, name)
    if len(found) > 1:
        some = ", ".join(str(each.id) for each in found[:MAX_LISTED_MATCHES])
        raise Invalid.of_field(
            "id", f"several begin with {name}: {some}{' …' if len(found) > MAX_LISTED_MATCHES else ''}"
        )
    return await trace_match(tx, found[0]) if found else await trace_by_name(tx, name)


async def find_trace_matches(tx: Tx, name: str) -> list[TraceMatch]:
    """Everything whose id begins so; a few of each kind tell whether it is one."""
    published, said = await find_event_matches(tx, name), await find_message_matches(tx, name)
    noticed = await find_notification_matches(tx, name)
    return [
        *(TraceMatch(each.matched_id, each.kind, each.event_id) for each in published.values()),
        *(TraceMatch(each.matched_id, each.kind, each.message_id) for each in said.values()),
        *(TraceMatch(each, "notification", each) for each in noticed),
    ]


async def trace_match(tx: Tx, candidate: TraceMatch) -> Trace:
    """Tell the story of what was meant."""
    match candidate.kind:
        case "message" | "reply":
            return await trace_message(tx, MessageMatch(candidate.id, candidate.subject_id, candidate.kind))
        case "notification":
            found = await trace_notification(tx, candidate.subject_id)
            return FullNotificationTrace(found, await list_source_entries(tx, found.request.event_id))
        case kind:
            return await with_notifications(
                tx, await collect_event_trace(tx, str(candidate.id), kind, [candidate.subject_id])
            )


async def trace_by_name(tx: Tx, name: str) -> Trace:
    """Tell of what has a name of another kind: a conversation, or all that share a correlation id."""
    if recent := await trace_conversation(tx, name):
        return recent
    try:
        return await with_notifications(tx, await trace_event(tx, name))
    except NotFound:
        return await trace_requested_notifications(tx, name)


async def with_notifications(tx: Tx, trace: EventTrace) -> FullEventTrace:
    correlation = trace.subject if trace.kind == "correlation" else None
    return FullEventTrace(
        trace,
        await trace_notifications_of_events(
            tx, [event.id for event in trace.events] + list_purged_events(trace), correlation
        ),
    )


async def trace_requested_notifications(tx: Tx, correlation: str) -> FullEventTrace:
    """Tell of notifications that were asked for under a correlation id which no event has."""
    made = await trace_notifications_of_events(tx, [], correlation)
    if not made.traces:
        what = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
        raise NotFound(f"there is no {what} {correlation}")
    return FullEventTrace(EventTrace(correlation, "correlation", made.traces[0].now, [], [], []), made)


async def list_source_entries(tx: Tx, event_id: UUID | None) -> list[EventTraceEntry]:
    """How an event came and how the hub's rules had it; what it was for others is its own story."""
    if event_id is None:
        return []
    story = await collect_event_trace(tx, str(event_id), "event", [event_id])
    ours = {each.id for each in story.events if each.target_service == HUB_ACTOR.name}
    return [each for each in story.entries if each.event_id in ours or each.kind == "published"]


def merge_entries(trace: FullNotificationTrace) -> list[TraceEntry]:
    """What happened to the event and to the notification, in one line of time."""
    moments: list[TraceEntry] = [*trace.event_entries, *trace.trace.entries]
    return sorted(moments, key=lambda moment: moment.at)


def broadcast_status_text(event: TracedEvent, trace: EventTrace) -> Message:
    """How a broadcast stands: as those it is for have it."""
    ends = Counter(each.status for each in trace.events if each.parent_id == event.id)
    many = [Message("{} {}", count, EVENT_STATUS_TEXTS.get(status, status)) for status, count in sorted(ends.items())]
    return Message("deliveries: {}", join_messages(many)) if many else Message("nobody had subscribed to it")


def label_events(trace: EventTrace) -> dict[UUID, str]:
    """How each event of several is called in a line: by its receiver, or by its id where that is not enough."""
    ids = {moment.event_id: None for moment in trace.entries}
    if len(ids) == 1:
        return {}
    everybody = Message("everybody")
    whom: dict[UUID, str] = {event.id: Message("→ {}", event.target_service or everybody) for event in trace.events}
    often = Counter(whom.values())
    return {each: whom[each] if often.get(whom.get(each, "")) == 1 else str(each) for each in ids}


def list_purged_events(trace: EventTrace) -> list[UUID]:
    """Events of which only dead letters are left."""
    there = {event.id for event in trace.events}
    return [
        each for each in dict.fromkeys(death.original_event_id for death in trace.dead_letters) if each not in there
    ]


def trace_document(trace: Trace) -> dict[str, Any]:
    """A story as programs read it."""
    match trace:
        case FullEventTrace():
            return event_trace_document(trace)
        case FullNotificationTrace():
            return notification_trace_document(trace)
        case MessageTrace():
            return message_trace_document(trace)


def event_trace_document(trace: FullEventTrace) -> dict[str, Any]:
    found, made = trace.trace, trace.notifications
    return {
        "about": found.subject,
        "kind": found.kind,
        "events": [asdict(event) | {"standing": event_status_text(event, found.now)} for event in found.events],
        "dead_letters": [asdict(death) for death in found.dead_letters],
        "moments": entry_documents(found.entries),
        "notifications": {
            "counts": {each.state: each.count for each in made.counts},
            "items": [notification_document(each) | {"moments": entry_documents(each.entries)} for each in made.traces],
        },
    }


def notification_trace_document(trace: FullNotificationTrace) -> dict[str, Any]:
    found = trace.trace
    return {
        "about": str(found.request.id),
        "kind": "notification",
        "notification": notification_document(found),
        "moments": entry_documents(merge_entries(trace)),
    }


def notification_document(trace: NotificationTrace) -> dict[str, Any]:
    stands = notification_status_text(trace.request, trace.now)
    return asdict(trace.request) | {"standing": stands, "attempts": [asdict(each) for each in trace.attempts]}


def message_trace_document(trace: MessageTrace) -> dict[str, Any]:
    return {
        "about": trace.subject,
        "kind": trace.kind,
        "messages": [asdict(each) | {"standing": message_status_text(each, trace.now)} for each in trace.messages],
        "reply": asdict(trace.reply) if trace.reply else None,
        "moments": entry_documents(trace.entries),
    }


def entry_documents(entries: Sequence[TraceEntry]) -> list[dict[str, Any]]:
    """Moments as programs read them: seconds since the one before, and how many an attempt took."""
    told: list[dict[str, Any]] = []
    for place, moment in enumerate(entries):
        since = moment.at - entries[place - 1].at if place else None
        took = moment.took.total_seconds() if moment.took is not None else None
        after = since.total_seconds() if since is not None else None
        told.append(asdict(moment) | {"took": took, "after": after})
    return told
