"""One line of time through a story: what happened, how long after what, how long it took."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from markupsafe import Markup

from pabal.console.texts import TEXTS, Texts
from pabal.console.things import event_page, letter_page, things
from pabal.core.phrase import lasting
from pabal.events.story import Story
from pabal.relay import story as relay
from pabal.trace import TONES, AnyMoment, EventTold, NoticeTold, Told, labels_of

UUID_WRITTEN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.ASCII)  # in Korean a letter follows
OF_MESSAGES = frozenset({"carried", "shown"})
"""Kinds of moments whose words name another message."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a moment happened to; nameless where there is only one thing it can be."""

    kind: str = ""
    id: UUID | None = None
    name: str = ""


ITSELF = Subject()
Placed = tuple[AnyMoment, Subject]


@dataclass(frozen=True, slots=True)
class Line:
    """A moment among the others: how long after the one before, how long it took, and what it happened to."""

    at: datetime
    after: str
    took: str
    kind: str
    tone: str
    says: Markup
    about: Subject
    href: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that failed, as an event's row or its dead letter remembers it."""

    number: object
    at: datetime
    took: str
    by: str
    error: str


def timeline(t: Texts, told: Told) -> list[Line]:
    """Every moment of the story, the first first."""
    pages = {each.id: each.href for each in things(t, told)}
    match told:
        case EventTold():
            placed = of_event(t, told)
        case NoticeTold():
            pages |= {each.event_id: event_page(each.event_id) for each in told.before}
            notification = Subject("notification", told.story.request.id)
            placed = [
                *((each, Subject("event", each.event_id)) for each in told.before),
                *((each, notification) for each in told.story.moments),
            ]
        case relay.Story():
            placed = [(each, ITSELF) for each in told.moments]
    return lines(t, sorted(placed, key=lambda each: each[0].at), pages)


def of_event(t: Texts, told: EventTold) -> list[Placed]:
    names = {event: t.retell(label) for event, label in labels_of(told.story).items()}
    made = told.made.stories
    several = bool(names or made)
    return [
        *(
            (each, Subject("event", each.event_id, names.get(each.event_id, "")) if several else ITSELF)
            for each in told.story.moments
        ),
        *(
            (moment, Subject("notification", each.request.id, f"→ {t(f'via {each.request.recipient_type}')}"))
            for each in made
            for moment in each.moments
        ),
    ]


def of_one(t: Texts, story: Story, event: UUID) -> list[Line]:
    """What happened to this event itself; what happened to its deliveries is in the whole story."""
    pages: dict[UUID, str | None] = {each.id: letter_page(each.id) for each in story.deaths}
    pages |= {each.id: event_page(each.id) for each in story.events}
    return lines(t, ((each, ITSELF) for each in story.moments if each.event_id == event), pages)


def lines(t: Texts, placed: Iterable[Placed], pages: Mapping[UUID, str | None]) -> list[Line]:
    told: list[Line] = []
    before: datetime | None = None
    for moment, about in placed:
        told.append(
            Line(
                at=moment.at,
                after=t.retell(lasting(moment.at - before)) if before else "",
                took=t.retell(lasting(moment.took)) if moment.took is not None else "",
                kind=moment.kind if f"moment {moment.kind}" in TEXTS else "other",
                tone=TONES.get(moment.kind, ""),
                says=linked(t.retell(moment.says), moment.kind, pages),
                about=about,
                href=pages.get(about.id) if about.id else None,
            )
        )
        before = moment.at
    return told


def linked(says: str, kind: str, pages: Mapping[UUID, str | None]) -> Markup:
    """A moment's words; the ids in them lead to their pages."""
    said, place = Markup(), 0
    for written in UUID_WRITTEN.finditer(says):
        page = pages.get(UUID(written[0]))
        if page is None and kind in OF_MESSAGES:
            page = f"/console/trace?id={written[0]}"
        if page:
            link = Markup('<a href="{}">{}</a>').format(page, written[0])
            said, place = said + says[place : written.start()] + link, written.end()
    return said + says[place:]


def attempts(t: Texts, history: Iterable[Mapping[str, object]] | None) -> list[Attempt]:
    return [attempt(t, each) for each in history or ()]


def attempt(t: Texts, each: Mapping[str, object]) -> Attempt:
    at, began = datetime.fromisoformat(str(each["at"])), each.get("began")
    took = t.retell(lasting(at - datetime.fromisoformat(str(began)))) if began else ""
    return Attempt(each.get("attempt", ""), at, took, str(each.get("worker") or ""), str(each.get("error") or ""))
