"""Receive: what becomes of webhooks. Many that come together are one statement and one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.core.errors import PabalError, TooMany
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Contended
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.arrival import Arrival

Q = beside(__file__)

CALLBACK_LIFE = timedelta(seconds=55)  # Kakao says 60; five are for the road
MINUTE = timedelta(minutes=1)
HELD = Contended("somebody else holds the conversation, or came between")
GONE = Contended("the first of two went while we looked at the second")


@dataclass(frozen=True, slots=True)
class Brought:
    """An arrival on its way in. A command is looked at, and not put into any queue."""

    arrival: Arrival
    is_command: bool


@dataclass(frozen=True, slots=True)
class Received:
    """What the hub now knows of an arrival: how its conversation stands, and which message it became, if any."""

    state: str
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    repeats: UUID | None
    answer: dict[str, Any] | None
    has_callback: bool


@dataclass(frozen=True, slots=True)
class Row:
    place: int
    is_calm: bool
    is_let_in: bool
    state: str | None
    account_id: UUID | None
    is_disabled: bool
    message_id: UUID | None
    repeats: UUID | None
    answer: dict[str, Any] | None
    had_callback: bool
    has_told: bool


@dataclass(frozen=True, slots=True)
class Repeated:
    repeats: UUID
    answer: dict[str, Any] | None
    had_callback: bool


@dataclass(frozen=True, slots=True)
class Reception:
    """Takes webhooks in, by the limits and lifetimes it was given. Its `receive` is what a gatherer puts."""

    queue_life: timedelta
    per_conversation: int
    per_channel: int

    async def receive(self, tx: Tx, group: Sequence[Brought]) -> Sequence[Received | Exception]:
        """Take a group in, in the order it came. Two of one conversation go one after the other.

        Each turn is for good. What fails in a later one is put off with all that follows, and tried again without the
        turns before it: nobody is counted twice against their limits.
        """
        results: list[Received | Exception | None] = [None] * len(group)
        for nth, turn in enumerate(turns(group)):
            try:
                rows = await self._ask(tx, turn)
            except PabalError:
                if nth == 0:
                    raise
                break
            for row in rows:
                results[row.place] = await self._told(tx, row, group[row.place])
        return [HELD if result is None else result for result in results]

    async def _ask(self, tx: Tx, turn: dict[int, Brought]) -> list[Row]:
        arrivals = [brought.arrival for brought in turn.values()]
        rows = await tx.all(
            Row,
            Q.receive,
            places=[*turn],
            keys=[arrival.key for arrival in arrivals],
            channels=[arrival.channel for arrival in arrivals],
            users=[arrival.user for arrival in arrivals],
            source_events=[arrival.source_event_id for arrival in arrivals],
            payloads=[arrival.payload for arrival in arrivals],
            normalized=[msgspec.json.encode(arrival.normalized).decode() for arrival in arrivals],
            callbacks=[arrival.callback_url for arrival in arrivals],
            ids=[None if brought.is_command else new_id() for brought in turn.values()],
            per_conversation=self.per_conversation,
            per_channel=self.per_channel,
            callback_life=CALLBACK_LIFE,
            queue_life=self.queue_life,
        )
        for row in rows:
            if row.message_id:
                tx.ring(Bell.MESSAGES, str(row.account_id))
            if row.has_told:
                tx.ring(Bell.EVENTS)
        return rows

    async def _told(self, tx: Tx, row: Row, brought: Brought) -> Received | Exception:
        if not row.is_calm:
            return TooMany("messages in this conversation", MINUTE / self.per_conversation)
        if not row.is_let_in:
            return TooMany("messages on this channel", MINUTE / self.per_channel)
        assert row.state is not None  # whoever is let in is seen
        repeats, answer, has_callback = row.repeats, row.answer, brought.arrival.callback_url is not None
        queues = row.state == "PAIRED" and not row.is_disabled and not brought.is_command
        if queues and row.message_id is None:
            if repeats is None:
                arrival = brought.arrival
                first = await tx.maybe(
                    Repeated,
                    Q.repeated,
                    conversation_key=arrival.key,
                    channel_id=arrival.channel,
                    source_event_id=arrival.source_event_id,
                )
                if first is None:
                    return GONE
                repeats, answer, has_callback = first.repeats, first.answer, first.had_callback
            else:
                has_callback = row.had_callback
        return Received(row.state, row.account_id, row.is_disabled, row.message_id, repeats, answer, has_callback)


def turns(group: Sequence[Brought]) -> list[dict[int, Brought]]:
    """Deal a group out so that no conversation comes twice in one turn; each keeps its place."""
    dealt: list[dict[int, Brought]] = []
    nth: dict[str, int] = {}
    for place, brought in enumerate(group):
        turn = nth[brought.arrival.key] = nth.get(brought.arrival.key, -1) + 1
        if turn == len(dealt):
            dealt.append({})
        dealt[turn][place] = brought
    return dealt


async def remember(tx: Tx, received: Received, answer: dict[str, Any]) -> None:
    """Keep what the webhook was told, for its repeat."""
    await tx.run(Q.remember, id=received.message_id, account_id=received.account_id, answer=answer)
    tx.ring(Bell.MESSAGES, str(received.account_id))  # whoever looked meanwhile has passed the message over
