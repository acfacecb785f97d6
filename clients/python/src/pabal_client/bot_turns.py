"""The turns of a bot: one after the other in a conversation, several conversations at once."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pabal_client.errors import ApiError, ClientError
from pabal_client.handler_calls import call_handler
from pabal_client.relay_requests import ChatMessage, ReplyContent

log = logging.getLogger(__name__)

MessageFunction = Callable[[ChatMessage], Any]
StartTurn = Callable[[str], Awaitable[bool]]
SendReply = Callable[[str, ReplyContent], Awaitable[bool]]

MAX_WAITING_MESSAGES = 1000
"""Messages in memory. Beyond them the bot stops reading its stream."""
LATE_CODE = "CALLBACK_EXPIRED"


class BotTurns:
    """Hands messages to the handler and sends what it returns."""

    def __init__(
        self,
        function: MessageFunction,
        concurrency: int,
        error_text: str | None,
        start_turn: StartTurn,
        send_reply: SendReply,
    ) -> None:
        self._function = function
        self._error_text = error_text
        self._start_turn = start_turn
        self._send_reply = send_reply
        self._threads = ThreadPoolExecutor(concurrency, "pabal bot")
        self._slots = asyncio.Semaphore(concurrency)
        self._room = asyncio.Semaphore(MAX_WAITING_MESSAGES)
        self._waiting: dict[str, deque[ChatMessage]] = {}
        self._conversations: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def add(self, message: ChatMessage) -> None:
        """Queue a message behind those of its conversation. Waits while too many are queued."""
        await self._room.acquire()
        if (waiting := self._waiting.get(message.conversation_key)) is not None:
            waiting.append(message)
            return
        self._waiting[message.conversation_key] = deque([message])
        task = asyncio.create_task(self._converse(message.conversation_key))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def close(self, grace: float) -> None:
        """Let running turns finish for `grace` seconds. Messages without a turn go back to the queue of the hub."""
        self._is_closing = True
        if self._conversations:
            await asyncio.wait(self._conversations, timeout=grace)
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _converse(self, conversation_key: str) -> None:
        """Handle the messages of a conversation until none waits."""
        waiting = self._waiting[conversation_key]
        try:
            while waiting:
                async with self._slots:
                    if self._is_closing:
                        return
                    await self._take_turn(waiting.popleft())
                self._room.release()
        finally:
            del self._waiting[conversation_key]

    async def _take_turn(self, message: ChatMessage) -> None:
        try:
            if not await self._start_turn(message.id):
                log.info("message skipped: %s has ended, or another process has it", message.id)
                return
            reply = await self._call_handler(message)
            if reply is not None:
                await self._send(message, reply)
        except ClientError as error:
            log.error("message not answered: %s: %s", message.id, error)
        except Exception:  # a reply that is not JSON
            log.exception("message not answered: %s", message.id)

    async def _call_handler(self, message: ChatMessage) -> ReplyContent | None:
        try:
            return await call_handler(self._function, message, self._threads)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # cancelled by `close`
                raise
            log.exception("handler failed: %s", message.id)  # cancelled by something that the handler awaited
        except Exception:  # a handler may fail in any way; the conversation goes on
            log.exception("handler failed: %s", message.id)
        return self._error_text

    async def _send(self, message: ChatMessage, reply: ReplyContent) -> None:
        try:
            is_shown = await self._send_reply(message.id, reply)
        except ApiError as error:
            if error.code != LATE_CODE:
                raise
            is_shown = False
        if not is_shown:
            log.info("reply kept: %s is answered with the user's next message", message.id)
