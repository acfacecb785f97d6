"""Replies above their account's rate limit: stored first, and posted when the limit allows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.reply.callback import CallbackClaim, CallbackSender, ClaimedCallback, ConfirmedClaim
from pabal.relay.reply.poller import CALLBACK_BATCH_SIZE, CallbackPoller, DueCallback
from pabal.relay.reply.reply import encode_full_response, is_alone
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.skill_response import ChatTexts

Q = load_queries(__file__)

LAST_CALL = timedelta(seconds=5)
"""How long before its callback expires a reply is posted whatever the limit says."""


@dataclass(frozen=True, slots=True)
class WaitingReplyRow:
    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    response_text: str = field(repr=False)
    late_outputs: list[dict[str, Any]] | None = field(repr=False)
    further_outputs: list[dict[str, Any]] | None = field(repr=False)
    has_more: bool


async def prepare_waiting_claims(tx: Tx, limit: int = CALLBACK_BATCH_SIZE) -> list[CallbackClaim]:
    """New fences for the replies that wait, at most one of each conversation."""
    reply_ids = await tx.column(Q.list_waiting_replies, urgent=LAST_CALL, limit=limit)
    return [CallbackClaim(reply_id, new_id()) for reply_id in reply_ids]


async def claim_waiting_replies(tx: Tx, claims: Sequence[CallbackClaim], texts: ChatTexts) -> list[DueCallback]:
    """Claim the callbacks of those replies that their accounts' rate limits allow now."""
    rows = await tx.all(
        WaitingReplyRow,
        Q.claim_waiting_replies,
        ids=[claim.id for claim in claims],
        fences=[claim.fence for claim in claims],
        urgent=LAST_CALL,
        max_outputs=MAX_OUTPUTS,
    )
    return [
        to_due_reply(
            ClaimedCallback(
                row.id,
                row.message_id,
                row.account_id,
                row.fence,
                row.callback_url,
                row.late_outputs or [],
                row.further_outputs or [],
                row.has_more,
            ),
            row.response_text,
            texts,
        )
        for row in rows
    ]


def to_due_reply(callback: ClaimedCallback, response_text: str, texts: ChatTexts) -> DueCallback:
    """A stored reply with its body. Its numbers stay as the bot wrote them."""
    if is_alone(callback):
        return DueCallback(callback, response_text.encode())
    return DueCallback(callback, encode_full_response(json.loads(response_text), callback, texts))


class WaitingReplyWorker(CallbackPoller):
    """Posts replies that waited for their account's rate limit."""

    def __init__(self, name: str, db: Database, callbacks: CallbackSender, texts: ChatTexts) -> None:
        super().__init__(name, db, callbacks)
        self._texts = texts

    async def prepare_claims(self, tx: Tx) -> Sequence[CallbackClaim]:
        return await prepare_waiting_claims(tx)

    async def claim(self, tx: Tx, claims: Sequence[CallbackClaim]) -> Sequence[DueCallback]:
        return await claim_waiting_replies(tx, claims, self._texts)

    def confirm(self, claim: ConfirmedClaim) -> DueCallback:
        assert claim.response_text is not None
        return to_due_reply(claim.callback, claim.response_text, self._texts)
