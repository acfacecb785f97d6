"""The relay's lane. The holder is the account; a message waits for it, expires, and never dies of retries."""

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
    had: str | None
    """Who let go of it when their lease ended."""
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
class Waiting:
    """Somebody who takes an account's messages: under which name, and for how long at a time."""

    account: UUID
    holder: str
    hold: timedelta

    @property
    def topic(self) -> str:
        return str(self.account)


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
            by_name = {(who.account, who.holder): who for who in turn}
            rows = await tx.all(
                HeldMessage,
                self.q.claim,
                lease=new_id(),
                accounts=[who.account for who in turn],
                holders=[who.holder for who in turn],
                limits=[places[who] for who in turn],
                holds=[who.hold for who in turn],
            )
            for row in sorted(rows, key=lambda message: message.handed):
                found[by_name[row.account_id, row.held_by]].append(row)
        return found

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
