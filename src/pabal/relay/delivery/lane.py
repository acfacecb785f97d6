"""The relay's lane. The account holds its messages; a message waits until it expires and never dies of retries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.lane import Capability, ClaimedRow, Lane
from pabal.relay.reply.callback import LATE_REPLY_RETENTION
from pabal.relay.rounds import split_into_rounds
from pabal.relay.webhook.skill_response import ChatLanguage, chat_texts, text_response

CONTENTION_DELAYS = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds before each further claim for accounts that had to leave messages to a concurrent claim."""

MAX_CLAIM_BYTES = 2 << 20
"""Size of the payloads that one claim takes for an account: each may have 1 MB and is decoded on the event loop."""


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message delivered to its account under a lease. `delivery_seq` ascends with each delivery."""

    id: UUID
    lease: UUID
    account_id: UUID
    held_by: str
    previous_lease: UUID | None
    """The lease that expired. The client that held the message under it still has the message."""
    delivery_seq: int
    conversation_key: str
    kakao_payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: datetime | None
    seq: int
    created_at: datetime
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class MessageClaimRow(ClaimedMessage):
    """A claimed message, or an otherwise empty row that names an account with contended messages."""

    contended_account_id: UUID | None


@dataclass(frozen=True, slots=True)
class MessagePollRequest:
    """One consumer of an account's messages, and the length of its leases."""

    account_id: UUID
    holder: str
    hold: timedelta

    @property
    def topic(self) -> str:
        return str(self.account_id)


class RelayLane(Lane[ClaimedMessage, UUID]):
    """A claim is for one account, given by its id."""

    name = "relay"
    channel = Channel.MESSAGES
    capabilities = frozenset({Capability.ARRIVAL_ORDER, Capability.EXPIRE})
    q = load_queries(__file__)
    row_type = ClaimedMessage

    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, account_id: UUID, /
    ) -> list[ClaimedMessage]:
        request = MessagePollRequest(account_id, holder, hold)
        return (await self.claim_for_polls(tx, {request: limit}))[request]

    async def claim_for_polls(
        self, tx: Tx, requests: Mapping[MessagePollRequest, int]
    ) -> dict[MessagePollRequest, list[ClaimedMessage]]:
        """Claim due messages for several consumers, each up to its limit.

        Consumers of one account are served in separate rounds: in one statement they would get the same rows.
        """
        claimed: dict[MessagePollRequest, list[ClaimedMessage]] = {request: [] for request in requests}
        for claim_round in split_into_rounds(requests, lambda request: request.account_id):
            by_account = {request.account_id: request for request in claim_round}
            contended = await self._claim_round(tx, by_account, requests, claimed)
            for delay in CONTENTION_DELAYS:
                if not contended:
                    break
                await asyncio.sleep(delay)
                contended = await self._claim_round(tx, contended, requests, claimed)
        return claimed

    async def _claim_round(
        self,
        tx: Tx,
        by_account: Mapping[UUID, MessagePollRequest],
        limits: Mapping[MessagePollRequest, int],
        claimed: Mapping[MessagePollRequest, list[ClaimedMessage]],
    ) -> dict[UUID, MessagePollRequest]:
        """Add newly claimed messages to `claimed`; returns the requests to try again.

        If another claimer holds an earlier message of a conversation, the statement leaves the later ones to keep their
        order. Two concurrent claims may leave messages to each other, so such an account is tried again.
        """
        rows = await tx.all(
            MessageClaimRow,
            self.q.claim,
            lease=new_id(),
            accounts=[*by_account],
            holders=[request.holder for request in by_account.values()],
            limits=[limits[request] - len(claimed[request]) for request in by_account.values()],
            holds=[request.hold for request in by_account.values()],
            max_bytes=MAX_CLAIM_BYTES,
        )
        messages = [row for row in rows if row.contended_account_id is None]
        for message in sorted(messages, key=lambda message: message.delivery_seq):
            claimed[by_account[message.account_id]].append(message)
        contended = [by_account[row.contended_account_id] for row in rows if row.contended_account_id]
        return {request.account_id: request for request in contended if len(claimed[request]) < limits[request]}

    async def expire(self, tx: Tx, batch: int, language: ChatLanguage = "ko") -> int:
        """End messages past their queue life. If none was ever delivered, the user gets a text with the next reply."""
        response = text_response(chat_texts(language).expired)
        expired = await tx.value(self.q.expire, batch=batch, response=response, keep=LATE_REPLY_RETENTION)
        tx.count_outcomes(self.name, "failed", expired)
        return expired

    def fences(self, items: Sequence[ClaimedRow]) -> dict[str, list[Any]]:
        messages = cast("Sequence[ClaimedMessage]", items)  # the lane claims nothing else
        return super().fences(messages) | {"accounts": [message.account_id for message in messages]}


LANE = RelayLane()
