"""Reply: a bot's answer to a message. Many that come together are one statement; each is a POST of its own."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, assert_never
from uuid import UUID

from pabal.core.errors import (
    AccountDisabled,
    AlreadyReplied,
    CallbackExpired,
    CallbackFailed,
    CallbackUnknown,
    Invalid,
    MessageNotFound,
    NotPaired,
    Refused,
    TooMany,
    Unauthenticated,
)
from pabal.core.ids import new_id
from pabal.db.faults import Unfit
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.gatherer import Gatherer
from pabal.relay.callback import KEEP, Callbacks, Ending, Spent
from pabal.relay.lane import LANE
from pabal.relay.late import in_front, written
from pabal.relay.response import MOST_OUTPUTS, outputs_of

Q = beside(__file__)

KEPT = "the answer is kept and shown with the next one"


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody answers, and the hash of the token it came with. `message` is None for what names no message."""

    token: str = field(repr=False)
    message: UUID | None = None
    conversation_key: str | None = None
    response: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Checked already."""
    written: bytes = field(default=b"{}", repr=False)
    """The response as it came: what is stored, and what is posted when nothing goes in front."""

    @property
    def size(self) -> int:
        """How many places it takes; one that shows nothing leaves no room either."""
        return len(outputs_of(self.response)) or MOST_OUTPUTS


@dataclass(frozen=True, slots=True)
class Delivered:
    """An answer that Kakao took, and when (epoch ms)."""

    reply: UUID
    at: int


@dataclass(frozen=True, slots=True)
class Row:
    verdict: str
    step: timedelta | None
    id: UUID
    message_id: UUID | None
    account_id: UUID | None
    fence: UUID
    callback_url: str | None
    late: list[dict[str, Any]] | None
    ended: bool
    """Whether its message was over with this answer, and not before."""


async def spend(tx: Tx, answers: Sequence[Answer]) -> Sequence[Spent | Exception]:
    """Take the callback of each answer's message, or say why not. Whoever is refused has spent nothing."""
    try:
        rows = await tx.all(
            Row,
            Q.spend,
            tokens=[answer.token for answer in answers],
            messages=[answer.message for answer in answers],
            conversations=[answer.conversation_key for answer in answers],
            responses=[answer.written.decode() for answer in answers],
            sizes=[answer.size for answer in answers],
            ids=[new_id() for _ in answers],
            fences=[new_id() for _ in answers],
            keep=KEEP,
            room=MOST_OUTPUTS,
        )
    except Unfit:
        if len(answers) > 1:
            raise
        return [Invalid.one("response", "is not JSON that PostgreSQL can keep")]
    tx.count(LANE.name, "done", sum(row.ended for row in rows))
    return [told(row) for row in rows]


def told(row: Row) -> Spent | Refused:
    match row.verdict:
        case "spent":
            assert row.message_id is not None
            assert row.account_id is not None
            assert row.callback_url is not None
            return Spent(row.id, row.message_id, row.account_id, row.fence, row.callback_url, row.late or [])
        case "unknown":
            return Unauthenticated("this token is not known, or no longer good")
        case "limited":
            assert row.step is not None
            return TooMany("relay requests", row.step)
        case verdict:
            return REFUSALS[verdict]()


REFUSALS: dict[str, Callable[[], Refused]] = {
    "disabled": AccountDisabled,
    "unpaired": NotPaired,
    "missing": MessageNotFound,
    "answered": AlreadyReplied,
    "late": CallbackExpired,
}
"""What the statement calls it, and what the caller is told."""


async def late_for(tx: Tx, conversation_key: str, room: int, shown_with: UUID | None) -> list[dict[str, Any]]:
    """Take a conversation's late answers, up to `room` outputs, for an answer on the spot: nobody else shows them."""
    return await tx.column(Q.show, conversation_key=conversation_key, room=room, shown_with=shown_with)


class Replies:
    """Takes a bot's answers, and sends each to where its message came from.

    `ended` hears of each message that was answered, before its answer is sent.
    """

    def __init__(self, db: Database, callbacks: Callbacks, ended: Callable[[UUID, set[UUID]], object]) -> None:
        self._spending = Gatherer(db, spend)
        self._callbacks = callbacks
        self._ended = ended
        self._under_way: set[asyncio.Task[Delivered]] = set()

    async def answer(self, answer: Answer) -> Delivered:
        """Send it, once; raises what Kakao, or the hub, had against it.

        Whoever asked may leave: what was begun goes on to its end, so that the end is known.
        """
        answering = asyncio.create_task(self._answer(answer))
        self._under_way.add(answering)
        answering.add_done_callback(self._under_way.discard)
        return await asyncio.shield(answering)

    async def _answer(self, answer: Answer) -> Delivered:
        spent = await self._spending.put(answer)
        self._ended(spent.account_id, {spent.message_id})
        posted, at = await self._callbacks.send(spent, body_of(answer, spent))
        match posted.ending:
            case Ending.SENT:
                return Delivered(spent.id, at)
            case Ending.REFUSED:
                raise CallbackFailed(posted.why or "Kakao refused the answer")
            case Ending.UNSENT:
                raise CallbackFailed(f"Kakao was not reached: {posted.why}; {KEPT}")
            case Ending.UNKNOWN:
                raise CallbackUnknown(posted.why or "Kakao said nothing")
            case _:
                assert_never(posted.ending)

    async def close(self) -> None:
        """Wait for everything that was begun."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._spending.close()


def body_of(answer: Answer, spent: Spent) -> bytes:
    """What is posted: the response as it came, or with what came too late in front of it."""
    if not spent.late:
        return answer.written
    return written(in_front(spent.late, answer.response))
