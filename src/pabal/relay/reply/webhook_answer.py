"""Answers in the response to a webhook: the process that holds the webhook claims the stored reply under its own fence.

The claim takes the place of the callback's: it commits before the response is written, and the outcome is recorded
under its fence. If a webhook is repeated, several requests wait for one message: one claims, all get the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.reply.callback import CallbackOutcome, ClaimedCallback
from pabal.relay.reply.poller import DueCallback
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.reply.waiting import to_due_reply
from pabal.relay.webhook.skill_response import ChatTexts

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class WebhookWait:
    """A webhook that waits for the answer to its message. `is_closing`: it stops waiting."""

    message_id: UUID
    account_id: UUID
    fence: UUID
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """The answer to a message, claimed for the responses to its webhook."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    is_sending: bool
    callback_url: str | None = field(repr=False)
    is_callback_live: bool
    response_text: str = field(repr=False)
    late_outputs: list[dict[str, Any]] | None = field(repr=False)
    further_outputs: list[dict[str, Any]] | None = field(repr=False)
    has_more: bool

    @property
    def callback(self) -> ClaimedCallback:
        """The claim."""
        return ClaimedCallback(
            self.id,
            self.message_id,
            self.account_id,
            self.fence,
            self.callback_url or "",
            self.late_outputs or [],
            self.further_outputs or [],
            self.has_more,
        )

    def to_due(self, texts: ChatTexts) -> DueCallback:
        """The claim and the body of the response."""
        return to_due_reply(self.callback, self.response_text, texts)


@dataclass(frozen=True, slots=True)
class WrittenResponse:
    """The result of writing an answer into the response to a webhook."""

    outcome: CallbackOutcome
    error: str | None = None
    status: int | None = None
    response: dict[str, Any] | None = None


async def take_webhook_answers(tx: Tx, waits: Sequence[WebhookWait]) -> Sequence[WebhookAnswer | None]:
    """Claim the stored replies to these webhooks. Returns each answer, with the fence of the wait that claimed it."""
    if closing := [wait for wait in waits if wait.is_closing]:
        await tx.run(
            Q.close_webhooks,
            messages=[wait.message_id for wait in closing],
            accounts=[wait.account_id for wait in closing],
        )
    messages, accounts = [wait.message_id for wait in waits], [wait.account_id for wait in waits]
    await tx.run(
        Q.take_answers,
        messages=messages,
        accounts=accounts,
        fences=[wait.fence for wait in waits],
        max_outputs=MAX_OUTPUTS,
    )
    rows = await tx.all(WebhookAnswer, Q.find_webhook_answers, messages=messages, accounts=accounts)
    answers = {row.message_id: row for row in rows}
    return [answers.get(wait.message_id) for wait in waits]


async def move_to_callback(tx: Tx, answer: WebhookAnswer) -> bool:
    """Let an answer that was claimed for a webhook be posted instead. False if the claim is lost."""
    return bool(await tx.run(Q.move_to_callback, id=answer.id, account=answer.account_id, fence=answer.fence))
