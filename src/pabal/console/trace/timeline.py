"""The timeline of a trace: its entries in chronological order, and the failed attempts of an event."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from markupsafe import Markup

from pabal.console.i18n import Translator
from pabal.console.trace.items import dead_letter_url, event_url, traced_items
from pabal.core.messages import duration_message
from pabal.events.error_history import FailedAttempt
from pabal.trace import TRACE_TONES, FullEventTrace, FullNotificationTrace, Trace, TraceEntry, label_events
from pabal.trace.entry import TraceEntryKind, TraceTone
from pabal.trace.events import EventTrace
from pabal.trace.relay import MessageTrace

UUID_PATTERN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.ASCII)  # Hangul may follow directly
MESSAGE_LINK_KINDS = frozenset({"carried", "shown"})
"""Kinds of entries whose text contains the id of another message."""


@dataclass(frozen=True, slots=True)
class EntrySubject:
    """What an entry of the timeline is about; empty where a trace has only one subject."""

    kind: Literal["", "event", "notification"] = ""
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
    kind: TraceEntryKind | Literal["dead_letter", "other"]
    tone: TraceTone | Literal[""]
    text: Markup
    subject: EntrySubject
    href: str | None


@dataclass(frozen=True, slots=True)
class FailedAttemptRow:
    """A row of the table of failed attempts."""

    number: int
    at: datetime | None
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
        timeline.append(
            TimelineEntry(
                at=entry.at,
                elapsed=t.translate(duration_message(entry.at - previous)) if previous else "",
                duration=t.translate(duration_message(entry.took)) if entry.took is not None else "",
                kind=entry_tag(t, entry),
                tone=TRACE_TONES.get(entry.kind, ""),
                text=link_ids(t.translate(entry.says), entry.kind, urls),
                subject=subject,
                href=urls.get(subject.id) if subject.id else None,
            )
        )
        previous = entry.at
    return timeline


def entry_tag(t: Translator, entry: TraceEntry) -> TraceEntryKind | Literal["dead_letter", "other"]:
    """The name of the entry's tag. The death of an event is a dead letter."""
    if entry.kind == "died" and entry.letter_id:
        return "dead_letter"
    return entry.kind if t.has_variant("trace.entry", entry.kind) else "other"


def link_ids(text: str, kind: TraceEntryKind, urls: Mapping[UUID, str | None]) -> Markup:
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


def failed_attempt_rows(t: Translator, history: Iterable[FailedAttempt] | None) -> list[FailedAttemptRow]:
    return [
        FailedAttemptRow(
            number=attempt.attempt or position,
            at=attempt.at,
            duration=t.translate(duration_message(attempt.took)) if attempt.took is not None else "",
            worker=attempt.worker or "",
            error=attempt.error,
        )
        for position, attempt in enumerate(history or (), 1)
    ]
