"""One line of time through a story: what happened, how long after what, how long it took."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from markupsafe import Markup

from pabal.console.texts import TEXTS, Translator
from pabal.console.things import dead_letter_url, event_url, traced_items
from pabal.core.phrase import duration_message
from pabal.events.story import EventTrace
from pabal.relay import story as relay
from pabal.trace import TRACE_TONES, FullEventTrace, FullNotificationTrace, Trace, TraceEntry, label_events

UUID_PATTERN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.ASCII)  # in Korean a letter follows
MESSAGE_LINK_KINDS = frozenset({"carried", "shown"})
"""Kinds of moments whose words name another message."""


@dataclass(frozen=True, slots=True)
class EntrySubject:
    """What a moment happened to; nameless where there is only one thing it can be."""

    kind: str = ""
    id: UUID | None = None
    name: str = ""


UNNAMED_SUBJECT = EntrySubject()
EntryWithSubject = tuple[TraceEntry, EntrySubject]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A moment among the others: how long after the one before, how long it took, and what it happened to."""

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
    """One that failed, as an event's row or its dead letter remembers it."""

    number: object
    at: datetime
    duration: str
    worker: str
    error: str


def build_timeline(t: Translator, trace: Trace) -> list[TimelineEntry]:
    """Every moment of the story, the first first."""
    pages = {each.id: each.href for each in traced_items(t, trace)}
    match trace:
        case FullEventTrace():
            placed = entries_with_subjects(t, trace)
        case FullNotificationTrace():
            pages |= {each.event_id: event_url(each.event_id) for each in trace.event_entries}
            notification = EntrySubject("notification", trace.trace.request.id)
            placed = [
                *((each, EntrySubject("event", each.event_id)) for each in trace.event_entries),
                *((each, notification) for each in trace.trace.entries),
            ]
        case relay.MessageTrace():
            placed = [(each, UNNAMED_SUBJECT) for each in trace.entries]
    return timeline_entries(t, sorted(placed, key=lambda each: each[0].at), pages)


def entries_with_subjects(t: Translator, trace: FullEventTrace) -> list[EntryWithSubject]:
    names = {event: t.translate(label) for event, label in label_events(trace.trace).items()}
    made = trace.notifications.traces
    several = bool(names or made)
    return [
        *(
            (each, EntrySubject("event", each.event_id, names.get(each.event_id, "")) if several else UNNAMED_SUBJECT)
            for each in trace.trace.entries
        ),
        *(
            (moment, EntrySubject("notification", each.request.id, f"→ {t(f'via {each.request.recipient_type}')}"))
            for each in made
            for moment in each.entries
        ),
    ]


def event_timeline(t: Translator, trace: EventTrace, event_id: UUID) -> list[TimelineEntry]:
    """What happened to this event itself; what happened to its deliveries is in the whole story."""
    pages: dict[UUID, str | None] = {each.id: dead_letter_url(each.id) for each in trace.dead_letters}
    pages |= {each.id: event_url(each.id) for each in trace.events}
    return timeline_entries(t, ((each, UNNAMED_SUBJECT) for each in trace.entries if each.event_id == event_id), pages)


def timeline_entries(
    t: Translator, entries: Iterable[EntryWithSubject], urls: Mapping[UUID, str | None]
) -> list[TimelineEntry]:
    told: list[TimelineEntry] = []
    before: datetime | None = None
    for moment, about in entries:
        told.append(
            TimelineEntry(
                at=moment.at,
                elapsed=t.translate(duration_message(moment.at - before)) if before else "",
                duration=t.translate(duration_message(moment.took)) if moment.took is not None else "",
                kind=moment.kind if f"moment {moment.kind}" in TEXTS else "other",
                tone=TRACE_TONES.get(moment.kind, ""),
                text=link_ids(t.translate(moment.says), moment.kind, urls),
                subject=about,
                href=urls.get(about.id) if about.id else None,
            )
        )
        before = moment.at
    return told


def link_ids(text: str, kind: str, urls: Mapping[UUID, str | None]) -> Markup:
    """A moment's words; the ids in them lead to their pages."""
    said, place = Markup(), 0
    for written in UUID_PATTERN.finditer(text):
        page = urls.get(UUID(written[0]))
        if page is None and kind in MESSAGE_LINK_KINDS:
            page = f"/console/trace?id={written[0]}"
        if page:
            link = Markup('<a href="{}">{}</a>').format(page, written[0])
            said, place = said + text[place : written.start()] + link, written.end()
    return said + text[place:]


def failed_attempts(t: Translator, history: Iterable[Mapping[str, object]] | None) -> list[FailedAttempt]:
    return [parse_failed_attempt(t, each) for each in history or ()]


def parse_failed_attempt(t: Translator, row: Mapping[str, object]) -> FailedAttempt:
    at, began = datetime.fromisoformat(str(row["at"])), row.get("began")
    took = t.translate(duration_message(at - datetime.fromisoformat(str(began)))) if began else ""
    return FailedAttempt(row.get("attempt", ""), at, took, str(row.get("worker") or ""), str(row.get("error") or ""))
