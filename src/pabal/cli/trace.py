"""`pabal trace`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from cyclopts import Parameter

from pabal.cli.context import run_query
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json
from pabal.cli.output import local_time, one_line, print_json, print_table, print_text
from pabal.core.messages import duration_message
from pabal.db.tx import Tx
from pabal.trace import (
    TRACE_TONES,
    FullEventTrace,
    FullNotificationTrace,
    Trace,
    TraceEntry,
    broadcast_status_text,
    label_events,
    list_purged_events,
    merge_entries,
    resolve_trace,
    trace_document,
)
from pabal.trace.event_entries import TracedEvent, event_status_text
from pabal.trace.events import EventTrace
from pabal.trace.notification_entries import notification_requester, notification_status_text
from pabal.trace.notifications import NotificationTrace
from pabal.trace.relay import MessageTrace
from pabal.trace.relay_entries import message_status_text

TONE_STYLES = {"bad": "red", "warning": "yellow", "good": "green", "recovered": "cyan"}
MAX_ERROR_CHARS = 300
"""Characters of an error on one line; --json has all of them."""


def trace_command(
    id: Annotated[
        str,
        Parameter(
            name="ID",
            help="An event, delivery, dead letter, notification, message or reply, whole or short; a correlation id; "
            "or a conversation.",
        ),
    ],
    /,
    *,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Show the history of an event, notification or message.

    Prints its origin, every attempt and how it ended.
    """

    async def read(tx: Tx) -> Trace:
        return await resolve_trace(tx, id)

    trace = run_query(connection, read)
    if json:
        print_json(trace_document(trace))
        return
    match trace:
        case MessageTrace():
            print_message_trace(trace)
        case FullNotificationTrace():
            print_notification_trace(trace)
        case FullEventTrace():
            print_event_trace(trace)


def print_message_trace(trace: MessageTrace) -> None:
    if trace.kind == "conversation":
        rows = [
            (message.id, local_time(message.created_at), message_status_text(message, trace.now))
            for message in trace.messages
        ]
        print_table(("message", "received", "status"), rows, empty="No messages.")
        return
    [message] = trace.messages
    print_text(f"message {message.id}  {one_line(message.conversation_key)} → {message.account_id}", "bold")
    print_text(f"  {one_line(message_status_text(message, trace.now))}\n")
    print_trace_entries(trace.entries, {})


def print_notification_trace(trace: FullNotificationTrace) -> None:
    print_notification_heading(trace.trace)
    print_text("")
    print_trace_entries(merge_entries(trace), {})


def print_notification_heading(trace: NotificationTrace) -> None:
    request = trace.request
    route = f"{notification_requester(request)} → {one_line(f'{request.recipient_type} {request.recipient_id}')}"
    print_text(f"notification {request.id}  {request.template_key}  {route}", "bold")
    print_text(f"  {notification_status_text(request, trace.now)}")


def print_event_trace(full_trace: FullEventTrace) -> None:
    trace, notifications = full_trace.trace, full_trace.notifications
    labels = label_events(trace)
    for event in trace.events:
        print_event_heading(event, trace)
    for event_id in list_purged_events(trace):
        print_text(f"event {event_id}: deleted; this trace is from its dead letters and the audit log", "bold")
    print_text("")
    print_trace_entries(trace.entries, labels)
    for notification_trace in notifications.traces:
        print_text("")
        print_notification_heading(notification_trace)
        print_trace_entries(notification_trace.entries, {})
    if sum(state.count for state in notifications.counts) > len(notifications.traces):
        totals = ", ".join(f"{state.count} {state.state}" for state in notifications.counts)
        print_text(f"\nnotifications: {totals}; showing the first {len(notifications.traces)}")


def print_event_heading(event: TracedEvent, trace: EventTrace) -> None:
    kind = "delivery" if event.parent_id else "event"
    route = f"{event.source_service} → {event.target_service or 'all subscribers'}"
    print_text(f"{kind} {event.id}  {event.event_type}  {route}", "bold")
    status = broadcast_status_text(event, trace) if event.is_broadcast else event_status_text(event, trace.now)
    print_text(f"  {one_line(status)}")


def print_trace_entries(entries: Sequence[TraceEntry], labels: dict[UUID, str]) -> None:
    previous: datetime | None = None
    for entry in entries:
        print_trace_entry(entry, previous, labels.get(entry.event_id, "") if entry.event_id else "")
        previous = entry.at


def print_trace_entry(entry: TraceEntry, previous: datetime | None, label: str) -> None:
    gap = f"+{duration_message(entry.at - previous)}" if previous else ""
    duration = f" ({duration_message(entry.took)})" if entry.took is not None else ""
    prefix = f"{label}  " if label else ""
    text = f"{one_line(entry.says, MAX_ERROR_CHARS)}{duration}"
    style = TONE_STYLES.get(TRACE_TONES.get(entry.kind, ""), "")
    print_text(f"{local_time(entry.at, 'milliseconds')}  {gap:<13} {prefix}{text}", style)
