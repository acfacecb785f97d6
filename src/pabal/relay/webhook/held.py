"""Webhooks that are held open for the bot's answer, within Kakao's deadline.

1. `plan` decides before a webhook is stored for how long it may be held; the statement that stores it knows the
   account's answer mode and decides (`receive.sql`).
2. While a webhook is held, its reply is stored instead of posted, and signals this process.
3. This process claims the reply under a fence of its own, writes it into the response, and records the outcome.
4. Without an answer in time the webhook is closed: the answer goes to the callback, or is kept as a late reply.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from pabal.core.errors import DecryptionError, Unavailable
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.doorbell.doorbell import POLL_INTERVAL
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.waiting import wait_with_timeout
from pabal.queue.batcher import Batcher
from pabal.relay.reply.answer_signals import AnswerSignals, AnswerStep
from pabal.relay.reply.answer_speeds import SLOW_ANSWER, AnswerSpeeds
from pabal.relay.reply.callback import CallbackSender
from pabal.relay.reply.webhook_answer import (
    WebhookAnswer,
    WebhookWait,
    WrittenResponse,
    move_to_callback,
    take_webhook_answers,
)
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.skill_response import ChatTexts

log = get_logger()

MAX_HOLD = timedelta(seconds=3.4)
"""How long a webhook waits for its answer. The rest of Kakao's deadline is for storing the message and closing."""
MIN_QUICK_HOLD = timedelta(seconds=0.5)
QUICK_HOLD_FACTOR = 3
"""A webhook with a callback waits this many times as long as a fast bot needed lately, then promises the callback."""
MAX_HELD_WEBHOOKS = 1000
MAX_HELD_WEBHOOKS_PER_ACCOUNT = 100
"""Webhooks that one process holds open at once. Further ones are answered as without waiting."""
REPEAT_POLL_INTERVAL = timedelta(seconds=0.2)
"""How often a repeated webhook looks for the answer: its signal goes to the process that holds the first one."""
WINDOW_MARGIN = timedelta(seconds=0.5)
"""How much longer the database takes a webhook for open: the process that holds it closes it before."""
HOLD_WINDOW = MAX_HOLD + WINDOW_MARGIN
GIVE_BACK_ATTEMPTS = 5
GIVE_BACK_DELAY = 1.0
"""Seconds between attempts to find out whether an answer that came too late is ours."""
BROKEN_ERROR = "the connection broke while the response was written"
TOO_LATE_FOR_WEBHOOK = "the answer was not claimed before the webhook's deadline"


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """For how long a webhook may be held: if its account chooses automatically, or always holds."""

    auto_hold: timedelta | None
    hold: timedelta | None


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An answer for the response to a webhook. Only if it `is_claimed` by this request, its outcome is recorded."""

    answer: WebhookAnswer
    body: bytes
    is_claimed: bool


class HeldWebhooks:
    """The webhooks that this process holds open. `find_account` guesses the account of a conversation."""

    def __init__(
        self,
        db: Database,
        callbacks: CallbackSender,
        signals: AnswerSignals,
        speeds: AnswerSpeeds,
        find_account: Callable[[str], UUID | None],
        texts: ChatTexts,
        *,
        max_held: int = MAX_HELD_WEBHOOKS,
        max_held_per_account: int = MAX_HELD_WEBHOOKS_PER_ACCOUNT,
    ) -> None:
        self._db = db
        self._takes = Batcher(db, take_webhook_answers)
        self._callbacks = callbacks
        self._signals = signals
        self._speeds = speeds
        self._find_account = find_account
        self._texts = texts
        self._max_held = max_held
        self._max_held_per_account = max_held_per_account
        self._held = Counter[UUID]()
        self.count = 0
        """How many webhooks are held now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def plan(self, payload: InboundPayload) -> HoldPlan:
        """For how long a webhook may be held. With a callback, only a bot that is known to be fast is awaited."""
        account_id = self._find_account(payload.conversation_key)
        if self._closing.is_set() or not self._has_room(account_id):
            return HoldPlan(None, None)
        if payload.callback_url is None:
            return HoldPlan(None if self._speeds.is_slow(account_id) else HOLD_WINDOW, HOLD_WINDOW)
        delay = self._speeds.fast_delay(account_id)
        return HoldPlan(None if delay is None else quick_hold(delay) + WINDOW_MARGIN, HOLD_WINDOW)

    async def wait_for_answer(
        self, message_id: UUID, account_id: UUID, hold: timedelta, deadline: float, *, is_repeat: bool = False
    ) -> HeldAnswer | None:
        """Wait up to `hold` for the answer to a message and claim it; None without one.

        Returns before `deadline` (monotonic). An answer that is claimed after it, or for a client that has
        disconnected, is not lost: it goes to the callback or is kept.
        """
        wait = WebhookWait(message_id, account_id, new_id())
        try:
            return await self._hold(wait, hold, deadline, is_repeat=is_repeat)
        except asyncio.CancelledError:  # the client has disconnected
            self._start(self._give_back(wait, may_post=False))
            raise
        except (Unavailable, RetryableError, TimeoutError) as error:
            log.warning("answer not claimed", message=str(message_id), error=str(error) or "timeout")
            self._start(self._give_back(wait, may_post=True))
            return None

    async def _hold(self, wait: WebhookWait, hold: timedelta, deadline: float, *, is_repeat: bool) -> HeldAnswer | None:
        account_id = wait.account_id
        give_up_at = min(monotonic() + (hold - WINDOW_MARGIN).total_seconds(), deadline)
        if is_repeat and (answer := await self._take(wait, deadline)):
            return answer
        if self._has_room(account_id):
            with self._holding(account_id):
                answer = await self._wait(wait, give_up_at, deadline, is_repeat=is_repeat)
            if answer:
                return answer
            if hold > WINDOW_MARGIN:
                self._speeds.observe(account_id, SLOW_ANSWER)
        return await self._take(replace(wait, is_closing=True), deadline)

    @contextmanager
    def _holding(self, account_id: UUID) -> Generator[None]:
        self.count += 1
        self._held[account_id] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._held[account_id] -= 1
            if not self._held[account_id]:
                del self._held[account_id]

    async def _wait(
        self, wait: WebhookWait, give_up_at: float, deadline: float, *, is_repeat: bool
    ) -> HeldAnswer | None:
        with self._signals.waiting(AnswerStep.STORED, wait.message_id) as stored:
            while not self._closing.is_set() and (left := give_up_at - monotonic()) > 0:
                timeout = timedelta(seconds=left)
                if is_repeat:
                    timeout = min(timeout, REPEAT_POLL_INTERVAL)
                elif not self._signals.is_reliable:
                    timeout = min(timeout, POLL_INTERVAL)
                await wait_with_timeout(stored, timeout)
                stored.clear()
                if monotonic() < give_up_at and (answer := await self._take(wait, deadline)):
                    return answer
        return None

    async def _take(self, wait: WebhookWait, deadline: float) -> HeldAnswer | None:
        """Claim the answer if there is one. Raises TimeoutError at the deadline, although the claim may go on."""
        async with asyncio.timeout(deadline - monotonic()):
            answer = await asyncio.shield(self._takes.enqueue(wait))
            if answer is None:
                return None
            due = answer.to_due(self._texts)
            try:
                _, body = await self._callbacks.decrypt(due.callback, due.body)
            except DecryptionError as error:
                raise Unavailable(str(error)) from None
        return HeldAnswer(answer, body, is_claimed=answer.fence == wait.fence)

    def record_response(self, held: HeldAnswer, delivered: Awaitable[bool]) -> None:
        """Record the outcome of the response, as soon as it is clear whether the client got it."""
        self._start(self._record(held, delivered))

    async def _record(self, held: HeldAnswer, delivered: Awaitable[bool]) -> None:
        is_delivered = await delivered
        result = WrittenResponse("sent") if is_delivered else WrittenResponse("unknown", BROKEN_ERROR)
        await self._callbacks.record(held.answer.callback, result)
        self._signals.send(AnswerStep.SETTLED, held.answer.message_id)

    async def _give_back(self, wait: WebhookWait, *, may_post: bool) -> None:
        """Find out whether the answer was claimed under our fence. Nothing was written: post it, or keep it.

        A client that disconnected was promised no callback.
        """
        wait = replace(wait, is_closing=True)
        answer: WebhookAnswer | None = None
        for _ in range(GIVE_BACK_ATTEMPTS):
            try:
                answer = answer or await self._takes.put(wait)  # once moved, it is not found again
                if answer is None or answer.fence != wait.fence or not answer.is_sending:
                    return
                is_posted = may_post and answer.is_callback_live and await self._move_to_callback(answer)
            except (Unavailable, RetryableError):
                await asyncio.sleep(GIVE_BACK_DELAY)
                continue
            due = answer.to_due(self._texts)
            if is_posted:
                await self._callbacks.send(due.callback, due.body)
            else:
                await self._callbacks.abandon(due.callback, TOO_LATE_FOR_WEBHOOK)
            self._signals.send(AnswerStep.SETTLED, wait.message_id)
            return

    async def _move_to_callback(self, answer: WebhookAnswer) -> bool:
        async with self._db.autocommit() as tx:
            return await move_to_callback(tx, answer)

    def _has_room(self, account_id: UUID | None) -> bool:
        is_account_free = account_id is None or self._held[account_id] < self._max_held_per_account
        return self.count < self._max_held and is_account_free

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release_all(self) -> None:
        """Answer the webhooks that are held, without waiting any longer."""
        self._closing.set()
        self._signals.wake_all()

    async def close(self) -> None:
        """Record what was written."""
        self.release_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._takes.close()


def quick_hold(delay: timedelta) -> timedelta:
    """How long to wait for a bot whose slowest answer lately took `delay`."""
    return min(max(QUICK_HOLD_FACTOR * delay, MIN_QUICK_HOLD), MAX_HOLD)
