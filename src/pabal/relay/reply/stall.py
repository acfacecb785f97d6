"""Stall: before an unanswered callback expires, the hub spends it on a short text of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import EndReason
from pabal.relay.reply.callback import CallbackSender, ClaimedCallback
from pabal.relay.reply.reply import encode_skill_response, prepend_late_outputs
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.receive import CALLBACK_LIFETIME
from pabal.relay.webhook.skill_response import ChatTexts, text_response

Q = load_queries(__file__)
log = get_logger()

STALL_POLL_INTERVAL = timedelta(seconds=1)
STALL_BATCH_SIZE = 100
"""Callbacks claimed at once. Each needs a connection to Kakao; one poll rarely finds this many."""


@dataclass(frozen=True, slots=True)
class ExpiringCallback:
    """A callback claimed shortly before it expires. `end_reason` is set if no reply to its message will come."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    end_reason: EndReason | None
    late_outputs: list[dict[str, Any]] | None = field(repr=False)

    @property
    def callback(self) -> ClaimedCallback:
        return ClaimedCallback(
            self.id, self.message_id, self.account_id, self.fence, self.callback_url, self.late_outputs or []
        )


async def claim_expiring_callbacks(
    tx: Tx, stall_after: timedelta, batch: int = STALL_BATCH_SIZE
) -> list[ExpiringCallback]:
    """Claim live callbacks of messages that have had no reply for `stall_after`."""
    return await tx.all(
        ExpiringCallback,
        Q.claim_expiring_callbacks,
        time_left=CALLBACK_LIFETIME - stall_after,
        batch=batch,
        max_outputs=MAX_OUTPUTS - 1,
    )


def build_stall_body(callback: ExpiringCallback, texts: ChatTexts) -> bytes:
    """Late outputs, followed by a text that says whether a reply to this message is still to come."""
    match callback.end_reason:
        case None:
            text = texts.still_working
        case "queue_life":
            text = texts.expired
        case "blocked":
            text = texts.blocked
        case "disabled":
            text = texts.disabled
        case _:
            text = texts.unpaired
    return encode_skill_response(prepend_late_outputs(callback.late_outputs or [], text_response(text)))


class StallWorker:
    """Polls once a second for expiring callbacks until it is stopped. Any number of processes may run one."""

    def __init__(
        self, name: str, db: Database, callbacks: CallbackSender, texts: ChatTexts, stall_after: timedelta
    ) -> None:
        self.name = name
        self._db = db
        self._callbacks = callbacks
        self._texts = texts
        self._stall_after = stall_after
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Claim, post and settle. A slow POST does not delay the others; stopping waits for all of them."""
        async with asyncio.TaskGroup() as posts:
            while not self._stopping.is_set():
                callbacks = await self._claim()
                for callback in callbacks:
                    posts.create_task(self._send(callback))
                if len(callbacks) < STALL_BATCH_SIZE:
                    await wait_with_timeout(self._stopping, STALL_POLL_INTERVAL)

    def stop(self) -> None:
        self._stopping.set()

    async def _claim(self) -> Sequence[ExpiringCallback]:
        try:
            async with self._db.autocommit() as tx:
                return await claim_expiring_callbacks(tx, self._stall_after)
        except PabalError as error:  # the next poll tries again
            log.warning("stall claim failed", error=str(error))
            return ()

    async def _send(self, callback: ExpiringCallback) -> None:
        try:
            await self._callbacks.send(callback.callback, build_stall_body(callback, self._texts))
        except Exception:  # an unexpected failure must not cancel the other POSTs of the group
            log.exception("stall failed", message=str(callback.message_id))
