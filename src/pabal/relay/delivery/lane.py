"""The relay's lane. The holder is the account; a message waits for it, expires, and never dies of retries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.lane import Capability, ClaimedRow, Lane
from pabal.relay.reply.callback import LATE_REPLY_RETENTION
from pabal.relay.webhook.skill_response import ChatLanguage, chat_texts, text_response


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message handed to its account under a lease. `delivery_seq` ascends with the handing out."""

    id: UUID
    lease: UUID
    account_id: UUID
    held_by: str
    previous_lease: UUID | None
    """The lease that ended: whoever held it under this one has the message still."""
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
    """What a claim found: a message, or, with nothing else in it, that an account left some to somebody else."""

    contended_account_id: UUID | None


@dataclass(frozen=True, slots=True)
class MessagePollRequest:
    """Somebody who takes an account's messages: under which name, and for how long at a time."""

    account_id: UUID
    holder: str
    hold: timedelta

    @property
    def topic(self) -> str:
        return str(self.account_id)


CONTENTION_DELAYS = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds before looking again for what was left to somebody who was just taking what came before it."""


class RelayLane(Lane[ClaimedMessage]):
    name = "relay"
    channel = Channel.MESSAGES
    capabilities = frozenset({Capability.ARRIVAL_ORDER, Capability.EXPIRE})
    q = load_queries(__file__)
    row_type = ClaimedMessage

    async def claim(
        self, tx: Tx, limit: int, hold: timedelta, holder: str, **claim_filter: Any
    ) -> list[ClaimedMessage]:
        who = MessagePollRequest(claim_filter["account"], holder, hold)
        return (await self.claim_for_polls(tx, {who: limit}))[who]

    async def claim_for_polls(
        self, tx: Tx, requests: Mapping[MessagePollRequest, int]
    ) -> dict[MessagePollRequest, list[ClaimedMessage]]:
        """Take due messages for several at once, each up to its free places; those of one account take turns."""
        found: dict[MessagePollRequest, list[ClaimedMessage]] = {who: [] for who in requests}
        for turn in split_by_account(requests):
            left = await self._claim_round(tx, {who.account_id: who for who in turn}, requests, found)
            for pause in CONTENTION_DELAYS:
                if not left:
                    break
                await asyncio.sleep(pause)
                left = await self._claim_round(tx, left, requests, found)
        return found

    async def _claim_round(
        self,
        tx: Tx,
        turn: Mapping[UUID, MessagePollRequest],
        places: Mapping[MessagePollRequest, int],
        found: Mapping[MessagePollRequest, list[ClaimedMessage]],
    ) -> dict[UUID, MessagePollRequest]:
        """Add to what was found; returns those that left something, and have room for it.

        Whoever somebody else comes before leaves what it had its hand on, and for that moment nobody else can take it.
        """
        looks = await tx.all(
            MessageClaimRow,
            self.q.claim,
            lease=new_id(),
            accounts=[*turn],
            holders=[who.holder for who in turn.values()],
            limits=[places[who] - len(found[who]) for who in turn.values()],
            holds=[who.hold for who in turn.values()],
        )
        for each in sorted(
            (each for each in looks if each.contended_account_id is None), key=lambda message: message.delivery_seq
        ):
            found[turn[each.account_id]].append(each)
        left = (turn[each.contended_account_id] for each in looks if each.contended_account_id)
        return {who.account_id: who for who in left if len(found[who]) < places[who]}

    async def expire(self, tx: Tx, batch: int, language: ChatLanguage = "ko") -> int:
        """End what waited too long, and have it said to those who wrote what nobody fetched."""
        told = text_response(chat_texts(language).expired)
        ended = await tx.value(self.q.expire, batch=batch, told=told, keep=LATE_REPLY_RETENTION)
        tx.count_outcomes(self.name, "failed", ended)
        return ended

    def fences(self, items: Sequence[ClaimedRow]) -> dict[str, list[Any]]:
        held = cast("Sequence[ClaimedMessage]", items)  # nobody settles messages by anything less
        return super().fences(held) | {"accounts": [item.account_id for item in held]}


def split_by_account(requests: Mapping[MessagePollRequest, int]) -> list[list[MessagePollRequest]]:
    """Deal them out so that no account comes twice in one turn: in one statement two would be given the same rows."""
    dealt: list[list[MessagePollRequest]] = []
    nth: dict[UUID, int] = {}
    for who in requests:
        turn = nth[who.account_id] = nth.get(who.account_id, -1) + 1
        if turn == len(dealt):
            dealt.append([])
        dealt[turn].append(who)
    return dealt


LANE = RelayLane()
