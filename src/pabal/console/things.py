"""What a story is about, as a page shows it: each thing with its own page and how it stands."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.console.texts import Translator
from pabal.console.veil import redact_user_key
from pabal.core.phrase import Message, message_table
from pabal.events.moments import TracedDeadLetter, TracedEvent, event_status_text
from pabal.events.story import EventTrace
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay
from pabal.relay.messages import InboundMessage
from pabal.trace import FullEventTrace, FullNotificationTrace, Trace, broadcast_status_text, list_purged_events

TONES_BY_STATE = {
    **dict.fromkeys(("completed", "sent", "ACKED", "replayed", "resolved"), "good"),
    **dict.fromkeys(("failed", "unresolved"), "bad"),
}
"""How it is to be taken that something stands so."""
DEAD_LETTER_STATE_TEXTS = message_table("replayed", "resolved", "unresolved")


@dataclass(frozen=True, slots=True)
class TracedItem:
    """What a story is about: its page, from whom to whom (None: to everybody) it is, and how it stands."""

    kind: str
    id: UUID
    href: str | None
    title: str
    source: str
    target: str | None
    status_text: str
    tone: str


def traced_items(t: Translator, trace: Trace) -> list[TracedItem]:
    """Everything the story is about, what it was asked of first."""
    match trace:
        case FullEventTrace():
            story = trace.trace
            return [
                *(event_item(t, each, story) for each in story.events),
                *(deleted_event_item(t, each, story) for each in list_purged_events(story)),
                *(dead_letter_item(t, each) for each in story.dead_letters),
                *(notification_item(t, each) for each in trace.notifications.traces),
            ]
        case FullNotificationTrace():
            return [notification_item(t, trace.trace)]
        case relay.MessageTrace():
            return [message_item(t, each, trace.now) for each in trace.messages]


def event_item(t: Translator, event: TracedEvent, trace: EventTrace) -> TracedItem:
    kind = "delivery" if event.parent_id else "event"
    says, state = event_status_text(event, trace.now), event.status
    if event.is_broadcast:
        says, state = broadcast_status_text(event, trace), worst_delivery_status(event, trace)
    way = (event.source_service, event.target_service)
    return TracedItem(
        kind, event.id, event_url(event.id), event.event_type, *way, t.translate(says), TONES_BY_STATE.get(state, "")
    )


def worst_delivery_status(event: TracedEvent, trace: EventTrace) -> str:
    """How the worst off of a broadcast's deliveries stands."""
    ends = {each.status for each in trace.events if each.parent_id == event.id}
    return "failed" if "failed" in ends else "completed" if ends == {"completed"} else "pending"


def deleted_event_item(t: Translator, event_id: UUID, trace: EventTrace) -> TracedItem:
    last = [each for each in trace.dead_letters if each.original_event_id == event_id][-1]
    says = t.translate(Message("its row is gone; this is from its dead letters and the audit log"))
    way = (last.original_source_service, last.original_target_service)
    return TracedItem("event", event_id, None, last.original_event_type, *way, says, "")


def dead_letter_item(t: Translator, dead_letter: TracedDeadLetter) -> TracedItem:
    state = "replayed" if dead_letter.replayed_at else "resolved" if dead_letter.resolved_at else "unresolved"
    by, says = dead_letter.resolved_by_actor, DEAD_LETTER_STATE_TEXTS[state]
    stands = t.translate(Message("{} by {}", says, by) if by else says)
    way = (dead_letter.original_source_service, dead_letter.original_target_service)
    return TracedItem(
        "letter",
        dead_letter.id,
        dead_letter_url(dead_letter.id),
        dead_letter.original_event_type,
        *way,
        stands,
        TONES_BY_STATE[state],
    )


def notification_item(t: Translator, trace: notices.NotificationTrace) -> TracedItem:
    request = trace.request
    whom = f"{t(f'via {request.recipient_type}')} {request.recipient_id}"
    says = t.translate(notice.notification_status_text(request, trace.now))
    way = (t.translate(notice.notification_requester(request)), whom)
    tone = TONES_BY_STATE.get(request.state, "")
    return TracedItem("notification", request.id, notification_url(request.id), request.template_key, *way, says, tone)


def message_item(t: Translator, message: InboundMessage, now: datetime) -> TracedItem:
    says = t.translate(chat.message_status_text(message, now))
    way = (redact_user_key(message.conversation_key), str(message.account_id)[:8])
    return TracedItem(
        "message", message.id, message_url(message.id), "", *way, says, TONES_BY_STATE.get(message.status, "")
    )


def event_url(event_id: UUID) -> str:
    return f"/console/events/{event_id}"


def dead_letter_url(dead_letter_id: UUID) -> str:
    return f"/console/dead/{dead_letter_id}"


def notification_url(notification_id: UUID) -> str:
    return f"/console/notifications/{notification_id}"


def message_url(message_id: UUID) -> str:
    return f"/console/relay/messages/{message_id}"
