"""What a story is about, as a page shows it: each thing with its own page and how it stands."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.console.texts import Texts
from pabal.console.veil import veiled
from pabal.core.phrase import Phrase, words
from pabal.events.moments import Death, Traced, standing
from pabal.events.story import Story
from pabal.notifications import moments as notice
from pabal.notifications import story as notices
from pabal.relay import moments as chat
from pabal.relay import story as relay
from pabal.relay.messages import Message
from pabal.trace import EventTold, NoticeTold, Told, gone, spread

FEELS = {
    **dict.fromkeys(("completed", "sent", "ACKED", "replayed", "resolved"), "good"),
    **dict.fromkeys(("failed", "unresolved"), "bad"),
}
"""How it is to be taken that something stands so."""
LETTERS = words("replayed", "resolved", "unresolved")


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


def things(t: Texts, told: Told) -> list[Thing]:
    """Everything the story is about, what it was asked of first."""
    match told:
        case EventTold():
            story = told.story
            return [
                *(of_event(t, each, story) for each in story.events),
                *(of_gone(t, each, story) for each in gone(story)),
                *(of_letter(t, each) for each in story.deaths),
                *(of_notice(t, each) for each in told.made.stories),
            ]
        case NoticeTold():
            return [of_notice(t, told.story)]
        case relay.Story():
            return [of_message(t, each, told.now) for each in told.messages]


def of_event(t: Texts, event: Traced, story: Story) -> Thing:
    kind = "delivery" if event.parent_id else "event"
    says, state = standing(event, story.now), event.status
    if event.is_broadcast:
        says, state = spread(event, story), worst(event, story)
    way = (event.source_service, event.target_service)
    return Thing(kind, event.id, event_page(event.id), event.event_type, *way, t.retell(says), FEELS.get(state, ""))


def worst(event: Traced, story: Story) -> str:
    """How the worst off of a broadcast's deliveries stands."""
    ends = {each.status for each in story.events if each.parent_id == event.id}
    return "failed" if "failed" in ends else "completed" if ends == {"completed"} else "pending"


def of_gone(t: Texts, event: UUID, story: Story) -> Thing:
    last = [each for each in story.deaths if each.original_event_id == event][-1]
    says = t.retell(Phrase("its row is gone; this is from its dead letters and the audit log"))
    way = (last.original_source_service, last.original_target_service)
    return Thing("event", event, None, last.original_event_type, *way, says, "")


def of_letter(t: Texts, death: Death) -> Thing:
    state = "replayed" if death.replayed_at else "resolved" if death.resolved_at else "unresolved"
    by, says = death.resolved_by_actor, LETTERS[state]
    stands = t.retell(Phrase("{} by {}", says, by) if by else says)
    way = (death.original_source_service, death.original_target_service)
    return Thing("letter", death.id, letter_page(death.id), death.original_event_type, *way, stands, FEELS[state])


def of_notice(t: Texts, found: notices.Story) -> Thing:
    request = found.request
    whom = f"{t(f'via {request.recipient_type}')} {request.recipient_id}"
    says = t.retell(notice.standing(request, found.now))
    way = (t.retell(notice.whose(request)), whom)
    tone = FEELS.get(request.state, "")
    return Thing("notification", request.id, notice_page(request.id), request.template_key, *way, says, tone)


def of_message(t: Texts, message: Message, now: datetime) -> Thing:
    says = t.retell(chat.standing(message, now))
    way = (veiled(message.conversation_key), str(message.account_id)[:8])
    return Thing("message", message.id, message_page(message.id), "", *way, says, FEELS.get(message.status, ""))


def event_page(event: UUID) -> str:
    return f"/console/events/{event}"


def letter_page(letter: UUID) -> str:
    return f"/console/dead/{letter}"


def notice_page(notification: UUID) -> str:
    return f"/console/notifications/{notification}"


def message_page(message: UUID) -> str:
    return f"/console/relay/messages/{message}"
