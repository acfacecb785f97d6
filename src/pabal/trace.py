"""Trace: what somebody means by an id, and its whole story, in whichever lane it is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from pabal.core.actor import HUB
from pabal.core.errors import Invalid, NotFound
from pabal.core.phrase import Phrase, listed
from pabal.db.tx import Tx
from pabal.events import story as events
from pabal.events.moments import STATUSES, Moment, Traced, standing
from pabal.events.story import Story
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay

TONES = {
    **dict.fromkeys(("died", "refused", "unknown"), "bad"),
    **dict.fromkeys(("failed", "expired", "late", "suppressed"), "so-so"),
    **dict.fromkeys(("completed", "sent"), "good"),
    **dict.fromkeys(("replayed", "resolved", "shown"), "mended"),
}
"""How a moment of each kind is to be taken; of the others there is nothing to feel."""
SOME = 5
AnyMoment = Moment | chat.Moment | notice.Moment


@dataclass(frozen=True, slots=True)
class Meant:
    """Something whose id begins as somebody said: what it is, and the row whose story tells of it."""

    id: UUID
    kind: str
    row: UUID


@dataclass(frozen=True, slots=True)
class EventTold:
    """An event's story, and what the rules made of it."""

    story: Story
    made: notices.Made


@dataclass(frozen=True, slots=True)
class NoticeTold:
    """A notification's story, and what happened before: to the event that made it."""

    story: notices.Story
    before: list[Moment]


Told = EventTold | NoticeTold | relay.Story


async def whoever(tx: Tx, name: str) -> Told:
    """Find out what was meant, in whichever lane it is."""
    found = await meant(tx, name)
    if len(found) > 1:
        some = ", ".join(str(each.id) for each in found[:SOME])
        raise Invalid.one("id", f"several begin with {name}: {some}{' …' if len(found) > SOME else ''}")
    return await tell(tx, found[0]) if found else await otherwise(tx, name)


async def meant(tx: Tx, name: str) -> list[Meant]:
    """Everything whose id begins so; a few of each kind tell whether it is one."""
    published, said = await events.whatever_begins(tx, name), await relay.whatever_begins(tx, name)
    noticed = await notices.whatever_begins(tx, name)
    return [
        *(Meant(each.named, each.kind, each.event) for each in published.values()),
        *(Meant(each.named, each.kind, each.message) for each in said.values()),
        *(Meant(each, "notification", each) for each in noticed),
    ]


async def tell(tx: Tx, one: Meant) -> Told:
    """Tell the story of what was meant."""
    match one.kind:
        case "message" | "reply":
            return await relay.story(tx, relay.Named(one.id, one.row, one.kind))
        case "notification":
            found = await notices.story(tx, one.row)
            return NoticeTold(found, await beginning(tx, found.request.event_id))
        case kind:
            return await with_notices(tx, await events.gathered(tx, str(one.id), kind, [one.row]))


async def otherwise(tx: Tx, name: str) -> Told:
    """Tell of what has a name of another kind: a conversation, or all that share a correlation id."""
    if recent := await relay.recent(tx, name):
        return recent
    try:
        return await with_notices(tx, await events.story(tx, name))
    except NotFound:
        return await asked_as(tx, name)


async def with_notices(tx: Tx, story: Story) -> EventTold:
    correlation = story.about if story.kind == "correlation" else None
    return EventTold(story, await notices.made_by(tx, [event.id for event in story.events] + gone(story), correlation))


async def asked_as(tx: Tx, correlation: str) -> EventTold:
    """Tell of notifications that were asked for under a correlation id which no event has."""
    made = await notices.made_by(tx, [], correlation)
    if not made.stories:
        what = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
        raise NotFound(f"there is no {what} {correlation}")
    return EventTold(Story(correlation, "correlation", made.stories[0].now, [], [], []), made)


async def beginning(tx: Tx, event: UUID | None) -> list[Moment]:
    """How an event came and how the hub's rules had it; what it was for others is its own story."""
    if event is None:
        return []
    story = await events.gathered(tx, str(event), "event", [event])
    ours = {each.id for each in story.events if each.target_service == HUB.name}
    return [each for each in story.moments if each.event_id in ours or each.kind == "published"]


def whole(told: NoticeTold) -> list[AnyMoment]:
    """What happened to the event and to the notification, in one line of time."""
    moments: list[AnyMoment] = [*told.before, *told.story.moments]
    return sorted(moments, key=lambda moment: moment.at)


def spread(event: Traced, found: Story) -> Phrase:
    """How a broadcast stands: as those it is for have it."""
    ends = Counter(each.status for each in found.events if each.parent_id == event.id)
    many = [Phrase("{} {}", count, STATUSES.get(status, status)) for status, count in sorted(ends.items())]
    return Phrase("deliveries: {}", listed(many)) if many else Phrase("nobody had subscribed to it")


def labels_of(found: Story) -> dict[UUID, str]:
    """How each event of several is called in a line: by its receiver, or by its id where that is not enough."""
    ids = {moment.event_id: None for moment in found.moments}
    if len(ids) == 1:
        return {}
    everybody = Phrase("everybody")
    whom: dict[UUID, str] = {event.id: Phrase("→ {}", event.target_service or everybody) for event in found.events}
    often = Counter(whom.values())
    return {each: whom[each] if often.get(whom.get(each, "")) == 1 else str(each) for each in ids}


def gone(found: Story) -> list[UUID]:
    """Events of which only dead letters are left."""
    there = {event.id for event in found.events}
    return [each for each in dict.fromkeys(death.original_event_id for death in found.deaths) if each not in there]


def account(told: Told) -> dict[str, Any]:
    """A story as programs read it."""
    match told:
        case EventTold():
            return event_account(told)
        case NoticeTold():
            return notice_account(told)
        case relay.Story():
            return message_account(told)


def event_account(told: EventTold) -> dict[str, Any]:
    found, made = told.story, told.made
    return {
        "about": found.about,
        "kind": found.kind,
        "events": [asdict(event) | {"standing": standing(event, found.now)} for event in found.events],
        "dead_letters": [asdict(death) for death in found.deaths],
        "moments": timed(found.moments),
        "notifications": {
            "counts": {each.state: each.count for each in made.counts},
            "items": [notice_view(each) | {"moments": timed(each.moments)} for each in made.stories],
        },
    }


def notice_account(told: NoticeTold) -> dict[str, Any]:
    found = told.story
    return {
        "about": str(found.request.id),
        "kind": "notification",
        "notification": notice_view(found),
        "moments": timed(whole(told)),
    }


def notice_view(found: notices.Story) -> dict[str, Any]:
    stands = notice.standing(found.request, found.now)
    return asdict(found.request) | {"standing": stands, "attempts": [asdict(each) for each in found.tries]}


def message_account(found: relay.Story) -> dict[str, Any]:
    return {
        "about": found.about,
        "kind": found.kind,
        "messages": [asdict(each) | {"standing": chat.standing(each, found.now)} for each in found.messages],
        "reply": asdict(found.reply) if found.reply else None,
        "moments": timed(found.moments),
    }


def timed(moments: Sequence[AnyMoment]) -> list[dict[str, Any]]:
    """Moments as programs read them: seconds since the one before, and how many an attempt took."""
    told: list[dict[str, Any]] = []
    for place, moment in enumerate(moments):
        since = moment.at - moments[place - 1].at if place else None
        took = moment.took.total_seconds() if moment.took is not None else None
        after = since.total_seconds() if since is not None else None
        told.append(asdict(moment) | {"took": took, "after": after})
    return told
