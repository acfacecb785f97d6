"""Workers that claim callbacks on a schedule and post to them: the stall, and replies that wait for a rate limit."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.db.waiting import wait_with_timeout
from pabal.relay.reply.callback import (
    TOO_LATE_ERROR,
    CallbackClaim,
    CallbackSender,
    ClaimedCallback,
    ConfirmedClaim,
    confirm_claims,
)

log = get_logger()

CALLBACK_POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_BATCH_SIZE = 100
"""Callbacks claimed at once. Each needs a connection to Kakao; one poll rarely finds this many."""


@dataclass(frozen=True, slots=True)
class DueCallback:
    """A claimed callback and the body to post."""

    callback: ClaimedCallback
    body: bytes = field(repr=False)


class CallbackPoller(ABC):
    """Polls once a second for callbacks to post until it is stopped. Any number of processes may run one."""

    def __init__(self, name: str, db: Database, callbacks: CallbackSender) -> None:
        self.name = name
        self._db = db
        self._callbacks = callbacks
        self._stopping = asyncio.Event()
        self._unclear_claims: Sequence[CallbackClaim] = ()
        """Claims whose commit was not answered; they may be ours."""
        self._expired_claims: list[ConfirmedClaim] = []
        """Claims that are ours, and too late to post."""

    @abstractmethod
    async def prepare_claims(self, tx: Tx) -> Sequence[CallbackClaim]:
        """The ids and new fences of what the next claim may claim."""

    @abstractmethod
    async def claim(self, tx: Tx, claims: Sequence[CallbackClaim]) -> Sequence[DueCallback]:
        """Claim what is due under these ids and fences, in one statement."""

    @abstractmethod
    def confirm(self, claim: ConfirmedClaim) -> DueCallback:
        """The callback of a claim whose commit was not answered."""

    async def run(self) -> None:
        """Claim, post and settle. A slow POST does not delay the others; stopping waits for all of them."""
        async with asyncio.TaskGroup() as posts:
            while not self._stopping.is_set():
                due_callbacks = await self._poll()
                for due in due_callbacks:
                    posts.create_task(self._send(due))
                while self._expired_claims:
                    posts.create_task(self._abandon(self._expired_claims.pop()))
                if len(due_callbacks) < CALLBACK_BATCH_SIZE:
                    await wait_with_timeout(self._stopping, CALLBACK_POLL_INTERVAL)

    def stop(self) -> None:
        self._stopping.set()

    async def _poll(self) -> Sequence[DueCallback]:
        try:
            await self._db.require_fitting_schema()
            async with self._db.autocommit() as tx:
                due_callbacks: Sequence[DueCallback] = ()
                if self._unclear_claims:
                    due_callbacks = await self._confirm(tx)
                elif claims := await self.prepare_claims(tx):
                    self._unclear_claims = claims
                    due_callbacks = await self.claim(tx, claims)
            self._unclear_claims = ()  # not before the connection is returned, which may fail as well
        except Unavailable as error:  # the next poll asks what became of the claims
            log.warning("callback poll failed", worker=self.name, error=str(error))
        except PabalError as error:  # nothing was claimed; the next poll tries again
            log.warning("callback poll failed", worker=self.name, error=str(error))
            self._unclear_claims = ()
        else:
            return due_callbacks
        return ()

    async def _confirm(self, tx: Tx) -> Sequence[DueCallback]:
        """What an earlier poll claimed without learning so."""
        claims = await confirm_claims(tx, self._unclear_claims)
        self._expired_claims = [claim for claim in claims if claim and not claim.is_usable]
        return [self.confirm(claim) for claim in claims if claim and claim.is_usable]

    async def _abandon(self, claim: ConfirmedClaim) -> None:
        """Keep a bot's reply like a late one; otherwise its outcome would be unknown, and the user would not see it."""
        try:
            await self._callbacks.abandon(claim.callback, TOO_LATE_ERROR)
        except Exception:  # as for POSTs
            log.exception("callback not settled", worker=self.name, message=str(claim.message_id))

    async def _send(self, due: DueCallback) -> None:
        try:
            await self._callbacks.send(due.callback, due.body)
        except Exception:  # an unexpected failure must not cancel the other POSTs of the group
            log.exception("callback not posted", worker=self.name, message=str(due.callback.message_id))
