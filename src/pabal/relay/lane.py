"""The relay's lane. The holder is the account; a message waits for it, expires, and never dies of retries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.lane import Can, Claimed, Lane
from pabal.relay.callback import KEEP
from pabal.relay.skill import said
from pabal.relay.texts import Language, texts


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message handed to its account under a lease. `handed` ascends with the handing out."""

    id: UUID
    lease: UUID
    account_id: UUID
    held_by: str
    had: UUID | None
    """The lease that ended: whoever held it under this one has the message still."""
    handed: int
    conversation_key: str
    kakao_payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: datetime | None
    seq: int
    created_at: datetime
    attempt: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Look(HeldMessage):
    """What a claim found: a message, or, with nothing else in it, that an account left some to somebody else."""

    left_by: UUID | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody who takes an account's messages: under which name, and for how long at a time."""

    account: UUID
    holder: str
    hold: timedelta

    @property
    def topic(self) -> str:
        return str(self.account)


PAUSES = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds before looking again for what was left to somebody who was just taking what came before it."""


class RelayLane(Lane[HeldMessage]):
    name = "relay"
    bell = Bell.MESSAGES
    can = frozenset({Can.ARRIVAL_ORDER, Can.EXPIRE})
    q = beside(__file__)
    row = HeldMessage

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[HeldMessage]:
        who = Waiting(whom["account"], holder, hold)
        return (await self.claim_for(tx, {who: limit}))[who]

    async def claim_for(self, tx: Tx, places: Mapping[Waiting, int]) -> dict[Waiting, list[HeldMessage]]:
        """Take due messages for several at once, each up to its free places; those of one account take turns."""
        found: dict[Waiting, list[HeldMessage]] = {who: [] for who in places}
        for turn in turns(places):
            left = await self._look(tx, {who.account: who for who in turn}, places, found)
            for pause in PAUSES:
                if not left:
                    break
                await asyncio.sleep(pause)
                left = await self._look(tx, left, places, found)
        return found

    async def _look(
        self,
        tx: Tx,
        turn: Mapping[UUID, Waiting],
        places: Mapping[Waiting, int],
        found: Mapping[Waiting, list[HeldMessage]],
    ) -> dict[UUID, Waiting]:
        """Add to what was found; returns those that left something, and have room for it.

        Whoever somebody else comes before leaves what it had its hand on, and for that moment nobody else can take it.
        """
        looks = await tx.all(
            Look,
            self.q.claim,
            lease=new_id(),
            accounts=[*turn],
            holders=[who.holder for who in turn.values()],
            limits=[places[who] - len(found[who]) for who in turn.values()],
            holds=[who.hold for who in turn.values()],
        )
        for each in sorted((each for each in looks if each.left_by is None), key=lambda message: message.handed):
            found[turn[each.account_id]].append(each)
        left = (turn[each.left_by] for each in looks if each.left_by)
        return {who.account: who for who in left if len(found[who]) < places[who]}

    async def expire(self, tx: Tx, batch: int, language: Language = "ko") -> int:
        """End what waited too long, and have it said to those who wrote what nobody fetched."""
        told = said(texts(language).expired)
        ended = await tx.value(self.q.expire, batch=batch, told=told, keep=KEEP)
        tx.count(self.name, "failed", ended)
        return ended

    def fences(self, items: Sequence[Claimed]) -> dict[str, list[Any]]:
        held = cast("Sequence[HeldMessage]", items)  # nobody settles messages by anything less
        return super().fences(held) | {"accounts": [item.account_id for item in held]}


def turns(places: Mapping[Waiting, int]) -> list[list[Waiting]]:
    """Deal them out so that no account comes twice in one turn: in one statement two would be given the same rows."""
    dealt: list[list[Waiting]] = []
    nth: dict[UUID, int] = {}
    for who in places:
        turn = nth[who.account] = nth.get(who.account, -1) + 1
        if turn == len(dealt):
            dealt.append([])
        dealt[turn].append(who)
    return dealt


LANE = RelayLane()
