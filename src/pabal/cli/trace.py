"""`pabal trace`: one id's story."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter

from pabal.cli import screen, wide
from pabal.cli.errand import errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import HUB
from pabal.core.errors import Invalid, NotFound
from pabal.db.tx import Tx
from pabal.events import story as events
from pabal.events.moments import Moment, Traced, lasting, standing
from pabal.events.story import Story
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay
from pabal.wiring import Hub

STYLES = {
    **dict.fromkeys(("died", "refused", "unknown"), "red"),
    **dict.fromkeys(("failed", "expired", "late", "suppressed"), "yellow"),
    **dict.fromkeys(("completed", "sent"), "green"),
    **dict.fromkeys(("replayed", "resolved", "shown"), "cyan"),
}
ROOM = 300
"""Characters of an error a line has room for; --json has them all."""
SOME = 5
AnyMoment = Moment | chat.Moment | notice.Moment


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


def trace(
    id: Annotated[  # noqa: A002 as people call it
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

    async def look(hub: Hub) -> EventTold | NoticeTold | relay.Story:
        async with hub.autocommit() as tx:
            return await whoever(tx, id)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    match found:
        case relay.Story():
            screen.as_json(message_account(found)) if json else tell_message(found)
        case NoticeTold():
            screen.as_json(notice_account(found)) if json else tell_notice(found)
        case EventTold():
            screen.as_json(account(found)) if json else tell_event(found)


async def whoever(tx: Tx, name: str) -> EventTold | NoticeTold | relay.Story:
    """Find out what was meant, in whichever lane it is."""
    published, said = await events.whatever_begins(tx, name), await relay.whatever_begins(tx, name)
    noticed = await notices.whatever_begins(tx, name)
    meant = [*published, *said, *noticed]
    if len(meant) > 1:
        some = ", ".join(map(str, meant[:SOME]))
        raise Invalid.one("id", f"several begin with {name}: {some}{' …' if len(meant) > SOME else ''}")
    for one in said.values():
        return await relay.story(tx, one)
    for row in noticed:
        found = await notices.story(tx, row)
        return NoticeTold(found, await beginning(tx, found.request.event_id))
    if not published and (recent := await relay.recent(tx, name)):
        return recent
    try:
        story = await events.story(tx, name)
    except NotFound:
        what = "event, delivery, dead letter, notification, message, reply, correlation id or conversation"
        raise NotFound(f"there is no {what} {name}") from None
    return EventTold(story, await notices.made_by(tx, [event.id for event in story.events] + gone(story)))


async def beginning(tx: Tx, event: UUID | None) -> list[Moment]:
    """How an event came and how the hub's rules had it; what it was for others is its own story."""
    if event is None:
        return []
    story = await events.gathered(tx, str(event), "event", [event])
    ours = {each.id for each in story.events if each.target_service == HUB.name}
    return [each for each in story.moments if each.event_id in ours or each.kind == "published"]


def tell_message(found: relay.Story) -> None:
    if found.kind == "conversation":
        rows = [
            (each.id, wide.local(each.created_at), stands(chat.standing(each, found.now), found.now))
            for each in found.messages
        ]
        screen.table(("message", "came", "how it stands"), rows, empty="No messages.")
        return
    [message] = found.messages
    whose = screen.one_line(message.conversation_key)
    screen.say(f"message {message.id}  {whose} → {message.account_id}", "bold")
    screen.say(f"  {screen.one_line(stands(chat.standing(message, found.now), found.now))}\n")
    lines(found.moments, {})


def stands(words: tuple[str, datetime | None], now: datetime) -> str:
    says, until = words
    return f"{says} in {lasting(until - now)}" if until else says


def tell_notice(told: NoticeTold) -> None:
    notice_heading(told.story)
    screen.say("")
    lines(whole(told), {})


def whole(told: NoticeTold) -> list[AnyMoment]:
    """What happened to the event and to the notification, in one line of time."""
    moments: list[AnyMoment] = [*told.before, *told.story.moments]
    return sorted(moments, key=lambda moment: moment.at)


def notice_heading(found: notices.Story) -> None:
    request = found.request
    whom = screen.one_line(f"{request.recipient_type} {request.recipient_id}")
    screen.say(f"notification {request.id}  {request.template_key}  {notice.whose(request)} → {whom}", "bold")
    screen.say(f"  {stands(notice.standing(request, found.now), found.now)}")


def tell_event(told: EventTold) -> None:
    found = told.story
    labels = labels_of(found)
    for event in found.events:
        heading(event, found)
    for event_id in gone(found):
        screen.say(
            f"event {event_id}: its row is gone; what follows is from its dead letters and the audit log", "bold"
        )
    screen.say("")
    lines(found.moments, labels)
    for each in told.made.stories:
        screen.say("")
        notice_heading(each)
        lines(each.moments, {})
    if sum(each.count for each in told.made.counts) > len(told.made.stories):
        many = ", ".join(f"{each.count} {each.state}" for each in told.made.counts)
        screen.say(f"\nnotifications in all: {many}; the first {len(told.made.stories)} are told here")


def heading(event: Traced, found: Story) -> None:
    kind = "delivery" if event.parent_id else "event"
    whom = event.target_service or "everybody"
    screen.say(f"{kind} {event.id}  {event.event_type}  {event.source_service} → {whom}", "bold")
    if event.is_broadcast:
        ends = Counter(each.status for each in found.events if each.parent_id == event.id)
        many = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
        screen.say(f"  deliveries: {many}" if many else "  nobody had subscribed to it")
    else:
        screen.say(f"  {screen.one_line(standing(event, found.now))}")


def lines(moments: Sequence[AnyMoment], labels: dict[UUID, str]) -> None:
    before: datetime | None = None
    for moment in moments:
        line(moment, before, labels.get(moment.event_id, "") if isinstance(moment, Moment) else "")
        before = moment.at


def line(moment: AnyMoment, before: datetime | None, label: str) -> None:
    gap = f"+{lasting(moment.at - before)}" if before else ""
    took = f" ({lasting(moment.took)})" if moment.took is not None else ""
    who = f"{label}  " if label else ""
    words = f"{screen.one_line(moment.says, ROOM)}{took}"
    screen.say(f"{wide.local(moment.at, 'milliseconds')}  {gap:<13} {who}{words}", STYLES.get(moment.kind, ""))


def labels_of(found: Story) -> dict[UUID, str]:
    """How each event of several is called in a line: by its receiver, or by its id where that is not enough."""
    ids = {moment.event_id: None for moment in found.moments}
    if len(ids) == 1:
        return {}
    whom = {event.id: f"→ {event.target_service or 'everybody'}" for event in found.events}
    often = Counter(whom.values())
    return {each: whom[each] if often.get(whom.get(each, "")) == 1 else str(each) for each in ids}


def gone(found: Story) -> list[UUID]:
    there = {event.id for event in found.events}
    return [each for each in dict.fromkeys(death.original_event_id for death in found.deaths) if each not in there]


def account(told: EventTold) -> dict[str, Any]:
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
    stood = stands(notice.standing(found.request, found.now), found.now)
    return asdict(found.request) | {"standing": stood, "attempts": [asdict(each) for each in found.tries]}


def message_account(found: relay.Story) -> dict[str, Any]:
    return {
        "about": found.about,
        "kind": found.kind,
        "messages": [
            asdict(each) | {"standing": stands(chat.standing(each, found.now), found.now)} for each in found.messages
        ],
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
