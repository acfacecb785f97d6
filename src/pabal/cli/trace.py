"""`pabal trace`: one id's story."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from cyclopts import Parameter

from pabal.cli.context import with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import local_time, one_line, print_json, print_table, print_text
from pabal.core.messages import duration_message
from pabal.hub import Hub
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

TONE_STYLES = {"bad": "red", "so-so": "yellow", "good": "green", "mended": "cyan"}
MAX_ERROR_CHARS = 300
"""Characters of an error a line has room for; --json has them all."""


def trace_command(
    id: Annotated[
        str,
        Parameter(
            name="ID",
            help="An event, a delivery, a dead letter, a notification, a message, a reply (the first 8 characters may "
            "do), a correlation id or a conversation.",
        ),
    ],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Tell what became of an event, a notification or a message: who brought it, each attempt, how it ended."""

    async def look(hub: Hub) -> Trace:
        async with hub.autocommit() as tx:
            return await resolve_trace(tx, id)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(trace_document(found))
        return
    match found:
        case MessageTrace():
            print_message_trace(found)
        case FullNotificationTrace():
            print_notification_trace(found)
        case FullEventTrace():
            print_event_trace(found)


def print_message_trace(trace: MessageTrace) -> None:
    if trace.kind == "conversation":
        rows = [(each.id, local_time(each.created_at), message_status_text(each, trace.now)) for each in trace.messages]
        print_table(("message", "came", "how it stands"), rows, empty="No messages.")
        return
    [message] = trace.messages
    whose = one_line(message.conversation_key)
    print_text(f"message {message.id}  {whose} → {message.account_id}", "bold")
    print_text(f"  {one_line(message_status_text(message, trace.now))}\n")
    print_trace_entries(trace.entries, {})


def print_notification_trace(trace: FullNotificationTrace) -> None:
    print_notification_heading(trace.trace)
    print_text("")
    print_trace_entries(merge_entries(trace), {})


def print_notification_heading(trace: NotificationTrace) -> None:
    request = trace.request
    whom = one_line(f"{request.recipient_type} {request.recipient_id}")
    print_text(f"notification {request.id}  {request.template_key}  {notification_requester(request)} → {whom}", "bold")
    print_text(f"  {notification_status_text(request, trace.now)}")


def print_event_trace(trace: FullEventTrace) -> None:
    found = trace.trace
    labels = label_events(found)
    for event in found.events:
        print_event_heading(event, found)
    for event_id in list_purged_events(found):
        print_text(
            f"event {event_id}: its row is gone; what follows is from its dead letters and the audit log", "bold"
        )
    print_text("")
    print_trace_entries(found.entries, labels)
    for each in trace.notifications.traces:
        print_text("")
        print_notification_heading(each)
        print_trace_entries(each.entries, {})
    if sum(each.count for each in trace.notifications.counts) > len(trace.notifications.traces):
        many = ", ".join(f"{each.count} {each.state}" for each in trace.notifications.counts)
        print_text(f"\nnotifications in all: {many}; the first {len(trace.notifications.traces)} are told here")


def print_event_heading(event: TracedEvent, trace: EventTrace) -> None:
    kind = "delivery" if event.parent_id else "event"
    whom = event.target_service or "everybody"
    print_text(f"{kind} {event.id}  {event.event_type}  {event.source_service} → {whom}", "bold")
    stands = broadcast_status_text(event, trace) if event.is_broadcast else event_status_text(event, trace.now)
    print_text(f"  {one_line(stands)}")


def print_trace_entries(entries: Sequence[TraceEntry], labels: dict[UUID, str]) -> None:
    before: datetime | None = None
    for moment in entries:
        print_trace_entry(moment, before, labels.get(moment.event_id, "") if moment.event_id else "")
        before = moment.at


def print_trace_entry(entry: TraceEntry, previous: datetime | None, label: str) -> None:
    gap = f"+{duration_message(entry.at - previous)}" if previous else ""
    took = f" ({duration_message(entry.took)})" if entry.took is not None else ""
    who = f"{label}  " if label else ""
    words = f"{one_line(entry.says, MAX_ERROR_CHARS)}{took}"
    style = TONE_STYLES.get(TRACE_TONES.get(entry.kind, ""), "")
    print_text(f"{local_time(entry.at, 'milliseconds')}  {gap:<13} {who}{words}", style)
