"""The webhook flow: store the message within Kakao's deadline, then answer.

1. `Batcher` stores the webhook together with others (`receive.py`).
2. A command runs at once (`commands.py`); a message waits in its account's queue.
3. The skill response is the command's result, a text, the promise of a reply through the callback, or the reply
   itself, if the webhook is held open for it (`held.py`).
4. If the answer is not ready in time, the user gets a text and the callback is recalled (`recall.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import msgspec

from pabal.core.errors import DecryptionError, Invalid, RateLimited, Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import DatabaseError, RetryableError
from pabal.db.pool import Database
from pabal.queue.batcher import Batcher
from pabal.relay.encryption.encrypted_values import ANSWER_COLUMN
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.metrics import RelayMetrics
from pabal.relay.reply.reply import claim_late_outputs
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.commands import (
    ChatCommand,
    find_answer_request,
    has_outstanding_answer,
    is_answer_button,
    parse_chat_command,
    run_chat_command,
    run_unknown_user_command,
)
from pabal.relay.webhook.held import HeldAnswer, HeldWebhooks, HoldPlan
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.recall import CallbackRecaller
from pabal.relay.webhook.receive import (
    InboundDraft,
    ReceiveResult,
    immediate_response,
    queued_response,
    save_first_response,
)
from pabal.relay.webhook.skill_response import ChatTexts, SkillResponseDict, chat_texts, text_response
from pabal.settings import Settings

log = get_logger()

WEBHOOK_TIMEOUT = 4.0
"""Seconds from the head of the request to the answer. Kakao waits five; keep one for the network and the queue."""
CLOSE_MARGIN = 0.1
"""Seconds that a webhook which was held has for its response without the answer."""
CONTENTION_TIMEOUT = 3.5
"""Seconds for which a webhook waits for another transaction on its conversation. The rest is for storing it."""


CancelOnDisconnect = Callable[[Awaitable[HeldAnswer | None]], Awaitable[HeldAnswer | None]]
"""Awaits an answer for as long as the client is connected."""


class StoredWebhook(msgspec.Struct, frozen=True):
    """A webhook after its commit. `command` is set if the text is a command to the hub."""

    payload: InboundPayload
    command: ChatCommand | None
    result: ReceiveResult


@dataclass(frozen=True, slots=True)
class WebhookHandler:
    """Stores webhooks and builds the skill responses to them."""

    db: Database
    batcher: Batcher[InboundDraft, ReceiveResult]
    recalls: CallbackRecaller
    metrics: RelayMetrics
    settings: Settings
    held: HeldWebhooks
    cipher: MessageCipher | None = None

    async def handle(
        self, payload: InboundPayload, started: float, cancel_on_disconnect: CancelOnDisconnect
    ) -> SkillResponseDict | HeldAnswer:
        """Store a webhook and answer it. `started` is the monotonic time at which its request arrived.

        Storing continues after the deadline. The user has read another text by then, so Kakao no longer accepts the
        callback, and it is recalled from the stored message.
        """
        texts = self._texts
        if self.recalls.is_full:
            log.warning("webhook rejected", error="too many recalls are pending")
            return text_response(texts.unavailable)
        command = parse_chat_command(payload.text, self.settings.command_prefix)
        deadline = started + WEBHOOK_TIMEOUT
        try:
            if payload.has_hashed_text and self.cipher is not None and self.cipher.is_on:
                payload = await self._hash_event_id(self.cipher, payload, deadline)
            if command is None and is_answer_button(payload.text):
                async with asyncio.timeout(deadline - monotonic()), self.db.autocommit() as tx:
                    command = await find_answer_request(tx, payload)
        except (TimeoutError, Unavailable, RetryableError) as error:
            log.warning("webhook not stored", error=str(error) or "timeout")
            return text_response(texts.unavailable)
        plan = self.held.plan(payload) if command is None else HoldPlan(None, None)
        storing = self.batcher.enqueue(InboundDraft(payload, command is not None, plan.auto_hold, plan.hold))
        storing.add_done_callback(self._count_queued)
        try:
            await wait_for_future(storing, deadline - monotonic())
            webhook = StoredWebhook(payload, command, stored_result(storing))
            response = self._respond_at_once(webhook)
            if response is None:
                async with asyncio.timeout(deadline - monotonic()):
                    response = await self._respond(webhook, deadline, cancel_on_disconnect)
        except TimeoutError:
            self.recalls.recall(payload, storing)
            return text_response(texts.too_late)
        except RateLimited:  # nothing was stored; Kakao shows an error bubble for any status but 200
            return text_response(texts.rate_limited)
        except (Unavailable, RetryableError, DecryptionError) as error:
            log.warning("webhook not answered", error=str(error))
            self.recalls.recall(payload, storing)
            return text_response(texts.unavailable)
        return response

    async def _hash_event_id(self, cipher: MessageCipher, payload: InboundPayload, deadline: float) -> InboundPayload:
        """The payload with an id from which its text cannot be guessed."""
        event_id = cipher.hash_cached(payload.source_event_id)
        if event_id is None:
            async with asyncio.timeout(deadline - monotonic()), self.db.autocommit() as tx:
                event_id = await cipher.hash_event_id(tx, payload.source_event_id)
        return replace(payload, source_event_id=event_id)

    @property
    def _texts(self) -> ChatTexts:
        return chat_texts(self.settings.chat_language)

    def _count_queued(self, storing: "asyncio.Future[ReceiveResult]") -> None:
        if not storing.cancelled() and storing.exception() is None and storing.result().message_id:
            self.metrics.messages_queued.add(1)

    def _respond_at_once(self, webhook: StoredWebhook) -> SkillResponseDict | None:
        """The response that needs nothing from the database; None if there is none."""
        if webhook.command and webhook.result.state != "BLOCKED":
            return None
        result = webhook.result
        response = immediate_response(result, self._texts, self.settings.command_prefix)
        if response is None and result.hold is not None and result.first_response is None:
            return None
        return response or queued_response(result, self.settings.waiting_text)

    async def _respond(
        self, webhook: StoredWebhook, deadline: float, cancel_on_disconnect: CancelOnDisconnect
    ) -> SkillResponseDict | HeldAnswer:
        if not webhook.command or webhook.result.state == "BLOCKED":
            if webhook.result.hold is not None:
                answer = await cancel_on_disconnect(self._wait_for_answer(webhook.result, deadline - CLOSE_MARGIN))
                if response := answer or queued_response(webhook.result, self.settings.waiting_text):
                    return response
            return await self._respond_without_callback(webhook)
        run_command = run_chat_command if webhook.result.is_stored else run_unknown_user_command
        async with self.db.transaction() as tx:
            return await run_command(tx, webhook.payload, webhook.command, self.settings, self.metrics, self.cipher)

    async def _wait_for_answer(self, result: ReceiveResult, deadline: float) -> HeldAnswer | None:
        assert result.account_id is not None
        assert result.hold is not None
        is_repeat = result.message_id is None
        return await self.held.wait_for_answer(
            result.stored_message_id, result.account_id, result.hold, deadline, is_repeat=is_repeat
        )

    async def _respond_without_callback(self, webhook: StoredWebhook) -> SkillResponseDict:
        """Show the conversation's late replies now: this message has no callback that could carry them.

        If the message's own answer is among them, the bot has replied since the message was stored.
        """
        result, key = webhook.result, webhook.payload.conversation_key
        message_id = result.stored_message_id
        async with self.db.transaction() as tx:
            late = await claim_late_outputs(tx, key, MAX_OUTPUTS - 1, message_id, self.cipher)
            if late.first_response is not None:
                return late.first_response
            if late.outputs and late.has_answer:
                is_outstanding = await has_outstanding_answer(tx, key)
                response = text_response(quick_replies=[self._texts.check_answer] if is_outstanding else [])
            else:
                response = text_response(self._texts.preparing, quick_replies=[self._texts.check_answer])
            response["template"]["outputs"][:0] = late.outputs
            if late.outputs:  # without late outputs, a duplicate builds the same response again
                assert result.account_id is not None
                stored: dict[str, Any] = response
                if self.cipher is not None:
                    row = message_id.bytes
                    stored = await self.cipher.encrypt_answer(tx, result.account_id, ANSWER_COLUMN, row, response)
                await save_first_response(tx, result, stored)
        return response


def stored_result(storing: "asyncio.Future[ReceiveResult]") -> ReceiveResult:
    """The result of storing a webhook. Raises TimeoutError if it is not stored yet."""
    if not storing.done():
        raise TimeoutError
    try:
        return storing.result()
    except RetryableError:
        raise
    except DatabaseError as error:
        raise Invalid.of_field("body", f"cannot be stored by PostgreSQL: {error}") from None


async def wait_for_future(future: "asyncio.Future[Any]", timeout: float) -> None:
    """Wait until the future is done, at most `timeout` seconds. Costs a third of `asyncio.wait`."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(timeout, wake)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
