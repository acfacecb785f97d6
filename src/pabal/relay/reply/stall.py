"""Stall: before an unanswered callback expires, the hub spends it on a short text of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import EndReason
from pabal.relay.reply.callback import CallbackClaim, CallbackSender, ClaimedCallback, ConfirmedClaim
from pabal.relay.reply.poller import CALLBACK_BATCH_SIZE, CallbackPoller, DueCallback
from pabal.relay.reply.reply import add_outputs, encode_skill_response
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.receive import CALLBACK_LIFETIME
from pabal.relay.webhook.skill_response import ChatTexts, text_response

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class ExpiringCallback:
    """A callback claimed shortly before it expires. `end_reason` is set if no reply to its message will come."""

    callback: ClaimedCallback
    end_reason: EndReason | None


@dataclass(frozen=True, slots=True)
class ExpiringCallbackRow:
    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    end_reason: EndReason | None
    late_outputs: list[dict[str, Any]] | None = field(repr=False)


def new_claims(count: int) -> list[CallbackClaim]:
    """Ids and fences for a batch of claims."""
    return [CallbackClaim(new_id(), new_id()) for _ in range(count)]


async def claim_expiring_callbacks(
    tx: Tx, stall_after: timedelta, claims: Sequence[CallbackClaim] = ()
) -> list[ExpiringCallback]:
    """Claim live callbacks of messages that have had no reply for `stall_after`, under the given ids and fences."""
    claims = claims or new_claims(CALLBACK_BATCH_SIZE)
    rows = await tx.all(
        ExpiringCallbackRow,
        Q.claim_expiring_callbacks,
        time_left=CALLBACK_LIFETIME - stall_after,
        ids=[claim.id for claim in claims],
        fences=[claim.fence for claim in claims],
        batch=len(claims),
        max_outputs=MAX_OUTPUTS - 1,
    )
    return [
        ExpiringCallback(
            ClaimedCallback(
                row.id, row.message_id, row.account_id, row.fence, row.callback_url, row.late_outputs or []
            ),
            row.end_reason,
        )
        for row in rows
    ]


def build_stall_body(expiring: ExpiringCallback, texts: ChatTexts) -> bytes:
    """Late outputs, followed by a text that says whether a reply is still to come, and the button if it is."""
    buttons = [] if expiring.end_reason else [texts.check_answer]
    match expiring.end_reason:
        case None:
            text = texts.still_working
        case "queue_life":
            text = texts.expired
        case "blocked":
            text = texts.blocked
        case "disabled":
            text = texts.disabled
        case _:
            text = texts.unpaired
    return encode_skill_response(
        add_outputs(text_response(text, quick_replies=buttons), before=expiring.callback.late_outputs)
    )


class StallWorker(CallbackPoller):
    """Spends callbacks that are about to expire."""

    def __init__(
        self, name: str, db: Database, callbacks: CallbackSender, texts: ChatTexts, stall_after: timedelta
    ) -> None:
        super().__init__(name, db, callbacks)
        self._texts = texts
        self._stall_after = stall_after

    async def prepare_claims(self, tx: Tx) -> Sequence[CallbackClaim]:
        del tx  # the claim finds the messages by itself
        return new_claims(CALLBACK_BATCH_SIZE)

    async def claim(self, tx: Tx, claims: Sequence[CallbackClaim]) -> Sequence[DueCallback]:
        return [*map(self._to_due, await claim_expiring_callbacks(tx, self._stall_after, claims))]

    def confirm(self, claim: ConfirmedClaim) -> DueCallback:
        return self._to_due(ExpiringCallback(claim.callback, claim.end_reason))

    def _to_due(self, expiring: ExpiringCallback) -> DueCallback:
        return DueCallback(expiring.callback, build_stall_body(expiring, self._texts))
