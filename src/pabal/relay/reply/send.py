"""Send replies: claim the callback, post once, settle. A reply whose claim is unclear is tried again by its maker only.

1. `claim_callbacks` claims the callback under an id and a fence that are made before the first try.
2. If the answer to the claim's commit is lost, the same process asks whether the row is its own and still unsettled,
   and then posts. No other process knows the fence, so no other one posts.
3. A reply to an answered message is a repeat, which gets the outcome of the first, or a further block, which is kept.
   One that arrived while the callback was being claimed goes along with the first one's POST.
4. A reply above its account's rate limit is stored. `waiting.py` posts it when the limit allows; its request waits.
5. A reply to a message whose webhook is held open is stored for the process that holds it; its request waits.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, assert_never
from uuid import UUID

from pabal.core.backoff import spread
from pabal.core.errors import (
    AlreadyReplied,
    CallbackExpired,
    CallbackFailed,
    CallbackUnconfirmed,
    MessageNotFound,
    PabalError,
    Unavailable,
)
from pabal.core.log import get_logger
from pabal.db.doorbell.doorbell import POLL_INTERVAL
from pabal.db.pool import Database
from pabal.db.waiting import wait_with_timeout
from pabal.queue.batcher import Batcher
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.reply.answer_signals import AnswerSignals, AnswerStep
from pabal.relay.reply.answer_speeds import AnswerSpeeds
from pabal.relay.reply.callback import (
    CONFIRM_WINDOW,
    TOO_LATE_ERROR,
    CallbackResult,
    CallbackSender,
    ClaimedCallback,
    ConfirmedClaim,
    confirm_claims,
)
from pabal.relay.reply.recorded import (
    BlockToJoin,
    RecordedReply,
    ReplyToAnswered,
    TextPart,
    find_recorded_replies,
    join_further_replies,
    keep_further_replies,
)
from pabal.relay.reply.reply import BotReply, build_callback_body, claim_callbacks
from pabal.relay.reply.validate import MAX_OUTPUTS, list_skill_outputs
from pabal.relay.webhook.skill_response import ChatTexts

log = get_logger()

REPLY_HOLD = 8.0
"""Seconds that a request waits for the outcome of its reply. Clients give up after ten."""
REQUEST_TIMEOUT = 9.5
"""Seconds after which a request is answered in any case: the claim, the POST and the settlement may all be slow."""
OUTCOME_POLL_INTERVAL = timedelta(seconds=0.2)
CLAIM_RETRY_DELAY = 0.2
JOIN_TIMEOUT = 1.0
"""Seconds for which the POST of a reply waits until it is recorded which further blocks go along."""
LATE_REPLY_HINT = "the reply is kept and shown with the next one"
UNCONFIRMED_ERROR = "the outcome of this reply is not known yet; it may have been shown"


@dataclass(frozen=True, slots=True)
class DeliveredReply:
    """A reply that Kakao accepted, with the time in epoch ms."""

    reply_id: UUID
    delivered_at_ms: int


@dataclass(frozen=True, slots=True)
class KeptReply:
    """A reply that is stored and not posted yet: it is shown later."""

    reply_id: UUID


ReplyResult = DeliveredReply | KeptReply


class QueuedReply(NamedTuple):
    """A reply and the future of its claim."""

    reply: BotReply
    claiming: "asyncio.Future[ClaimedCallback | ReplyToAnswered]"


class ReplySender:
    """Sends bots' replies. `on_ended` is called for each message that a reply ended, before the reply is sent."""

    def __init__(
        self,
        db: Database,
        callbacks: CallbackSender,
        on_ended: Callable[[UUID, set[UUID]], object],
        signals: AnswerSignals,
        speeds: AnswerSpeeds,
        texts: ChatTexts,
        cipher: MessageCipher | None = None,
    ) -> None:
        self._claims = Batcher(db, partial(claim_callbacks, on_answer=speeds.observe, cipher=cipher))
        self._signals = signals
        self.speeds = speeds
        self._texts = texts
        self._confirmations = Batcher(db, confirm_claims)
        self._records = Batcher(db, find_recorded_replies)
        self._further_replies = Batcher(db, partial(keep_further_replies, cipher=cipher))
        self._callbacks = callbacks
        self._on_ended = on_ended
        self._joins = Batcher(db, partial(join_further_replies, cipher=cipher))
        self._claiming: defaultdict[UUID | None, dict[UUID, QueuedReply]] = defaultdict(dict)
        """The replies of each message whose claims are not answered yet."""
        self._in_flight: set[asyncio.Task[ReplyResult]] = set()
        self._is_closing = False

    async def send(self, reply: BotReply) -> ReplyResult:
        """Send a reply once; raise if the hub or Kakao refuses it.

        If the caller disconnects or has waited too long, sending goes on to its end, so that the outcome is recorded.
        """
        sending = self._start(self._send(reply))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                return await asyncio.shield(sending)
        except TimeoutError:
            raise CallbackUnconfirmed(UNCONFIRMED_ERROR) from None

    def _start(self, sending: Coroutine[Any, Any, ReplyResult]) -> "asyncio.Task[ReplyResult]":
        task = asyncio.create_task(sending)
        self._in_flight.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[ReplyResult]") -> None:
        """Forget a task. Its caller may have left: then a refusal is expected, and the loop must not report it."""
        self._in_flight.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PabalError):
            log.error("reply failed", exc_info=error)

    async def _send(self, reply: BotReply) -> ReplyResult:
        try:
            claim = await self._claim(reply)
        except Unavailable as error:
            log.warning("reply not claimed", message=str(reply.message_id), error=str(error))
            recovery = self._start(self._recover(reply))
            try:
                async with asyncio.timeout(REPLY_HOLD):
                    return await asyncio.shield(recovery)
            except TimeoutError:
                raise error from None
        return await self._finish(reply, claim)

    async def _recover(self, reply: BotReply) -> ReplyResult:
        """Try again with the same id and fence until it is clear whether the callback is ours."""
        give_up_at = monotonic() + CONFIRM_WINDOW.total_seconds()
        while True:
            await asyncio.sleep(spread(CLAIM_RETRY_DELAY, 0.5, 1))
            try:
                claim = await self._confirmations.put(reply.claim) or await self._claim(reply)
                break
            except Unavailable:
                if self._is_closing or monotonic() >= give_up_at:
                    raise
        return await self._finish(reply, claim)

    async def _claim(self, reply: BotReply) -> ClaimedCallback | ConfirmedClaim | ReplyResult:
        claiming = self._claims.enqueue(reply)
        queued = self._claiming[reply.message_id]
        queued[reply.claim.id] = QueuedReply(reply, claiming)
        try:
            claim = await claiming
        finally:
            del queued[reply.claim.id]
            if not queued:
                del self._claiming[reply.message_id]
        return claim if isinstance(claim, ClaimedCallback) else await self._resolve(reply, claim)

    async def _resolve(self, reply: BotReply, answered: ReplyToAnswered) -> ConfirmedClaim | ReplyResult:
        """The result of a reply to a message that has one: wait for the outcome, or keep a further block."""
        self._on_ended(answered.account_id, {answered.message_id})
        with self._signals.waiting(AnswerStep.SETTLED, answered.message_id) as settled:
            if answered.is_open:
                self._signals.send(AnswerStep.STORED, answered.message_id)
                await wait_with_timeout(settled, POLL_INTERVAL)
            return await self._resolve_until(reply, answered, settled)

    async def _resolve_until(
        self, reply: BotReply, answered: ReplyToAnswered, settled: asyncio.Event
    ) -> ConfirmedClaim | ReplyResult:
        give_up_at = monotonic() + REPLY_HOLD
        has_waited = False
        while True:
            settled.clear()
            recorded = await self._records.put(answered)
            if recorded is None:
                raise MessageNotFound
            if recorded.fence == reply.claim.fence and (own := await self._confirmations.put(reply.claim)):
                return own
            if recorded.is_repeat or recorded.further_id:
                if result := read_outcome(recorded):
                    return result
            elif await self._further_replies.put(answered):
                return KeptReply(answered.id)
            elif (recorded := await self._records.put(answered)) is None or recorded.further_id is None:
                raise AlreadyReplied
            has_waited |= recorded.is_waiting
            if monotonic() >= give_up_at:
                if has_waited:
                    return KeptReply(recorded.id)
                raise CallbackUnconfirmed(UNCONFIRMED_ERROR)
            await wait_with_timeout(settled, OUTCOME_POLL_INTERVAL)

    async def _finish(self, reply: BotReply, claim: ClaimedCallback | ConfirmedClaim | ReplyResult) -> ReplyResult:
        match claim:
            case DeliveredReply() | KeptReply():
                return claim
            case ConfirmedClaim(is_usable=False):
                await self._callbacks.abandon(claim.callback, TOO_LATE_ERROR)
                raise CallbackExpired
            case ConfirmedClaim():
                return await self._post(reply, claim.callback)
            case ClaimedCallback():
                return await self._post(reply, claim)
            case _:
                assert_never(claim)

    async def _post(self, reply: BotReply, callback: ClaimedCallback) -> ReplyResult:
        self._on_ended(callback.account_id, {callback.message_id})
        if blocks := self._find_joinable(reply, callback):
            callback = await self._join(callback, blocks)
        result, settled_at = await self._callbacks.send(callback, build_callback_body(reply, callback, self._texts))
        return read_result(result, DeliveredReply(callback.id, settled_at))

    def _find_joinable(self, reply: BotReply, callback: ClaimedCallback) -> list[BotReply]:
        """Further blocks that wait behind the claim of the first one, in order, as far as they fit beside it."""
        queued = self._claiming.get(reply.message_id)
        if queued is None:
            return []
        free_outputs = MAX_OUTPUTS - reply.output_count - len(callback.late_outputs) - len(callback.further_outputs)
        blocks: list[BotReply] = []
        responses = {reply.response_json}
        for block, claiming in queued.values():
            if claiming.done() or not block.continues(reply) or block.response_json in responses:
                continue
            free_outputs -= block.output_count
            if free_outputs < 0:
                break
            responses.add(block.response_json)
            blocks.append(block)
        return blocks

    async def _join(self, callback: ClaimedCallback, blocks: Sequence[BotReply]) -> ClaimedCallback:
        """Take further blocks along. Their own requests then find them recorded, and wait for the outcome.

        If it stays unclear whether they are recorded, they are posted: a block may be shown twice, but none is lost.
        """
        joining = [
            self._joins.enqueue(
                BlockToJoin(
                    TextPart(block.claim.id, block.response, block.response_json),
                    callback.account_id,
                    callback.message_id,
                    callback.fence,
                )
            )
            for block in blocks
        ]
        await asyncio.wait(joining, timeout=JOIN_TIMEOUT)
        outputs = [
            output
            for block, join in zip(blocks, joining, strict=True)
            if may_be_joined(join)
            for output in list_skill_outputs(block.response)
        ]
        return replace(callback, further_outputs=[*callback.further_outputs, *outputs])

    async def close(self) -> None:
        """Wait for all replies in flight. Those whose claim is unclear give up."""
        self._is_closing = True
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        for batcher in (self._claims, self._confirmations, self._records, self._further_replies, self._joins):
            await batcher.close()


def may_be_joined(join: "asyncio.Future[bool]") -> bool:
    """Whether a block is recorded as shown with the POST, or may be."""
    if not join.done():
        return True
    match join.exception():
        case None:
            return join.result()
        case Unavailable(nothing_sent=False):
            return True
        case _:
            return False


def read_result(result: CallbackResult, delivered: DeliveredReply) -> DeliveredReply:
    """`delivered` if Kakao accepted the reply; raises otherwise."""
    match result.outcome:
        case "sent":
            return delivered
        case "refused":
            raise CallbackFailed(result.error or "Kakao refused the reply")
        case "unsent":
            raise CallbackFailed(f"Kakao could not be reached: {result.error}; {LATE_REPLY_HINT}")
        case "unknown":
            raise CallbackUnconfirmed(result.error or "Kakao did not confirm the reply")
        case _:
            assert_never(result.outcome)


def read_outcome(recorded: RecordedReply) -> ReplyResult | None:
    """The answer to a repeated reply, as the first one got it; None while the outcome is open."""
    if recorded.further_id and not recorded.is_repeat and not recorded.is_joined:
        return KeptReply(recorded.further_id)
    match recorded.state:
        case "sending" | "awaited":
            return None
        case "sent":
            return DeliveredReply(recorded.further_id or recorded.id, recorded.settled_at_ms or 0)
        case "refused":
            raise CallbackFailed(recorded.error or "Kakao refused the reply")
        case "unknown":
            raise CallbackUnconfirmed(recorded.error or "Kakao did not confirm the reply")
        case "late" if recorded.is_waiting:
            return None
        case "late" if recorded.has_waited:
            return KeptReply(recorded.id)
        case "late" if recorded.error:
            raise CallbackFailed(f"Kakao could not be reached: {recorded.error}; {LATE_REPLY_HINT}")
        case "late":
            raise CallbackExpired
        case _:
            assert_never(recorded.state)
