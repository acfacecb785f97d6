"""The trace page: one id in, its whole story out."""

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
from pabal.console.i18n import TEXTS, Translator, translator_for
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
        case MessageTrace():
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


def notification_item(t: Translator, trace: NotificationTrace) -> TracedItem:
    request = trace.request
    whom = f"{t(f'via {request.recipient_type}')} {request.recipient_id}"
    says = t.translate(notification_status_text(request, trace.now))
    way = (t.translate(notification_requester(request)), whom)
    tone = TONES_BY_STATE.get(request.state, "")
    return TracedItem("notification", request.id, notification_url(request.id), request.template_key, *way, says, tone)


def message_item(t: Translator, message: InboundMessage, now: datetime) -> TracedItem:
    says = t.translate(message_status_text(message, now))
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
            pages |= {each.event_id: event_url(each.event_id) for each in trace.event_entries if each.event_id}
            notification = EntrySubject("notification", trace.trace.request.id)
            placed = [
                *((each, EntrySubject("event", each.event_id)) for each in trace.event_entries),
                *((each, notification) for each in trace.trace.entries),
            ]
        case MessageTrace():
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
            if each.event_id
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


async def trace_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t, name = translator_for(request), read_filters(request, "id").get("id", "")
    async with hub.autocommit() as tx:
        meant = await find_trace_matches(tx, name) if name else []
        told = await find_trace(tx, name, meant) if name else None
    return render_page(
        request,
        "trace/page.html",
        session=session,
        query=name,
        candidates=meant if len(meant) > 1 else [],
        items=traced_items(t, told) if told else [],
        entries=build_timeline(t, told) if told else [],
        scope=trace_scope(told),
        hidden_notifications=count_hidden_notifications(told),
    )


async def find_trace(tx: Tx, query: str, candidates: list[TraceMatch]) -> Trace | None:
    """What is told of this name; nothing, where it may be several or is none."""
    try:
        match candidates:
            case [one]:
                return await trace_match(tx, one)
            case []:
                return await trace_by_name(tx, query)
            case _:
                return None
    except NotFound:  # or gone since it was found
        return None


def trace_scope(trace: Trace | None) -> str:
    """What the story is of, where it is of several things that share a name."""
    match trace:
        case FullEventTrace(trace=EventTrace(kind="correlation", events=events)) if (
            sum(not each.parent_id for each in events) != 1
        ):
            return "correlation"
        case MessageTrace(kind="conversation"):
            return "conversation"
        case _:
            return ""


def count_hidden_notifications(trace: Trace | None) -> int:
    """Notifications the story only counts."""
    if not isinstance(trace, FullEventTrace):
        return 0
    return sum(each.count for each in trace.notifications.counts) - len(trace.notifications.traces)


PAGES = (Page("/console/trace", trace_page),)
