"""Explain step by step why a recipient did or did not get a notification.

The sentences are in `notifications.decision.texts`; this module selects and orders them, and states only what the rows
record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from pabal.db.tx import Tx
from pabal.notifications.decision.decide import ORIGIN_STEPS, DecisionStep, NotificationChannel
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
from pabal.notifications.states import NotificationReason, NotificationState
from pabal.trace.notification_entries import (
    CHORE_STEPS,
    TracedNotification,
    TracedNotificationAttempt,
    decision_steps_at_request,
)
from pabal.trace.notifications import NotificationTrace, trace_notification

ORIGIN_STEP_NAMES = frozenset[str](ORIGIN_STEPS.values())
ExplanationPart = Literal["asked", "decided", "again", "attempt", "address", "ended", "next"]
TimeFormatter = Callable[[datetime], str]
"""Formats a time in the reader's time zone."""


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    """One sentence of an explanation; `at` is the time of what it describes, if it has one."""

    part: ExplanationPart
    says: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NotificationExplanation:
    """Why a notification was or was not sent."""

    id: UUID
    language: ExplanationLanguage
    state: NotificationState
    reason: NotificationReason | None
    lines: list[ExplanationLine]


async def explain_notification(
    tx: Tx, notification_id: UUID, access: NotificationAccess, language: ExplanationLanguage, format_time: TimeFormatter
) -> NotificationExplanation:
    """Explain a notification that `access` may see."""
    notification = await find_notification(tx, notification_id, access)
    resends = [resend.id for resend in await list_resends(tx, notification_id) if resend.is_pending_or_sent]
    builder = ExplanationBuilder(
        await trace_notification(tx, notification_id), language, format_time, notification.again_of, resends
    )
    request = builder.request
    lines = [*builder.request_lines(), *builder.decision_lines(), *builder.recheck_lines(), *builder.attempt_lines()]
    lines += [*builder.address_lines(), *builder.outcome_lines(), *builder.next_step_lines()]
    return NotificationExplanation(request.id, language, request.state, request.reason, lines)


@dataclass(frozen=True, slots=True)
class ExplanationBuilder:
    """Builds the explanation of one notification in one language, part by part."""

    trace: NotificationTrace
    language: ExplanationLanguage
    format_time: TimeFormatter
    resend_of: UUID | None
    """The notification that this one repeats."""
    resent_as: Sequence[UUID]
    """Repeats of this notification that are pending or sent."""

    @property
    def request(self) -> TracedNotification:
        return self.trace.request

    def request_lines(self) -> Iterator[ExplanationLine]:
        request = self.request
        kind, _, name = request.requested_by.partition(":")
        if request.rule_id is not None:
            rule, event = request.rule or str(request.rule_id), str(request.event_id)
            text = self._text("rule", rule=rule, event=event, source=request.source_service or "?")
        elif kind in {"sql", "cli", "operator"}:
            text = self._text(kind, name=name)
        elif request.requested_by == "hub":
            text = self._text("hub")
        else:
            text = self._text("service", name=request.requested_by)
        yield ExplanationLine("asked", text, request.created_at)
        channel = format_bilingual(CHANNEL_TEXTS[request.recipient_type], self.language)
        subject = self._text("what", template=request.template_key, channel=channel, recipient=request.recipient_id)
        yield ExplanationLine("asked", subject)
        if self.resend_of is not None:
            yield ExplanationLine("asked", self._text("repeats", id=str(self.resend_of)))

    def decision_lines(self) -> Iterator[ExplanationLine]:
        steps = decision_steps_at_request(self.request)
        if not steps:
            yield ExplanationLine("decided", self._text("undecided"))
        elif (
            self.request.recipient_type != NotificationChannel.GUILD_AUDIT_CHANNEL and not {*steps} & ORIGIN_STEP_NAMES
        ):
            yield ExplanationLine("decided", self._text("account preferences"))
        yield from (ExplanationLine("decided", text) for text in self._step_texts(steps))

    def recheck_lines(self) -> Iterator[ExplanationLine]:
        """The second check, right before sending. If it changed nothing, no step is recorded."""
        steps_at_send = [*self.request.decision][len(decision_steps_at_request(self.request)) :]
        steps = [step for step in steps_at_send if step not in CHORE_STEPS]
        yield from (ExplanationLine("again", text) for text in self._step_texts(steps))
        if self.request.state == "sent" and not steps:
            yield ExplanationLine("again", self._text("again"))

    def attempt_lines(self) -> Iterator[ExplanationLine]:
        for attempt in self.trace.attempts:
            text = format_bilingual(
                OUTCOME_TEXTS[attempt.outcome], self.language, attempt=str(attempt.attempt), why=attempt.why or ""
            )
            yield ExplanationLine("attempt", " ".join([text, *self._response_texts(attempt)]), attempt.ended_at)

    def address_lines(self) -> Iterator[ExplanationLine]:
        """The current state of the address; it may have recovered since."""
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
            yield from (ExplanationLine("ended", text) for text in self._step_texts([DecisionStep.RAISED]))

    def next_step_lines(self) -> Iterator[ExplanationLine]:
        """What must change for the next notification to arrive."""
        if self.request.reason is not None:
            yield ExplanationLine("next", self._reason_text(NEXT_STEP_TEXTS))
        if self.request.state == "failed":
            yield from (ExplanationLine("next", self._text("resent", id=str(resend))) for resend in self.resent_as)
            if not self.resent_as:
                yield ExplanationLine("next", self._text("resend", id=str(self.request.id)))

    def _pending_text(self) -> str:
        request, now = self.request, self.trace.now
        if request.leased_until is not None and request.leased_until > now:
            return self._text("held", worker=request.held_by or "?")
        if request.scheduled_at > now:
            return self._text("later", at=self.format_time(request.scheduled_at))
        return self._text("no transport" if DecisionStep.NO_TRANSPORT in request.decision else "due")

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
        """The text for the reason why the notification ended."""
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
