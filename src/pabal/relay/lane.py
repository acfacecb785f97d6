"""The relay's lane. The holder is the account; a message waits for it, expires, and never dies of retries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.lane import Can, Lane


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message handed to its account under a lease."""

    id: UUID
    lease: UUID
    account_id: UUID
    conversation_key: str
    kakao_payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: datetime | None
    seq: int
    created_at: datetime
    attempt: int
    allowed: int


class RelayLane(Lane[HeldMessage]):
    name = "relay"
    bell = Bell.MESSAGES
    can = frozenset({Can.ARRIVAL_ORDER, Can.EXPIRE})
    q = beside(__file__)
    row = HeldMessage

    async def claim(self, tx: Tx, limit: int, hold: timedelta, holder: str, **whom: Any) -> list[HeldMessage]:
        return await self.claim_for(tx, {whom["account"]: limit}, hold, holder)

    async def claim_for(self, tx: Tx, places: Mapping[UUID, int], hold: timedelta, holder: str) -> list[HeldMessage]:
        """Take due messages for several accounts at once, each up to its free places."""
        found = await tx.all(
            HeldMessage,
            self.q.claim,
            lease=new_id(),
            accounts=list(places),
            limits=list(places.values()),
            hold=hold,
            holder=holder,
        )
        return sorted(found, key=lambda message: message.seq)

    def fences(self, items: Sequence[HeldMessage]) -> dict[str, list[Any]]:
        return super().fences(items) | {"accounts": [item.account_id for item in items]}


LANE = RelayLane()
