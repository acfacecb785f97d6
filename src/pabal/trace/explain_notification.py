"""Explain: why somebody did or did not get a notification, step by step, for a person who asks.

The words are in `reasons`; here they are put in order. Nothing is guessed: what no row says is not said.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep, NotificationChannel
from pabal.notifications.decision.texts import (
    CATEGORY_TEXTS,
    CHANNEL_TEXTS,
    END_TEXTS,
    EXPLANATION_TEXTS,
    NEXT_STEP_TEXTS,
    OUTCOME_TEXTS,
    BilingualText,
    ExplanationLanguage,
    format_bilingual,
    format_decision_steps,
)
from pabal.notifications.notifications import NotificationAccess, find_notification
from pabal.notifications.resend import list_resends
from pabal.trace.notifications import (
    NotificationTrace,
    TracedNotification,
    TracedNotificationAttempt,
    decision_steps_at_request,
    trace_notification,
)

ExplanationPart = Literal["asked", "decided", "again", "attempt", "address", "ended", "next"]
TimeFormatter = Callable[[datetime], str]
"""How a moment is written: whoever asks is somewhere."""


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    """One sentence of an explanation; `at` where it happened at a moment."""

    part: ExplanationPart
    says: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NotificationExplanation:
    """Why a notification went where it went."""

    id: UUID
    language: ExplanationLanguage
    state: str
    reason: str | None
    lines: list[ExplanationLine]


async def explain_notification(
    tx: Tx, notification_id: UUID, access: NotificationAccess, language: ExplanationLanguage, format_time: TimeFormatter
) -> NotificationExplanation:
    """Explain a notification to whoever may see it."""
    found = await find_notification(tx, notification_id, access)
    repeated = [each.id for each in await list_resends(tx, notification_id) if each.is_pending_or_sent]
    teller = ExplanationBuilder(
        await trace_notification(tx, notification_id), language, format_time, found.again_of, repeated
    )
    request = teller.request
    lines = [*teller.request_lines(), *teller.decision_lines(), *teller.recheck_lines(), *teller.attempt_lines()]
    lines += [*teller.address_lines(), *teller.outcome_lines(), *teller.next_step_lines()]
    return NotificationExplanation(request.id, language, request.state, request.reason, lines)


@dataclass(frozen=True, slots=True)
class ExplanationBuilder:
    """Tells one story in one language, part by part."""

    trace: NotificationTrace
    language: ExplanationLanguage
    format_time: TimeFormatter
    resend_of: UUID | None
    """What it asks for again."""
    resent_as: Sequence[UUID]
    """What asked for it again, and waits or has arrived."""

    @property
    def request(self) -> TracedNotification:
        return self.trace.request

    def request_lines(self) -> Iterator[ExplanationLine]:
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
        yield ExplanationLine("asked", says, request.created_at)
        channel = format_bilingual(CHANNEL_TEXTS[request.recipient_type], self.language)
        what = self._text("what", template=request.template_key, channel=channel, recipient=request.recipient_id)
        yield ExplanationLine("asked", what)
        if self.resend_of is not None:
            yield ExplanationLine("asked", self._text("repeats", id=str(self.resend_of)))

    def decision_lines(self) -> Iterator[ExplanationLine]:
        steps = decision_steps_at_request(self.request)
        if not steps:
            yield ExplanationLine("decided", self._text("undecided"))
        yield from (ExplanationLine("decided", says) for says in self._step_texts(steps))

    def recheck_lines(self) -> Iterator[ExplanationLine]:
        """What was found when it was about to be sent. A look that found nothing new left only what followed."""
        after = [*self.request.decision][len(decision_steps_at_request(self.request)) :]
        steps = [step for step in after if step != DecisionStep.RAISED]
        yield from (ExplanationLine("again", says) for says in self._step_texts(steps))
        if self.request.state == "sent" and not steps:
            yield ExplanationLine("again", self._text("again"))

    def attempt_lines(self) -> Iterator[ExplanationLine]:
        for each in self.trace.attempts:
            says = format_bilingual(
                OUTCOME_TEXTS[each.outcome], self.language, attempt=str(each.attempt), why=each.why or ""
            )
            yield ExplanationLine("attempt", " ".join([says, *self._response_texts(each)]), each.ended_at)

    def address_lines(self) -> Iterator[ExplanationLine]:
        """How the address is now: it may have healed since."""
        request = self.request
        if request.recipient_type == NotificationChannel.DASHBOARD_TOAST:
            return
        if request.unhealthy_since is not None:
            since = self.format_time(request.unhealthy_since)
            yield ExplanationLine("address", self._text("unhealthy", since=since, why=request.refusal or "?"))
        elif request.reason in {"address_unhealthy", "refused"}:
            yield ExplanationLine("address", self._text("healthy"))

    def outcome_lines(self) -> Iterator[ExplanationLine]:
        request = self.request
        if request.state == "pending":
            yield ExplanationLine("ended", self._pending_text())
        elif request.state == "sent" and request.sent_at is not None:
            yield ExplanationLine("ended", self._text("sent", at=self.format_time(request.sent_at)), request.sent_at)
            yield from self._toast_lines()
        else:
            yield ExplanationLine("ended", self._reason_text(END_TEXTS), request.ended_at)
        if request.state == "failed":
            yield ExplanationLine("ended", self._text("failure", why=request.last_error or "?"))
        if DecisionStep.RAISED in request.decision:
            yield from (ExplanationLine("ended", says) for says in self._step_texts([DecisionStep.RAISED]))

    def next_step_lines(self) -> Iterator[ExplanationLine]:
        """What would have to change for the next one."""
        if self.request.reason is not None:
            yield ExplanationLine("next", self._reason_text(NEXT_STEP_TEXTS))
        if self.request.state == "failed":
            yield from (ExplanationLine("next", self._text("resent", id=str(each))) for each in self.resent_as)
            if not self.resent_as:
                yield ExplanationLine("next", self._text("resend", id=str(self.request.id)))

    def _pending_text(self) -> str:
        request, now = self.request, self.trace.now
        if request.leased_until is not None and request.leased_until > now:
            return self._text("held", worker=request.held_by or "?")
        if request.scheduled_at > now:
            return self._text("later", at=self.format_time(request.scheduled_at))
        return self._text("due")

    def _toast_lines(self) -> Iterator[ExplanationLine]:
        request = self.request
        if request.recipient_type != NotificationChannel.DASHBOARD_TOAST:
            return
        if request.archived_at is not None:
            yield ExplanationLine(
                "ended", self._text("archived", at=self.format_time(request.archived_at)), request.archived_at
            )
        elif request.read_at is not None:
            yield ExplanationLine("ended", self._text("read", at=self.format_time(request.read_at)), request.read_at)
        elif request.arrived_at is not None:
            yield ExplanationLine("ended", self._text("unseen" if request.seen_at is None else "seen"), request.seen_at)
        else:
            yield ExplanationLine("ended", self._text("gone"))

    def _response_texts(self, attempt: TracedNotificationAttempt) -> Iterator[str]:
        answer = attempt.answer or {}
        if answer.get("dry_run"):
            yield self._text("dry run")
        elif "message_id" in answer:
            yield self._text("message", message_id=str(answer["message_id"]))

    def _reason_text(self, texts: Mapping[str, BilingualText]) -> str:
        """What is said of the reason it ended for."""
        request = self.request
        return format_bilingual(
            texts[request.reason or ""],
            self.language,
            category=format_bilingual(CATEGORY_TEXTS[request.category], self.language),
            flag=f"{request.category}_notifications",
            channel=request.recipient_type,
            recipient=request.recipient_id,
            template=request.template_key,
        )

    def _step_texts(self, steps: Sequence[str]) -> list[str]:
        return format_decision_steps(steps, self.request.category, self.language)

    def _text(self, key: str, /, **facts: str) -> str:
        return format_bilingual(EXPLANATION_TEXTS[key], self.language, **facts)
