"""Explain: why somebody did or did not get a notification, step by step, for a person who asks.

The words are in `reasons`; here they are put in order. Nothing is guessed: what no row says is not said.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from pabal.db.tx import Tx
from pabal.notifications.again import repeats
from pabal.notifications.moments import Traced, Tried, planned
from pabal.notifications.plan import Channel, Step
from pabal.notifications.read import Reader, find
from pabal.notifications.reasons import (
    CATEGORIES,
    CHANNELS,
    ENDS,
    NEXT,
    OUTCOMES,
    TEXTS,
    Both,
    Language,
    say,
    steps_in_words,
)
from pabal.notifications.story import Story, story

Part = Literal["asked", "decided", "again", "attempt", "address", "ended", "next"]
When = Callable[[datetime], str]
"""How a moment is written: whoever asks is somewhere."""


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of an explanation; `at` where it happened at a moment."""

    part: Part
    says: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a notification went where it went."""

    id: UUID
    language: Language
    state: str
    reason: str | None
    lines: list[Line]


async def explain(tx: Tx, row: UUID, who: Reader, language: Language, when: When) -> Explanation:
    """Explain a notification to whoever may see it."""
    found = await find(tx, row, who)
    repeated = [each.id for each in await repeats(tx, row) if each.stands]
    teller = Teller(await story(tx, row), language, when, found.again_of, repeated)
    request = teller.request
    lines = [*teller.asked(), *teller.decided(), *teller.again(), *teller.attempts()]
    lines += [*teller.address(), *teller.ended(), *teller.following()]
    return Explanation(request.id, language, request.state, request.reason, lines)


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells one story in one language, part by part."""

    story: Story
    language: Language
    when: When
    repeats: UUID | None
    """What it asks for again."""
    repeated: Sequence[UUID]
    """What asked for it again, and waits or has arrived."""

    @property
    def request(self) -> Traced:
        return self.story.request

    def asked(self) -> Iterator[Line]:
        request = self.request
        kind, _, name = request.requested_by.partition(":")
        if request.rule_id is not None:
            rule, event = request.rule or str(request.rule_id), str(request.event_id)
            says = self._text("rule", rule=rule, event=event, source=request.source_service or "?")
        elif kind in {"sql", "cli", "operator"}:
            says = self._text(kind, name=name)
        elif request.requested_by == "hub":
            says = self._text("hub")
        else:
            says = self._text("service", name=request.requested_by)
        yield Line("asked", says, request.created_at)
        channel = say(CHANNELS[request.recipient_type], self.language)
        what = self._text("what", template=request.template_key, channel=channel, recipient=request.recipient_id)
        yield Line("asked", what)
        if self.repeats is not None:
            yield Line("asked", self._text("repeats", id=str(self.repeats)))

    def decided(self) -> Iterator[Line]:
        steps = planned(self.request)
        if not steps:
            yield Line("decided", self._text("undecided"))
        yield from (Line("decided", says) for says in self._steps(steps))

    def again(self) -> Iterator[Line]:
        """What was found when it was about to be sent. A look that found nothing new left only what followed."""
        after = [*self.request.decision][len(planned(self.request)) :]
        steps = [step for step in after if step != Step.RAISED]
        yield from (Line("again", says) for says in self._steps(steps))
        if self.request.state == "sent" and not steps:
            yield Line("again", self._text("again"))

    def attempts(self) -> Iterator[Line]:
        for each in self.story.tries:
            says = say(OUTCOMES[each.outcome], self.language, attempt=str(each.attempt), why=each.why or "")
            yield Line("attempt", " ".join([says, *self._answer(each)]), each.ended_at)

    def address(self) -> Iterator[Line]:
        """How the address is now: it may have healed since."""
        request = self.request
        if request.recipient_type == Channel.DASHBOARD_TOAST:
            return
        if request.unhealthy_since is not None:
            since = self.when(request.unhealthy_since)
            yield Line("address", self._text("unhealthy", since=since, why=request.refusal or "?"))
        elif request.reason in {"address_unhealthy", "refused"}:
            yield Line("address", self._text("healthy"))

    def ended(self) -> Iterator[Line]:
        request = self.request
        if request.state == "pending":
            yield Line("ended", self._waits())
        elif request.state == "sent" and request.sent_at is not None:
            yield Line("ended", self._text("sent", at=self.when(request.sent_at)), request.sent_at)
            yield from self._toast()
        else:
            yield Line("ended", self._of(ENDS), request.ended_at)
        if request.state == "failed":
            yield Line("ended", self._text("failure", why=request.last_error or "?"))
        if Step.RAISED in request.decision:
            yield from (Line("ended", says) for says in self._steps([Step.RAISED]))

    def following(self) -> Iterator[Line]:
        """What would have to change for the next one."""
        if self.request.reason is not None:
            yield Line("next", self._of(NEXT))
        if self.request.state == "failed":
            yield from (Line("next", self._text("resent", id=str(each))) for each in self.repeated)
            if not self.repeated:
                yield Line("next", self._text("resend", id=str(self.request.id)))

    def _waits(self) -> str:
        request, now = self.request, self.story.now
        if request.leased_until is not None and request.leased_until > now:
            return self._text("held", worker=request.held_by or "?")
        if request.scheduled_at > now:
            return self._text("later", at=self.when(request.scheduled_at))
        return self._text("due")

    def _toast(self) -> Iterator[Line]:
        request = self.request
        if request.recipient_type != Channel.DASHBOARD_TOAST:
            return
        if request.archived_at is not None:
            yield Line("ended", self._text("archived", at=self.when(request.archived_at)), request.archived_at)
        elif request.read_at is not None:
            yield Line("ended", self._text("read", at=self.when(request.read_at)), request.read_at)
        elif request.arrived_at is not None:
            yield Line("ended", self._text("unseen" if request.seen_at is None else "seen"), request.seen_at)
        else:
            yield Line("ended", self._text("gone"))

    def _answer(self, tried: Tried) -> Iterator[str]:
        answer = tried.answer or {}
        if answer.get("dry_run"):
            yield self._text("dry run")
        elif "message_id" in answer:
            yield self._text("message", message_id=str(answer["message_id"]))

    def _of(self, words: Mapping[str, Both]) -> str:
        """What is said of the reason it ended for."""
        request = self.request
        return say(
            words[request.reason or ""],
            self.language,
            category=say(CATEGORIES[request.category], self.language),
            flag=f"{request.category}_notifications",
            channel=request.recipient_type,
            recipient=request.recipient_id,
            template=request.template_key,
        )

    def _steps(self, steps: Sequence[str]) -> list[str]:
        return steps_in_words(steps, self.request.category, self.language)

    def _text(self, key: str, /, **facts: str) -> str:
        return say(TEXTS[key], self.language, **facts)
