"""Reply to messages: one statement claims the callbacks of concurrent replies, then each reply is one POST."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, assert_never
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
from pabal.relay.reply.callback import LATE_REPLY_RETENTION, CallbackSender, ClaimedCallback
from pabal.relay.reply.validate import MAX_OUTPUTS, list_skill_outputs

Q = load_queries(__file__)

SkillObject = dict[str, Any]

LATE_REPLY_HINT = "the reply is kept and shown with the next one"

RefusalVerdict = Literal["disabled", "unpaired", "missing", "answered", "late"]
ClaimVerdict = Literal["spent", "unknown", "limited"] | RefusalVerdict
"""The statement's decision on a reply. Only `spent` claims the callback."""

REFUSALS_BY_VERDICT: dict[RefusalVerdict, type[RequestError]] = {
    "disabled": AccountDisabled,
    "unpaired": SessionNotPaired,
    "missing": MessageNotFound,
    "answered": AlreadyReplied,
    "late": CallbackExpired,
}


@dataclass(frozen=True, slots=True)
class BotReply:
    """A bot's reply and the hash of the token it came with. A `message_id` of None matches no message."""

    token_hash: str = field(repr=False)
    message_id: UUID | None = None
    conversation_key: str | None = None
    response: SkillObject = field(default_factory=dict[str, Any], repr=False)
    """Already validated."""
    response_json: bytes = field(default=b"{}", repr=False)
    """The response unchanged: this is stored, and posted if no late outputs go in front."""

    @property
    def output_count(self) -> int:
        """How many outputs it fills. A response without outputs leaves no space for late ones either."""
        return len(list_skill_outputs(self.response)) or MAX_OUTPUTS


@dataclass(frozen=True, slots=True)
class DeliveredReply:
    """A reply that Kakao accepted, with the time in epoch ms."""

    reply_id: UUID
    delivered_at_ms: int


@dataclass(frozen=True, slots=True)
class ReplyClaimRow:
    verdict: ClaimVerdict
    step: timedelta | None
    id: UUID
    message_id: UUID | None
    account_id: UUID | None
    fence: UUID
    callback_url: str | None
    late_outputs: list[SkillObject] | None
    ended: bool
    """Whether this reply ended its message."""


async def claim_callbacks(tx: Tx, replies: Sequence[BotReply]) -> Sequence[ClaimedCallback | Exception]:
    """Claim the callback of each reply's message, or return the reason why not. A refusal spends nothing."""
    try:
        rows = await tx.all(
            ReplyClaimRow,
            Q.claim_callbacks,
            tokens=[reply.token_hash for reply in replies],
            messages=[reply.message_id for reply in replies],
            conversations=[reply.conversation_key for reply in replies],
            responses=[reply.response_json.decode() for reply in replies],
            sizes=[reply.output_count for reply in replies],
            ids=[new_id() for _ in replies],
            fences=[new_id() for _ in replies],
            keep=LATE_REPLY_RETENTION,
            max_outputs=MAX_OUTPUTS,
        )
    except CheckViolation:
        if len(replies) > 1:
            raise
        return [Invalid.of_field("response", "is not JSON that PostgreSQL can store")]
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
            return Unauthenticated("the token is unknown or no longer valid")
        case "limited":
            assert row.step is not None
            return RateLimited("relay requests", row.step)
        case verdict:
            return REFUSALS_BY_VERDICT[verdict]()


async def claim_late_outputs(
    tx: Tx, conversation_key: str, max_outputs: int, shown_with: UUID | None
) -> list[SkillObject]:
    """Claim up to `max_outputs` outputs of a conversation's late replies, to show them in an immediate response."""
    return await tx.column(
        Q.claim_late_outputs, conversation_key=conversation_key, max_outputs=max_outputs, shown_with=shown_with
    )


class ReplySender:
    """Sends bots' replies. `on_ended` is called for each message that a reply ended, before the reply is sent."""

    def __init__(self, db: Database, callbacks: CallbackSender, on_ended: Callable[[UUID, set[UUID]], object]) -> None:
        self._claims = Batcher(db, claim_callbacks)
        self._callbacks = callbacks
        self._on_ended = on_ended
        self._in_flight: set[asyncio.Task[DeliveredReply]] = set()

    async def send(self, reply: BotReply) -> DeliveredReply:
        """Send a reply once; raise if the hub or Kakao refuses it.

        If the caller disconnects, sending goes on to its end, so that the outcome is recorded.
        """
        task = asyncio.create_task(self._send(reply))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return await asyncio.shield(task)

    async def _send(self, reply: BotReply) -> DeliveredReply:
        callback = await self._claims.put(reply)
        self._on_ended(callback.account_id, {callback.message_id})
        result, settled_at = await self._callbacks.send(callback, build_callback_body(reply, callback))
        match result.outcome:
            case "sent":
                return DeliveredReply(callback.id, settled_at)
            case "refused":
                raise CallbackFailed(result.error or "Kakao refused the reply")
            case "unsent":
                raise CallbackFailed(f"Kakao could not be reached: {result.error}; {LATE_REPLY_HINT}")
            case "unknown":
                raise CallbackUnconfirmed(result.error or "Kakao did not confirm the reply")
            case _:
                assert_never(result.outcome)

    async def close(self) -> None:
        """Wait for all replies in flight."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._claims.close()


def build_callback_body(reply: BotReply, callback: ClaimedCallback) -> bytes:
    """The body to post: the response unchanged, or with late outputs in front."""
    if not callback.late_outputs:
        return reply.response_json
    return encode_skill_response(prepend_late_outputs(callback.late_outputs, reply.response))


def prepend_late_outputs(late_outputs: Sequence[SkillObject], response: SkillObject) -> SkillObject:
    """The response with late outputs before its own."""
    if not late_outputs:
        return response
    template: SkillObject = response.get("template") or {}
    return response | {"template": template | {"outputs": [*late_outputs, *list_skill_outputs(response)]}}


def encode_skill_response(response: SkillObject) -> bytes:
    """A response as JSON. Unlike msgspec, `json` keeps integers of any length as the bot wrote them."""
    return json.dumps(response, ensure_ascii=False).encode()
