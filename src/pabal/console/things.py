"""What a story is about, as a page shows it: each thing with its own page and how it stands."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.console.veil import veiled
from pabal.events.moments import Death, Traced, standing
from pabal.events.story import Story
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay
from pabal.relay.messages import Message
from pabal.trace import EventTold, NoticeTold, Told, gone, stands

FEELS = {
    **dict.fromkeys(("completed", "sent", "ACKED", "replayed", "resolved"), "good"),
    **dict.fromkeys(("failed", "unresolved"), "bad"),
}
"""How it is to be taken that something stands so."""


@dataclass(frozen=True, slots=True)
class Thing:
    """What a story is about: its page, from whom to whom (None: to everybody) it is, and how it stands."""

    kind: str
    id: UUID
    href: str | None
    what: str
    whence: str
    whither: str | None
    stands: str
    tone: str


def things(told: Told) -> list[Thing]:
    """Everything the story is about, what it was asked of first."""
    match told:
        case EventTold():
            story = told.story
            return [
                *(of_event(each, story) for each in story.events),
                *(of_gone(each, story) for each in gone(story)),
                *map(of_letter, story.deaths),
                *map(of_notice, told.made.stories),
            ]
        case NoticeTold():
            return [of_notice(told.story)]
        case relay.Story():
            return [of_message(each, told.now) for each in told.messages]


def of_event(event: Traced, story: Story) -> Thing:
    kind = "delivery" if event.parent_id else "event"
    words, state = of_deliveries(event, story) if event.is_broadcast else (standing(event, story.now), event.status)
    way = (event.source_service, event.target_service)
    return Thing(kind, event.id, event_page(event.id), event.event_type, *way, words, FEELS.get(state, ""))


def of_deliveries(event: Traced, story: Story) -> tuple[str, str]:
    """How a broadcast stands: as those it is for have it, and as the worst of them."""
    ends = Counter(each.status for each in story.events if each.parent_id == event.id)
    many = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    worst = "failed" if "failed" in ends else "completed" if {*ends} == {"completed"} else "pending"
    return f"deliveries: {many}" if many else "nobody had subscribed to it", worst


def of_gone(event: UUID, story: Story) -> Thing:
    last = [each for each in story.deaths if each.original_event_id == event][-1]
    words = "its row is gone; this is from its dead letters and the audit log"
    way = (last.original_source_service, last.original_target_service)
    return Thing("event", event, None, last.original_event_type, *way, words, "")


def of_letter(death: Death) -> Thing:
    state = "replayed" if death.replayed_at else "resolved" if death.resolved_at else "unresolved"
    words = f"{state} by {death.resolved_by_actor}" if death.resolved_by_actor else state
    way = (death.original_source_service, death.original_target_service)
    return Thing("letter", death.id, letter_page(death.id), death.original_event_type, *way, words, FEELS[state])


def of_notice(found: notices.Story) -> Thing:
    request = found.request
    whom = f"{request.recipient_type} {request.recipient_id}"
    words = stands(notice.standing(request, found.now), found.now)
    way = (notice.whose(request), whom)
    tone = FEELS.get(request.state, "")
    return Thing("notification", request.id, notice_page(request.id), request.template_key, *way, words, tone)


def of_message(message: Message, now: datetime) -> Thing:
    words = stands(chat.standing(message, now), now)
    way = (veiled(message.conversation_key), str(message.account_id)[:8])
    return Thing("message", message.id, message_page(message.id), "", *way, words, FEELS.get(message.status, ""))


def event_page(event: UUID) -> str:
    return f"/console/events/{event}"


def letter_page(letter: UUID) -> str:
    return f"/console/dead/{letter}"


def notice_page(notification: UUID) -> str:
    return f"/console/notifications/{notification}"


def message_page(message: UUID) -> str:
    return f"/console/relay/messages/{message}"
