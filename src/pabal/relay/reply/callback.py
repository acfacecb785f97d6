"""Callbacks: one POST per claimed callback, and its outcome recorded under the claim's fence."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

from pabal.core.errors import DecryptionError, Unavailable
from pabal.core.ids import id_age
from pabal.core.log import get_logger
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.batcher import Batcher
from pabal.relay.encryption.message_cipher import MessageCipher, decrypt_callback, has_encrypted_parts
from pabal.relay.messages import EndReason
from pabal.relay.metrics import RelayMetrics
from pabal.relay.reply.validate import MAX_OUTPUTS

Q = load_queries(__file__)
log = get_logger()

LANE_NAME = "relay"
LATE_REPLY_RETENTION = timedelta(minutes=30)
"""How long a late reply may still be shown."""
SENDING_TIMEOUT = timedelta(seconds=30)
"""After this, the process that sends is gone: a POST takes at most five seconds, settling it a few more."""
SENDING_TIMEOUT_ERROR = "the process that sent it did not report an outcome"
CONFIRM_WINDOW = timedelta(seconds=20)
"""How long after its claim a callback may still be posted: the POST and its settlement end before the rescue."""
TOO_LATE_ERROR = "the hub could not post it in time"
SETTLE_RETRY_DELAY = 1.0
"""Seconds between attempts to record an outcome. After `SENDING_TIMEOUT` it is left to the rescue."""
FAILURE_WINDOW = timedelta(minutes=10)

CallbackOutcome = Literal["sent", "refused", "unknown", "unsent"]
"""The outcome of a POST. `unsent`: no byte of it left, so the callback is still good."""


class CallbackResult(Protocol):
    """The outcome of a POST and Kakao's response to it. `outside.kakao` returns values of this shape."""

    @property
    def outcome(self) -> CallbackOutcome: ...
    @property
    def error(self) -> str | None: ...
    @property
    def status(self) -> int | None: ...
    @property
    def response(self) -> dict[str, Any] | None: ...


PostCallback = Callable[[str, bytes], Awaitable[CallbackResult]]
"""Posts a body to a callback URL, once."""


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that only we may post to.

    `late_outputs` go in front of the posted response, `further_outputs` of other blocks of the same answer behind it.
    `has_more`: further late replies of the conversation did not fit.
    """

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    url: str = field(repr=False)
    late_outputs: Sequence[dict[str, Any]] = field(default=(), repr=False)
    further_outputs: Sequence[dict[str, Any]] = field(default=(), repr=False)
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class CallbackClaim:
    """The id and the fence of a claim, made before its first try. The fence, a UUIDv7, tells when."""

    id: UUID
    fence: UUID


@dataclass(frozen=True, slots=True)
class ConfirmedClaim:
    """A claim that was committed although its answer was lost. Unless it `is_usable`, it is too late to post."""

    id: UUID
    message_id: UUID
    account_id: UUID
    fence: UUID
    callback_url: str = field(repr=False)
    is_usable: bool
    end_reason: EndReason | None
    response_text: str | None = field(repr=False)
    late_outputs: list[dict[str, Any]] | None = field(repr=False)
    further_outputs: list[dict[str, Any]] | None = field(repr=False)
    has_more: bool

    @property
    def callback(self) -> ClaimedCallback:
        return ClaimedCallback(
            self.id,
            self.message_id,
            self.account_id,
            self.fence,
            self.callback_url,
            self.late_outputs or [],
            self.further_outputs or [],
            self.has_more,
        )


@dataclass(frozen=True, slots=True)
class UnsentCallback:
    """The result of a POST that was not made."""

    error: str
    outcome: CallbackOutcome = "unsent"
    status: int | None = None
    response: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RescuedCallback:
    """The result of a callback whose outcome `rescue_lost_callbacks` recorded before us."""

    error: str = SENDING_TIMEOUT_ERROR
    outcome: CallbackOutcome = "unknown"
    status: int | None = None
    response: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallbackSettlement:
    """A claimed callback and the result to record."""

    callback: ClaimedCallback
    result: CallbackResult


@dataclass(frozen=True, slots=True)
class SettledCallbackRow:
    id: UUID
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class FailingChannel:
    """A channel and its number of recently failed callbacks."""

    channel: str
    failed: int


async def settle_callbacks(tx: Tx, settlements: Sequence[CallbackSettlement]) -> Sequence[int | None]:
    """Record results. Returns for each the time in epoch ms, or None if its fence was lost."""
    callbacks = [settlement.callback for settlement in settlements]
    results = [settlement.result for settlement in settlements]
    rows = await tx.all(
        SettledCallbackRow,
        Q.settle_callbacks,
        ids=[callback.id for callback in callbacks],
        accounts=[callback.account_id for callback in callbacks],
        fences=[callback.fence for callback in callbacks],
        outcomes=[result.outcome for result in results],
        codes=[result.status for result in results],
        kakaos=[json.dumps(result.response) if result.response else None for result in results],
        errors=[result.error for result in results],
        keep=LATE_REPLY_RETENTION,
    )
    settled_at = {row.id: row.settled_at_ms for row in rows}
    failed = sum(
        settlement.result.outcome != "sent" and settlement.callback.id in settled_at for settlement in settlements
    )
    tx.count_outcomes(LANE_NAME, "failed", failed)
    if refused := [
        settlement.callback
        for settlement in settlements
        if settlement.result.outcome == "refused" and settlement.callback.id in settled_at
    ]:
        await tx.run(
            Q.drop_rest_of_texts,
            ids=[callback.id for callback in refused],
            accounts=[callback.account_id for callback in refused],
            max_outputs=MAX_OUTPUTS,
        )
    return [settled_at.get(callback.id) for callback in callbacks]


async def rescue_lost_callbacks(tx: Tx, batch: int) -> int:
    """Record the outcome `unknown` for POSTs without a result. They may have arrived, so they are not repeated."""
    rescued = await tx.run(Q.rescue_lost_callbacks, error=SENDING_TIMEOUT_ERROR, after=SENDING_TIMEOUT, batch=batch)
    tx.count_outcomes(LANE_NAME, "failed", rescued)
    return rescued


async def confirm_claims(tx: Tx, claims: Sequence[CallbackClaim]) -> Sequence[ConfirmedClaim | None]:
    """Find out which claims were committed and are not settled. Only the process that made them may ask."""
    rows = await tx.all(
        ConfirmedClaim,
        Q.confirm_claims,
        ids=[claim.id for claim in claims],
        fences=[claim.fence for claim in claims],
        window=CONFIRM_WINDOW,
    )
    confirmed = {row.id: row for row in rows}
    return [confirmed.get(claim.id) for claim in claims]


async def list_failing_channels(tx: Tx, min_failures: int) -> list[FailingChannel]:
    """Channels with at least `min_failures` failed callbacks in the last ten minutes."""
    return await tx.all(FailingChannel, Q.list_failing_channels, span=FAILURE_WINDOW, min_failures=min_failures)


class CallbackSender:
    """Posts to claimed callbacks and settles them."""

    def __init__(
        self, db: Database, post: PostCallback, metrics: RelayMetrics, cipher: MessageCipher | None = None
    ) -> None:
        self._db = db
        self._post = post
        self._cipher = cipher
        self._settlements = Batcher(db, settle_callbacks)
        self._metrics = metrics

    async def send(self, callback: ClaimedCallback, body: bytes) -> tuple[CallbackResult, int]:
        """Post and record the outcome. Returns the result and the time in epoch ms.

        The claim may have waited for a lock, or the process may have been stopped: then it is not posted any more.
        """
        try:
            url, body = await self.decrypt(callback, body)
        except (DecryptionError, Unavailable, RetryableError) as error:
            return await self.abandon(callback, str(error))
        if id_age(callback.fence) >= CONFIRM_WINDOW:
            return await self.abandon(callback, TOO_LATE_ERROR)
        return await self.record(callback, await self._post(url, body))

    async def decrypt(self, callback: ClaimedCallback, body: bytes) -> tuple[str, bytes]:
        """The URL of a callback and the body to post. Raises DecryptionError if the key is missing."""
        if self._cipher is None or not has_encrypted_parts(callback, body):
            return callback.url, body
        key = self._cipher.cached_key(callback.account_id)
        if key is None:
            async with self._db.autocommit() as tx:
                key = await self._cipher.find_key(tx, callback.account_id)
        return decrypt_callback(key, callback, body)

    async def abandon(self, callback: ClaimedCallback, error: str) -> tuple[CallbackResult, int]:
        """Record that a claimed callback was not posted. A bot's reply is then kept like a late one."""
        return await self.record(callback, UnsentCallback(error))

    async def record(self, callback: ClaimedCallback, result: CallbackResult) -> tuple[CallbackResult, int]:
        """Record the outcome of a claimed callback under its fence. The recorded outcome is returned."""
        result, settled_at = await self._settle(CallbackSettlement(callback, result))
        if result.outcome == "sent":
            self._metrics.callbacks_sent.add(1)
        else:
            self._metrics.callbacks_failed.add(1, result.outcome)
            log.warning("callback failed", message=str(callback.message_id), outcome=result.outcome, error=result.error)
        return result, settled_at

    async def _settle(self, settlement: CallbackSettlement) -> tuple[CallbackResult, int]:
        """Record the outcome. If the database stays unavailable, `rescue_lost_callbacks` records `unknown` later."""
        while True:
            try:
                settled_at = await self._settlements.put(settlement)
                if settled_at is None and await self._is_rescued(settlement.callback):
                    return RescuedCallback(), wall_clock_ms()
            except (Unavailable, RetryableError) as error:
                log.warning("callback not settled", message=str(settlement.callback.message_id), error=str(error))
                if id_age(settlement.callback.fence) >= SENDING_TIMEOUT:
                    return settlement.result, wall_clock_ms()
                await asyncio.sleep(SETTLE_RETRY_DELAY)
            else:
                return settlement.result, settled_at or wall_clock_ms()

    async def _is_rescued(self, callback: ClaimedCallback) -> bool:
        """Whether the fence was lost to the rescue, and not to an earlier attempt of ours without an answer."""
        async with self._db.autocommit() as tx:
            return await tx.value(
                Q.is_rescued, id=callback.id, account=callback.account_id, error=SENDING_TIMEOUT_ERROR
            )

    async def close(self) -> None:
        await self._settlements.close()


def wall_clock_ms() -> int:
    """The host's clock in epoch ms, for a response that cannot wait for the database's clock."""
    return int(datetime.now(UTC).timestamp() * 1000)
