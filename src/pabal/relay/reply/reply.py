"""Reply: a bot's answer to a message. Many that come together are one statement; each is a POST of its own."""

import asyncio
import json
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
    CallbackUnconfirmed,
    Invalid,
    MessageNotFound,
    RateLimited,
    RequestError,
    SessionNotPaired,
    Unauthenticated,
)
from pabal.core.ids import new_id
from pabal.db.errors import CheckViolation
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.batcher import Batcher
from pabal.relay.delivery.lane import LANE
from pabal.relay.reply.callback import LATE_REPLY_RETENTION, CallbackOutcome, CallbackSender, ClaimedCallback
from pabal.relay.reply.validate import MAX_OUTPUTS, list_skill_outputs

SkillObject = dict[str, Any]


def prepend_late_outputs(late_outputs: Sequence[SkillObject], response: SkillObject) -> SkillObject:
    """The response with late outputs before its own."""
    if not late_outputs:
        return response
    template: SkillObject = response.get("template") or {}
    return response | {"template": template | {"outputs": [*late_outputs, *list_skill_outputs(response)]}}


def encode_skill_response(response: SkillObject) -> bytes:
    """A response as JSON; numbers of any length, which a bot may have put there, come out as they went in."""
    return json.dumps(response, ensure_ascii=False).encode()


Q = load_queries(__file__)

LATE_REPLY_HINT = "the answer is kept and shown with the next one"


@dataclass(frozen=True, slots=True)
class BotReply:
    """What somebody answers, and the hash of the token it came with. `message` is None for what names no message."""

    token_hash: str = field(repr=False)
    message_id: UUID | None = None
    conversation_key: str | None = None
    response: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Checked already."""
    response_json: bytes = field(default=b"{}", repr=False)
    """The response as it came: what is stored, and what is posted when nothing goes in front."""

    @property
    def output_count(self) -> int:
        """How many places it takes; one that shows nothing leaves no room either."""
        return len(list_skill_outputs(self.response)) or MAX_OUTPUTS


@dataclass(frozen=True, slots=True)
class DeliveredReply:
    """An answer that Kakao took, and when (epoch ms)."""

    reply_id: UUID
    delivered_at_ms: int


@dataclass(frozen=True, slots=True)
class ReplyClaimRow:
    verdict: str
    step: timedelta | None
    id: UUID
    message_id: UUID | None
    account_id: UUID | None
    fence: UUID
    callback_url: str | None
    late_outputs: list[dict[str, Any]] | None
    ended: bool
    """Whether its message was over with this answer, and not before."""


async def claim_callbacks(tx: Tx, replies: Sequence[BotReply]) -> Sequence[ClaimedCallback | Exception]:
    """Take the callback of each answer's message, or say why not. Whoever is refused has spent nothing."""
    try:
        rows = await tx.all(
            ReplyClaimRow,
            Q.claim_callbacks,
            tokens=[answer.token_hash for answer in replies],
            messages=[answer.message_id for answer in replies],
            conversations=[answer.conversation_key for answer in replies],
            responses=[answer.response_json.decode() for answer in replies],
            sizes=[answer.output_count for answer in replies],
            ids=[new_id() for _ in replies],
            fences=[new_id() for _ in replies],
            keep=LATE_REPLY_RETENTION,
            room=MAX_OUTPUTS,
        )
    except CheckViolation:
        if len(replies) > 1:
            raise
        return [Invalid.of_field("response", "is not JSON that PostgreSQL can keep")]
    tx.count_outcomes(LANE.name, "done", sum(row.ended for row in rows))
    return [to_claim_result(row) for row in rows]


def to_claim_result(row: ReplyClaimRow) -> ClaimedCallback | RequestError:
    match row.verdict:
        case "spent":
            assert row.message_id is not None
            assert row.account_id is not None
            assert row.callback_url is not None
            return ClaimedCallback(
                row.id, row.message_id, row.account_id, row.fence, row.callback_url, row.late_outputs or []
            )
        case "unknown":
            return Unauthenticated("this token is not known, or no longer good")
        case "limited":
            assert row.step is not None
            return RateLimited("relay requests", row.step)
        case verdict:
            return REFUSALS_BY_VERDICT[verdict]()


REFUSALS_BY_VERDICT: dict[str, Callable[[], RequestError]] = {
    "disabled": AccountDisabled,
    "unpaired": SessionNotPaired,
    "missing": MessageNotFound,
    "answered": AlreadyReplied,
    "late": CallbackExpired,
}
"""What the statement calls it, and what the caller is told."""


async def claim_late_outputs(
    tx: Tx, conversation_key: str, max_outputs: int, shown_with: UUID | None
) -> list[dict[str, Any]]:
    """Take a conversation's late answers, up to `room` outputs, for an answer on the spot: nobody else shows them."""
    return await tx.column(
        Q.claim_late_outputs, conversation_key=conversation_key, room=max_outputs, shown_with=shown_with
    )


class ReplySender:
    """Takes a bot's answers, and sends each to where its message came from.

    `ended` hears of each message that was answered, before its answer is sent.
    """

    def __init__(self, db: Database, callbacks: CallbackSender, on_ended: Callable[[UUID, set[UUID]], object]) -> None:
        self._claims = Batcher(db, claim_callbacks)
        self._callbacks = callbacks
        self._on_ended = on_ended
        self._in_flight: set[asyncio.Task[DeliveredReply]] = set()

    async def send(self, reply: BotReply) -> DeliveredReply:
        """Send it, once; raises what Kakao, or the hub, had against it.

        Whoever asked may leave: what was begun goes on to its end, so that the end is known.
        """
        answering = asyncio.create_task(self._send(reply))
        self._in_flight.add(answering)
        answering.add_done_callback(self._in_flight.discard)
        return await asyncio.shield(answering)

    async def _send(self, reply: BotReply) -> DeliveredReply:
        spent = await self._claims.put(reply)
        self._on_ended(spent.account_id, {spent.message_id})
        posted, at = await self._callbacks.send(spent, build_callback_body(reply, spent))
        match posted.outcome:
            case CallbackOutcome.SENT:
                return DeliveredReply(spent.id, at)
            case CallbackOutcome.REFUSED:
                raise CallbackFailed(posted.error or "Kakao refused the answer")
            case CallbackOutcome.UNSENT:
                raise CallbackFailed(f"Kakao was not reached: {posted.error}; {LATE_REPLY_HINT}")
            case CallbackOutcome.UNKNOWN:
                raise CallbackUnconfirmed(posted.error or "Kakao said nothing")
            case _:
                assert_never(posted.outcome)

    async def close(self) -> None:
        """Wait for everything that was begun."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._claims.close()


def build_callback_body(reply: BotReply, callback: ClaimedCallback) -> bytes:
    """What is posted: the response as it came, or with what came too late in front of it."""
    if not callback.late_outputs:
        return reply.response_json
    return encode_skill_response(prepend_late_outputs(callback.late_outputs, reply.response))
