"""Stall: a callback about to die unanswered is spent on a few words of the hub's own. Nobody is met by silence."""

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
from pabal.relay.reply.callback import CallbackSender, ClaimedCallback
from pabal.relay.reply.reply import encode_skill_response, prepend_late_outputs
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.receive import CALLBACK_LIFETIME
from pabal.relay.webhook.skill_response import ChatTexts, text_response

Q = load_queries(__file__)
log = get_logger()

STALL_POLL_INTERVAL = timedelta(seconds=1)
STALL_BATCH_SIZE = 100
"""Callbacks taken at once: more than a look finds but on the worst of days, and each is a connection."""


@dataclass(frozen=True, slots=True)
class ExpiringCallback:
    """A callback taken before it died. `over` says why its message will not be answered at all."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    over: str | None
    late_outputs: list[dict[str, Any]] | None = field(repr=False)

    @property
    def callback(self) -> ClaimedCallback:
        return ClaimedCallback(
            self.id, self.message_id, self.account_id, self.fence, self.callback_url, self.late_outputs or []
        )


async def claim_expiring_callbacks(
    tx: Tx, stall_after: timedelta, batch: int = STALL_BATCH_SIZE
) -> list[ExpiringCallback]:
    """Take callbacks that nobody has answered `after` their message came, and that still live."""
    return await tx.all(
        ExpiringCallback,
        Q.claim_expiring_callbacks,
        left=CALLBACK_LIFETIME - stall_after,
        batch=batch,
        room=MAX_OUTPUTS - 1,
    )


def build_stall_body(callback: ExpiringCallback, texts: ChatTexts) -> bytes:
    """What the user is told: what came too late, and that there is more to come, or that there is not."""
    text = {
        None: texts.still_working,
        "queue_life": texts.expired,
        "blocked": texts.blocked,
        "disabled": texts.disabled,
    }.get(callback.over, texts.unpaired)
    return encode_skill_response(prepend_late_outputs(callback.late_outputs or [], text_response(text)))


class StallWorker:
    """Looks each second, beside however many others, until it is told to stop."""

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
        """Look, post, settle. Posting waits for nobody's answer but its own; stopping waits for all of them."""
        async with asyncio.TaskGroup() as posts:
            while not self._stopping.is_set():
                found = await self._claim()
                for dying in found:
                    posts.create_task(self._send(dying))
                if len(found) < STALL_BATCH_SIZE:
                    await wait_with_timeout(self._stopping, STALL_POLL_INTERVAL)

    def stop(self) -> None:
        self._stopping.set()

    async def _claim(self) -> Sequence[ExpiringCallback]:
        try:
            async with self._db.autocommit() as tx:
                return await claim_expiring_callbacks(tx, self._stall_after)
        except PabalError as error:  # the next look is a second away
            log.warning("stall waits", error=str(error))
            return ()

    async def _send(self, dying: ExpiringCallback) -> None:
        try:
            await self._callbacks.send(dying.callback, build_stall_body(dying, self._texts))
        except Exception:  # one that fails in a way nobody thought of must not end the others
            log.exception("stall failed", message=str(dying.message_id))
