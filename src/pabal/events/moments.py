"""Moments: what the rows of an event say happened to it, in words and in order. Nothing here asks the database."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.phrase import Phrase, lasting, words

KEPT = 20
"""How many failed attempts an event remembers."""
REPLAYED = "dead_letter.replayed"
TOLD = frozenset({REPLAYED, "dead_letter.resolved", "event.cancelled"})
"""Deeds that the rows they changed tell of themselves."""
CANCELLED_BY = "cancelled by "
STATUSES = words("pending", "processing", "completed", "failed", "cancelled")
SOMEBODY = Phrase("somebody")


@dataclass(frozen=True, slots=True)
class Traced:
    """An event as its row tells it."""

    id: UUID
    event_type: str
    source_service: str
    target_service: str | None
    status: str
    retry_count: int
    max_retries: int
    created_at: datetime
    updated_at: datetime
    next_retry_at: datetime | None
    processing_started_at: datetime | None
    processor_id: str | None
    processed_at: datetime | None
    last_error: str | None
    error_history: Sequence[dict[str, Any]] | None
    expires_at: datetime | None
    ordering_key: str | None
    correlation_id: str | None
    parent_id: UUID | None
    origin_id: UUID | None
    is_broadcast: bool
    is_unhandled: bool
    held_until: datetime | None


@dataclass(frozen=True, slots=True)
class Death:
    """A dead letter as a story tells it."""

    id: UUID
    original_event_id: UUID
    origin_id: UUID
    death: int
    original_event_type: str
    original_source_service: str
    original_target_service: str | None
    error_message: str
    error_history: Sequence[dict[str, Any]] | None
    failed_at: datetime
    resolved_at: datetime | None
    resolved_by_actor: str | None
    resolution_notes: str | None
    replayed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody did, as the audit log has it."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened. `took` is how long an attempt lasted, where that is known."""

    at: datetime
    event_id: UUID
    kind: str
    says: str
    by: str | None = None
    took: timedelta | None = None
    letter_id: UUID | None = None


def told(
    events: Iterable[Traced], deaths: Sequence[Death], deeds: Sequence[Deed], lives: Mapping[UUID, UUID]
) -> list[Moment]:
    """Everything that happened to these events, the first first. `lives` says which event each replay revived."""
    rows = {event.id: event for event in events}
    moments: list[Moment] = []
    for event in rows.values():
        moments += of_event(event, rows)
    for event_id in dict.fromkeys(death.original_event_id for death in deaths):
        own = [death for death in deaths if death.original_event_id == event_id]
        if event_id not in rows:
            moments += attempts(event_id, own[-1].error_history or ())
        for death in own:
            moments += of_death(death, lives.get(death.id))
    moments += of_deeds(deeds, rows)
    return sorted(moments, key=lambda moment: moment.at)  # one after the other as told, where the time is the same


def of_event(event: Traced, rows: Mapping[UUID, Traced]) -> Iterator[Moment]:
    if event.origin_id in {None, event.id}:
        yield published(event, rows)
    history = event.error_history or ()
    started, ended = event.processing_started_at, event.processed_at
    yield from attempts(event.id, history)
    by = event.processor_id
    match event.status:
        case "processing" if started:
            says = Phrase("attempt {} began, by {}", event.retry_count + 1, by or SOMEBODY)
            yield Moment(started, event.id, "claimed", says, by)
        case "pending" if snoozed(event, history):
            says = Phrase("put off, no attempt spent: {}", event.last_error)
            yield Moment(event.updated_at, event.id, "snoozed", says)
        case "completed" if ended and not event.is_broadcast:
            took = ended - started if started else None
            which = Phrase("attempt {} by {} succeeded", event.retry_count + 1, by or SOMEBODY)
            says = which if started else Phrase("completed by hand")
            yield Moment(ended, event.id, "completed", says, by if started else None, took)
        case "cancelled" if ended:
            yield called_off(event, ended)
        case _:
            return


def called_off(event: Traced, at: datetime) -> Moment:
    why = event.last_error or ""
    if why == "expired":
        return Moment(at, event.id, "expired", Phrase("expired: nobody was handed it in time"))
    if why.startswith(CANCELLED_BY):
        by = why.removeprefix(CANCELLED_BY)
        return Moment(at, event.id, "cancelled", Phrase("cancelled by {}", by), by)
    return Moment(at, event.id, "cancelled", why or STATUSES["cancelled"])


def published(event: Traced, rows: Mapping[UUID, Traced]) -> Moment:
    if event.parent_id in rows:
        return Moment(event.created_at, event.id, "owed", Phrase("owed to {}", event.target_service))
    whom = event.target_service or Phrase("everybody who wants it")
    says = Phrase("{} published by {} for {}", event.event_type, event.source_service, whom)
    if event.parent_id:
        says = Phrase("{}, a delivery of {}", says, event.parent_id)
    if is_later(event):
        says = Phrase("{}, to be delivered later", says)
    return Moment(event.created_at, event.id, "published", says, event.source_service)


def is_later(event: Traced) -> bool:
    """The publisher said when, and nothing has happened since that would have moved it."""
    untouched = not event.error_history and not event.last_error and event.processing_started_at is None
    return untouched and event.next_retry_at is not None and event.next_retry_at > event.created_at


def attempts(event_id: UUID, history: Sequence[Mapping[str, Any]]) -> Iterator[Moment]:
    """Those that failed. Of one from the days before it was noted nobody knows when it began."""
    for place, each in enumerate(history, 1):
        at, began = datetime.fromisoformat(each["at"]), each.get("began")
        took = at - datetime.fromisoformat(began) if began else None
        worker = each.get("worker")
        says = Phrase("attempt {} by {} failed: {}", each["attempt"], worker or SOMEBODY, each["error"])
        if place == 1 and len(history) >= KEPT:
            says = Phrase("{} (those before are no longer kept)", says)
        yield Moment(at, event_id, "failed", says, worker, took)


def snoozed(event: Traced, history: Sequence[Mapping[str, Any]]) -> bool:
    """A reason that is no failed attempt's was given with a time to come back."""
    if not event.last_error or not event.next_retry_at:
        return False
    return not history or not event.last_error.startswith(history[-1]["error"])


def of_death(death: Death, lives: UUID | None) -> Iterator[Moment]:
    event_id, letter = death.original_event_id, death.id
    says = Phrase("died: {}; dead letter {}", death.error_message, letter)
    if death.death > 1:
        says = Phrase("died, for the {}. time: {}; dead letter {}", death.death, death.error_message, letter)
    yield Moment(death.failed_at, event_id, "died", says, letter_id=letter)
    by = death.resolved_by_actor
    if death.replayed_at:
        says = Phrase("replayed by {}", by) if by else Phrase("replayed")
        if lives and lives != event_id:
            says = Phrase("{}, as the new event {}", says, lives)
        yield Moment(death.replayed_at, event_id, "replayed", says, by, letter_id=letter)
    elif death.resolved_at:
        says = Phrase("dead letter resolved by {}", by) if by else Phrase("dead letter resolved")
        if death.resolution_notes:
            says = Phrase("{}: {}", says, death.resolution_notes)
        yield Moment(death.resolved_at, event_id, "resolved", says, by, letter_id=letter)


def standing(event: Traced, now: datetime) -> str:
    """How it stands now, in a few words."""
    match event.status:
        case "pending" if event.next_retry_at and event.next_retry_at > now:
            return Phrase("pending, due in {}", lasting(event.next_retry_at - now))
        case "pending" if event.is_unhandled:
            return Phrase("pending, due; no handler of {} takes {}", event.target_service, event.event_type)
        case "pending":
            in_line = Phrase("pending, behind or at the head of its line")
            return in_line if event.ordering_key else Phrase("pending, due")
        case "processing" if event.held_until and event.held_until > now:
            left = lasting(event.held_until - now)
            return Phrase("processing, held by {}; the lease ends in {}", event.processor_id, left)
        case "processing" if event.held_until:
            return Phrase("processing, held by {}; the lease has ended", event.processor_id)
        case status:
            return STATUSES.get(status, status)


def of_deeds(deeds: Iterable[Deed], rows: Mapping[UUID, Traced]) -> Iterator[Moment]:
    """What the rows do not tell: other deeds, and what was done to a broadcast or to an event that is gone."""
    for deed in deeds:
        subject = UUID(deed.subject)
        row = rows.get(subject)
        if deed.action == "event.cancelled" and (row is None or row.status != "cancelled"):
            says = Phrase("cancelled by {}", deed.actor)
            if row and row.is_broadcast:
                says = Phrase("{}, {} deliveries", says, deed.details.get("count", 1))
            yield Moment(deed.at, subject, "cancelled", says, deed.actor)
        elif deed.action not in TOLD:
            yield Moment(deed.at, subject, "deed", Phrase("{} by {}", deed.action, deed.actor), deed.actor)
