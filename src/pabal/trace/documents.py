"""Traces as JSON documents."""

from dataclasses import asdict
from typing import Any

from pabal.trace.entry import entry_documents
from pabal.trace.event_entries import event_status_text
from pabal.trace.events import FullEventTrace
from pabal.trace.notification_entries import notification_status_text
from pabal.trace.notifications import FullNotificationTrace, NotificationTrace, merge_entries
from pabal.trace.relay import MessageTrace
from pabal.trace.relay_entries import message_status_text


def trace_document(trace: FullEventTrace | FullNotificationTrace | MessageTrace) -> dict[str, Any]:
    match trace:
        case FullEventTrace():
            return event_trace_document(trace)
        case FullNotificationTrace():
            return notification_trace_document(trace)
        case MessageTrace():
            return message_trace_document(trace)


def event_trace_document(full: FullEventTrace) -> dict[str, Any]:
    trace, notifications = full.trace, full.notifications
    return {
        "about": trace.subject,
        "kind": trace.kind,
        "events": [asdict(event) | {"standing": event_status_text(event, trace.now)} for event in trace.events],
        "dead_letters": [asdict(letter) for letter in trace.dead_letters],
        "moments": entry_documents(trace.entries),
        "notifications": {
            "counts": {row.state: row.count for row in notifications.counts},
            "items": [
                notification_document(item) | {"moments": entry_documents(item.entries)}
                for item in notifications.traces
            ],
        },
    }


def notification_trace_document(full: FullNotificationTrace) -> dict[str, Any]:
    return {
        "about": str(full.trace.request.id),
        "kind": "notification",
        "notification": notification_document(full.trace),
        "moments": entry_documents(merge_entries(full)),
    }


def notification_document(trace: NotificationTrace) -> dict[str, Any]:
    return asdict(trace.request) | {
        "standing": notification_status_text(trace.request, trace.now),
        "attempts": [asdict(attempt) for attempt in trace.attempts],
    }


def message_trace_document(trace: MessageTrace) -> dict[str, Any]:
    messages = [asdict(message) | {"standing": message_status_text(message, trace.now)} for message in trace.messages]
    return {
        "about": trace.subject,
        "kind": trace.kind,
        "messages": messages,
        "reply": asdict(trace.reply) if trace.reply else None,
        "moments": entry_documents(trace.entries),
    }
