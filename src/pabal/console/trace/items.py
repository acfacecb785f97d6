"""The subjects of a trace: events, dead letters, notifications and messages, with links to their pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from pabal.console.format import redact_user_key
from pabal.console.i18n import Translator
from pabal.core.messages import Message, message_table
from pabal.events.types import EventStatus
from pabal.relay.messages import InboundMessage
from pabal.trace import FullEventTrace, FullNotificationTrace, Trace, broadcast_status_text, list_purged_events
from pabal.trace.entry import TraceTone
from pabal.trace.event_entries import TracedDeadLetter, TracedEvent, event_status_text
from pabal.trace.events import EventTrace
from pabal.trace.notification_entries import notification_requester, notification_status_text
from pabal.trace.notifications import NotificationTrace
from pabal.trace.relay import MessageTrace
from pabal.trace.relay_entries import message_status_text

TONES_BY_STATE: Mapping[str, TraceTone] = {
    **dict.fromkeys(("completed", "sent", "ACKED", "replayed", "resolved"), "good"),
    **dict.fromkeys(("failed", "unresolved"), "bad"),
}
"""Colours of states."""
DEAD_LETTER_STATE_TEXTS = message_table("replayed", "resolved", "unresolved")


TracedItemKind = Literal["event", "delivery", "dead_letter", "notification", "message"]


@dataclass(frozen=True, slots=True)
class TracedItem:
    """One subject of a trace: its page, its source and target (None: all subscribers), and its status."""

    kind: TracedItemKind
    id: UUID
    href: str | None
    title: str
    source: str
    target: str | None
    status_text: str
    tone: TraceTone | Literal[""]


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
    text, status = event_status_text(event, trace.now), event.status
    if event.is_broadcast:
        text, status = broadcast_status_text(event, trace), worst_delivery_status(event, trace)
    return TracedItem(
        kind="delivery" if event.parent_id else "event",
        id=event.id,
        href=event_url(event.id),
        title=event.event_type,
        source=event.source_service,
        target=event.target_service,
        status_text=t.translate(text),
        tone=TONES_BY_STATE.get(status, ""),
    )


def worst_delivery_status(event: TracedEvent, trace: EventTrace) -> EventStatus:
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
