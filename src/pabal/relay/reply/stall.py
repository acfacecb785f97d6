"""Stall: before an unanswered callback expires, the hub spends it on a short text of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError, Unavailable
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.doorbell import wait_with_timeout
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.messages import EndReason
from pabal.relay.reply.callback import CallbackClaim, CallbackSender, ClaimedCallback, confirm_claims
from pabal.relay.reply.reply import add_outputs, encode_skill_response
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

    callback: ClaimedCallback
    end_reason: EndReason | None


@dataclass(frozen=True, slots=True)
class ExpiringCallbackRow:
    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    end_reason: EndReason | None
    late_outputs: list[dict[str, Any]] | None = field(repr=False)


def new_claims(count: int) -> list[CallbackClaim]:
    """Ids and fences for a batch of claims."""
    return [CallbackClaim(new_id(), new_id()) for _ in range(count)]


async def claim_expiring_callbacks(
    tx: Tx, stall_after: timedelta, claims: Sequence[CallbackClaim] = ()
) -> list[ExpiringCallback]:
    """Claim live callbacks of messages that have had no reply for `stall_after`, under the given ids and fences."""
    claims = claims or new_claims(STALL_BATCH_SIZE)
    rows = await tx.all(
        ExpiringCallbackRow,
        Q.claim_expiring_callbacks,
        time_left=CALLBACK_LIFETIME - stall_after,
        ids=[claim.id for claim in claims],
        fences=[claim.fence for claim in claims],
        batch=len(claims),
        max_outputs=MAX_OUTPUTS - 1,
    )
    return [
        ExpiringCallback(
            ClaimedCallback(
                row.id, row.message_id, row.account_id, row.fence, row.callback_url, row.late_outputs or []
            ),
            row.end_reason,
        )
        for row in rows
    ]


def build_stall_body(expiring: ExpiringCallback, texts: ChatTexts) -> bytes:
    """Late outputs, followed by a text that says whether a reply to this message is still to come."""
    match expiring.end_reason:
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
    return encode_skill_response(add_outputs(text_response(text), before=expiring.callback.late_outputs))


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
        self._unclear_claims: Sequence[CallbackClaim] = ()
        """Claims whose commit was not answered; they may be ours."""

    async def run(self) -> None:
        """Claim, post and settle. A slow POST does not delay the others; stopping waits for all of them."""
        async with asyncio.TaskGroup() as posts:
            while not self._stopping.is_set():
                expiring_callbacks = await self._claim()
                for expiring in expiring_callbacks:
                    posts.create_task(self._send(expiring))
                if len(expiring_callbacks) < STALL_BATCH_SIZE:
                    await wait_with_timeout(self._stopping, STALL_POLL_INTERVAL)

    def stop(self) -> None:
        self._stopping.set()

    async def _claim(self) -> Sequence[ExpiringCallback]:
        try:
            async with self._db.autocommit() as tx:
                if self._unclear_claims:
                    return await self._confirm(tx, self._unclear_claims)
                self._unclear_claims = claims = new_claims(STALL_BATCH_SIZE)
                expiring_callbacks = await claim_expiring_callbacks(tx, self._stall_after, claims)
                self._unclear_claims = ()
                return expiring_callbacks
        except Unavailable as error:  # the next poll asks what became of the claims
            log.warning("stall claim failed", error=str(error))
        except PabalError as error:  # the next poll tries again
            log.warning("stall claim failed", error=str(error))
            self._unclear_claims = ()
        return ()

    async def _confirm(self, tx: Tx, claims: Sequence[CallbackClaim]) -> Sequence[ExpiringCallback]:
        """The callbacks that an earlier poll claimed without learning so."""
        confirmed = await confirm_claims(tx, claims)
        self._unclear_claims = ()
        return [ExpiringCallback(claim.callback, claim.end_reason) for claim in confirmed if claim and claim.is_usable]

    async def _send(self, expiring: ExpiringCallback) -> None:
        try:
            await self._callbacks.send(expiring.callback, build_stall_body(expiring, self._texts))
        except Exception:  # an unexpected failure must not cancel the other POSTs of the group
            log.exception("stall failed", message=str(expiring.callback.message_id))
