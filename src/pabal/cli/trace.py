"""`pabal trace`: one id's story."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from cyclopts import Parameter

from pabal.cli import screen, wide
from pabal.cli.errand import errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.phrase import lasting
from pabal.events.moments import Moment, Traced, standing
from pabal.events.story import Story
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay
from pabal.trace import TONES, AnyMoment, EventTold, NoticeTold, Told, account, gone, labels_of, spread, whoever, whole
from pabal.wiring import Hub

STYLES = {"bad": "red", "so-so": "yellow", "good": "green", "mended": "cyan"}
ROOM = 300
"""Characters of an error a line has room for; --json has them all."""


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

    async def look(hub: Hub) -> Told:
        async with hub.autocommit() as tx:
            return await whoever(tx, id)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(account(found))
        return
    match found:
        case relay.Story():
            tell_message(found)
        case NoticeTold():
            tell_notice(found)
        case EventTold():
            tell_event(found)


def tell_message(found: relay.Story) -> None:
    if found.kind == "conversation":
        rows = [(each.id, wide.local(each.created_at), chat.standing(each, found.now)) for each in found.messages]
        screen.table(("message", "came", "how it stands"), rows, empty="No messages.")
        return
    [message] = found.messages
    whose = screen.one_line(message.conversation_key)
    screen.say(f"message {message.id}  {whose} → {message.account_id}", "bold")
    screen.say(f"  {screen.one_line(chat.standing(message, found.now))}\n")
    lines(found.moments, {})


def tell_notice(told: NoticeTold) -> None:
    notice_heading(told.story)
    screen.say("")
    lines(whole(told), {})


def notice_heading(found: notices.Story) -> None:
    request = found.request
    whom = screen.one_line(f"{request.recipient_type} {request.recipient_id}")
    screen.say(f"notification {request.id}  {request.template_key}  {notice.whose(request)} → {whom}", "bold")
    screen.say(f"  {notice.standing(request, found.now)}")


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
    stands = spread(event, found) if event.is_broadcast else standing(event, found.now)
    screen.say(f"  {screen.one_line(stands)}")


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
    style = STYLES.get(TONES.get(moment.kind, ""), "")
    screen.say(f"{wide.local(moment.at, 'milliseconds')}  {gap:<13} {who}{words}", style)
