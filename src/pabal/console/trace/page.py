"""The trace page: everything that happened to what an id names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.format import redact_user_key
from pabal.console.guards import Page
from pabal.console.i18n import Translator, translator_for
from pabal.console.pages import read_filters, render_page
from pabal.core.errors import NotFound
from pabal.core.messages import Message, duration_message, message_table
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.relay.messages import InboundMessage
from pabal.trace import (
    TRACE_TONES,
    FullEventTrace,
    FullNotificationTrace,
    Trace,
    TraceEntry,
    TraceMatch,
    broadcast_status_text,
    find_trace_matches,
    label_events,
    list_purged_events,
    trace_by_name,
    trace_match,
)
from pabal.trace.event_entries import TracedDeadLetter, TracedEvent, event_status_text
from pabal.trace.events import EventTrace
from pabal.trace.notification_entries import notification_requester, notification_status_text
from pabal.trace.notifications import NotificationTrace
from pabal.trace.relay import MessageTrace
from pabal.trace.relay_entries import message_status_text

TONES_BY_STATE = {
    **dict.fromkeys(("completed", "sent", "ACKED", "replayed", "resolved"), "good"),
    **dict.fromkeys(("failed", "unresolved"), "bad"),
}
"""Colours of states."""
TONE_CLASSES = {"so-so": "warning", "mended": "recovered"}
"""CSS classes of the tones that are not named like their class."""
DEAD_LETTER_STATE_TEXTS = message_table("replayed", "resolved", "unresolved")


@dataclass(frozen=True, slots=True)
class TracedItem:
    """One subject of a trace: its page, its source and target (None: all subscribers), and its status."""

    kind: str
    id: UUID
    href: str | None
    title: str
    source: str
    target: str | None
    status_text: str
    tone: str


def traced_items(t: Translator, trace: Trace) -> list[TracedItem]:
    """Return the subjects of a trace, the requested one first."""
    match trace:
        case FullEventTrace():
            events = trace.trace
            return [
                *(event_item(t, event, events) for event in events.events),
                *(deleted_event_item(t, event_id, events) for event_id in list_purged_events(events)),
                *(dead_letter_item(t, dead_letter) for dead_letter in events.dead_letters),
                *(notification_item(t, notification) for notification in trace.notifications.traces),
            ]
        case FullNotificationTrace():
            return [notification_item(t, trace.trace)]
        case MessageTrace():
            return [message_item(t, message, trace.now) for message in trace.messages]


def event_item(t: Translator, event: TracedEvent, trace: EventTrace) -> TracedItem:
    kind = "delivery" if event.parent_id else "event"
    text, status = event_status_text(event, trace.now), event.status
    if event.is_broadcast:
        text, status = broadcast_status_text(event, trace), worst_delivery_status(event, trace)
    return TracedItem(
        kind=kind,
        id=event.id,
        href=event_url(event.id),
        title=event.event_type,
        source=event.source_service,
        target=event.target_service,
        status_text=t.translate(text),
        tone=TONES_BY_STATE.get(status, ""),
    )


def worst_delivery_status(event: TracedEvent, trace: EventTrace) -> str:
    """Return the worst status among the deliveries of a broadcast."""
    statuses = {delivery.status for delivery in trace.events if delivery.parent_id == event.id}
    return "failed" if "failed" in statuses else "completed" if statuses == {"completed"} else "pending"


def deleted_event_item(t: Translator, event_id: UUID, trace: EventTrace) -> TracedItem:
    dead_letter = [letter for letter in trace.dead_letters if letter.original_event_id == event_id][-1]
    text = t.translate(Message("its row is gone; this is from its dead letters and the audit log"))
    return TracedItem(
        kind="event",
        id=event_id,
        href=None,
        title=dead_letter.original_event_type,
        source=dead_letter.original_source_service,
        target=dead_letter.original_target_service,
        status_text=text,
        tone="",
    )


def dead_letter_item(t: Translator, dead_letter: TracedDeadLetter) -> TracedItem:
    state = "replayed" if dead_letter.replayed_at else "resolved" if dead_letter.resolved_at else "unresolved"
    actor, text = dead_letter.resolved_by_actor, DEAD_LETTER_STATE_TEXTS[state]
    return TracedItem(
        kind="dead_letter",
        id=dead_letter.id,
        href=dead_letter_url(dead_letter.id),
        title=dead_letter.original_event_type,
        source=dead_letter.original_source_service,
        target=dead_letter.original_target_service,
        status_text=t.translate(Message("{} by {}", text, actor) if actor else text),
        tone=TONES_BY_STATE[state],
    )


def notification_item(t: Translator, trace: NotificationTrace) -> TracedItem:
    request = trace.request
    return TracedItem(
        kind="notification",
        id=request.id,
        href=notification_url(request.id),
        title=request.template_key,
        source=t.translate(notification_requester(request)),
        target=f"{t.variant('notifications.channel', request.recipient_type)} {request.recipient_id}",
        status_text=t.translate(notification_status_text(request, trace.now)),
        tone=TONES_BY_STATE.get(request.state, ""),
    )


def message_item(t: Translator, message: InboundMessage, now: datetime) -> TracedItem:
    return TracedItem(
        kind="message",
        id=message.id,
        href=message_url(message.id),
        title="",
        source=redact_user_key(message.conversation_key),
        target=str(message.account_id)[:8],
        status_text=t.translate(message_status_text(message, now)),
        tone=TONES_BY_STATE.get(message.status, ""),
    )


def event_url(event_id: UUID) -> str:
    return f"/console/events/{event_id}"


def dead_letter_url(dead_letter_id: UUID) -> str:
    return f"/console/dead/{dead_letter_id}"


def notification_url(notification_id: UUID) -> str:
    return f"/console/notifications/{notification_id}"


def message_url(message_id: UUID) -> str:
    return f"/console/relay/messages/{message_id}"


UUID_PATTERN = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.ASCII
)  # ASCII: Hangul may follow directly
MESSAGE_LINK_KINDS = frozenset({"carried", "shown"})
"""Kinds of entries whose text contains the id of another message."""


@dataclass(frozen=True, slots=True)
class EntrySubject:
    """What an entry of the timeline is about; empty where a trace has only one subject."""

    kind: str = ""
    id: UUID | None = None
    name: str = ""


UNNAMED_SUBJECT = EntrySubject()
EntryWithSubject = tuple[TraceEntry, EntrySubject]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An entry with the time since the previous one, its duration and its subject."""

    at: datetime
    elapsed: str
    duration: str
    kind: str
    tone: str
    text: Markup
    subject: EntrySubject
    href: str | None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt, as recorded by an event or its dead letter."""

    number: object
    at: datetime
    duration: str
    worker: str
    error: str


def build_timeline(t: Translator, trace: Trace) -> list[TimelineEntry]:
    """Return all entries of a trace in chronological order."""
    urls = {item.id: item.href for item in traced_items(t, trace)}
    match trace:
        case FullEventTrace():
            entries = entries_with_subjects(t, trace)
        case FullNotificationTrace():
            urls |= {entry.event_id: event_url(entry.event_id) for entry in trace.event_entries if entry.event_id}
            notification = EntrySubject("notification", trace.trace.request.id)
            entries = [
                *((entry, EntrySubject("event", entry.event_id)) for entry in trace.event_entries),
                *((entry, notification) for entry in trace.trace.entries),
            ]
        case MessageTrace():
            entries = [(entry, UNNAMED_SUBJECT) for entry in trace.entries]
    return timeline_entries(t, sorted(entries, key=lambda pair: pair[0].at), urls)


def entries_with_subjects(t: Translator, trace: FullEventTrace) -> list[EntryWithSubject]:
    """Pair the entries with their subjects, which are named only where there are several."""
    names = {event: t.translate(label) for event, label in label_events(trace.trace).items()}
    notifications = trace.notifications.traces
    entries: list[EntryWithSubject] = []
    for entry in trace.trace.entries:
        if entry.event_id is None:
            continue
        subject = EntrySubject("event", entry.event_id, names.get(entry.event_id, ""))
        entries.append((entry, subject if names or notifications else UNNAMED_SUBJECT))
    for notification in notifications:
        channel = t.variant("notifications.channel", notification.request.recipient_type)
        subject = EntrySubject("notification", notification.request.id, f"→ {channel}")
        entries.extend((entry, subject) for entry in notification.entries)
    return entries


def event_timeline(t: Translator, trace: EventTrace, event_id: UUID) -> list[TimelineEntry]:
    """Return the entries of the event itself. The trace page also has those of its deliveries."""
    urls: dict[UUID, str | None] = {letter.id: dead_letter_url(letter.id) for letter in trace.dead_letters}
    urls |= {event.id: event_url(event.id) for event in trace.events}
    entries = ((entry, UNNAMED_SUBJECT) for entry in trace.entries if entry.event_id == event_id)
    return timeline_entries(t, entries, urls)


def timeline_entries(
    t: Translator, entries: Iterable[EntryWithSubject], urls: Mapping[UUID, str | None]
) -> list[TimelineEntry]:
    timeline: list[TimelineEntry] = []
    previous: datetime | None = None
    for entry, subject in entries:
        tone = TRACE_TONES.get(entry.kind, "")
        timeline.append(
            TimelineEntry(
                at=entry.at,
                elapsed=t.translate(duration_message(entry.at - previous)) if previous else "",
                duration=t.translate(duration_message(entry.took)) if entry.took is not None else "",
                kind=entry.kind if t.has_variant("trace.entry", entry.kind) else "other",
                tone=TONE_CLASSES.get(tone, tone),
                text=link_ids(t.translate(entry.says), entry.kind, urls),
                subject=subject,
                href=urls.get(subject.id) if subject.id else None,
            )
        )
        previous = entry.at
    return timeline


def link_ids(text: str, kind: str, urls: Mapping[UUID, str | None]) -> Markup:
    """Turn the ids in a text into links to their pages."""
    html, position = Markup(), 0
    for match in UUID_PATTERN.finditer(text):
        url = urls.get(UUID(match[0]))
        if url is None and kind in MESSAGE_LINK_KINDS:
            url = f"/console/trace?id={match[0]}"
        if url:
            link = Markup('<a href="{}">{}</a>').format(url, match[0])
            html, position = html + text[position : match.start()] + link, match.end()
    return html + text[position:]


def failed_attempts(t: Translator, history: Iterable[Mapping[str, object]] | None) -> list[FailedAttempt]:
    return [parse_failed_attempt(t, row) for row in history or ()]


def parse_failed_attempt(t: Translator, row: Mapping[str, object]) -> FailedAttempt:
    at, began = datetime.fromisoformat(str(row["at"])), row.get("began")
    duration = t.translate(duration_message(at - datetime.fromisoformat(str(began)))) if began else ""
    worker, error = str(row.get("worker") or ""), str(row.get("error") or "")
    return FailedAttempt(row.get("attempt", ""), at, duration, worker, error)


async def trace_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t, query = translator_for(request), read_filters(request, "id").get("id", "")
    async with hub.autocommit() as tx:
        matches = await find_trace_matches(tx, query) if query else []
        trace = await find_trace(tx, query, matches) if query else None
    return render_page(
        request,
        "trace/page.html",
        session=session,
        query=query,
        candidates=matches if len(matches) > 1 else [],
        items=traced_items(t, trace) if trace else [],
        entries=build_timeline(t, trace) if trace else [],
        scope=trace_scope(trace),
        hidden_notifications=count_hidden_notifications(trace),
    )


async def find_trace(tx: Tx, query: str, candidates: list[TraceMatch]) -> Trace | None:
    """Load the trace, unless the query is ambiguous or matches nothing."""
    try:
        match candidates:
            case [match]:
                return await trace_match(tx, match)
            case []:
                return await trace_by_name(tx, query)
            case _:
                return None
    except NotFound:  # unknown, or deleted since it was matched
        return None


def trace_scope(trace: Trace | None) -> str:
    """Return the kind of query if the trace covers several things that share an id."""
    match trace:
        case FullEventTrace(trace=EventTrace(kind="correlation", events=events)) if (
            sum(not event.parent_id for event in events) != 1
        ):
            return "correlation"
        case MessageTrace(kind="conversation"):
            return "conversation"
        case _:
            return ""


def count_hidden_notifications(trace: Trace | None) -> int:
    """Return the number of notifications that the trace counts but does not include."""
    if not isinstance(trace, FullEventTrace):
        return 0
    return sum(group.count for group in trace.notifications.counts) - len(trace.notifications.traces)


PAGES = (Page("/console/trace", trace_page),)
