"""All open streams of one process: opening, closing, and keeping the leases of what they hold.

An idle stream costs no connection and no query of its own: one statement extends the leases of all streams, one read of
the control events serves all of them, and the long poll claims their messages together.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.doorbell.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.batcher import Batcher
from pabal.queue.long_poll import LongPoll
from pabal.queue.open_streams import OpenStreams
from pabal.relay.auth import RelayPrincipal, hash_relay_secret
from pabal.relay.delivery.handover import StreamHandover
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.open_limits import StreamOpenLimits
from pabal.relay.delivery.stream import STREAM_LEASE_DURATION, RelayStream
from pabal.relay.delivery.stream_control import StreamController
from pabal.relay.delivery.takeover import (
    STREAM_LIFETIME,
    activate_parked_streams,
    find_tokens_without_active_stream,
    register_stream,
)
from pabal.relay.encryption.message_cipher import MessageCipher

Q = load_queries(__file__)
log = get_logger()

KEEPALIVE_INTERVAL = timedelta(seconds=10)
FULL_STREAM_CHECK_INTERVAL = 1.0
"""Seconds between checks for full streams. An answer in another process frees a slot, which only the database shows."""


@dataclass(frozen=True, slots=True)
class ClosedStreamRow:
    """An account whose messages a closed stream held: `is_free` if they are queued again, else kept for the client.

    Without an account, `parked_token_id` is a token that is left with parked streams only.
    """

    account_id: UUID | None
    is_free: bool
    parked_token_id: UUID | None


@dataclass(frozen=True, slots=True)
class LostLeaseRow:
    """A message whose lease is lost, or a stream whose row is gone."""

    message_id: UUID | None
    stream_id: UUID | None


class StreamRegistry:
    def __init__(
        self,
        db: Database,
        doorbell: Doorbell,
        long_poll: LongPoll[MessagePollRequest, ClaimedMessage],
        process_id: UUID,
        cipher: MessageCipher | None = None,
    ) -> None:
        self._db = db
        self._long_poll = long_poll
        self._process_id = process_id
        self._cipher = cipher
        self._doorbell = doorbell
        self._streams = OpenStreams[UUID, RelayStream]()
        """By account. A session's stream has none until its first pairing."""
        self.handover = StreamHandover(self._streams, long_poll)
        self._controller = StreamController(db, self._streams, self.start, self._stop_messages, self._park)
        self._open_limits = StreamOpenLimits()
        self._closed_streams = Batcher[RelayStream, None](db, self._record_closed)
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[RelayStream]:
        return iter(self._streams)

    async def open(
        self, token: str, last_event_id: int | None, address: str = ""
    ) -> tuple[RelayStream, RelayPrincipal]:
        """Open a stream for a token. `last_event_id` is the newest id the client has, `address` where it comes from.

        It gets every control event that is newer than its authentication, also one that was read in between: each read
        goes back a little.
        """
        token_hash = hash_relay_secret(token)
        async with self._open_limits.opening(token_hash, address), self._db.autocommit() as tx:
            opening = await register_stream(tx, self._process_id, token_hash, last_event_id, self._cipher)
        stream = opening.stream
        stream.waiter.on_rows = partial(self._deliver, stream)
        stream.on_drained = partial(self._wake, stream)
        self._add(stream)
        if opening.earlier_ids:
            self._park_local_streams(stream.account_id, opening.earlier_ids)
        return stream, opening.principal

    def start(self, stream: RelayStream) -> None:
        """Let messages come. Frames that were enqueued before are sent first. A closed stream gets none."""
        if stream.account_id is not None and not stream.is_parked and stream in self._streams:
            self._long_poll.subscribe(stream.poll_request, stream.waiter)

    async def close(self, stream: RelayStream) -> None:
        """Close a stream. Unsent messages are queued at once; sent ones are kept for the client for one lease."""
        self._stop_messages(stream)
        self._remove(stream)
        try:
            await self._closed_streams.put(stream)
        except PabalError as error:
            log.warning("stream close not recorded", stream=str(stream.id), error=str(error))

    def remove_in_flight(self, account: UUID, message_ids: Iterable[UUID]) -> None:
        """Tell the account's streams which messages were answered or acknowledged by another request."""
        ids = [*message_ids]
        for stream in self._streams.of_key(account):
            if stream.remove_in_flight(ids):
                self._wake(stream)

    def close_all(self) -> None:
        """Close every stream. The clients reconnect, to this process or another."""
        self._streams.close_all()

    async def drain(self) -> None:
        """Wait until every closed stream is recorded as closed."""
        await self._closed_streams.close()

    def _add(self, stream: RelayStream) -> None:
        self._streams.add(stream, stream.account_id)
        if not self._tasks:
            self._controller.reset()
            self._tasks = [
                asyncio.create_task(self._keepalive_loop(), name="keep streams alive"),
                asyncio.create_task(self._control_event_loop(), name="dispatch control events"),
            ]

    def _remove(self, stream: RelayStream) -> None:
        self._streams.remove(stream)
        if not self._streams:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()

    def _wake(self, stream: RelayStream) -> None:
        """Claim for a stream that has free slots again."""
        if stream.account_id is not None:
            self._long_poll.wake(stream.poll_request)

    def _stop_messages(self, stream: RelayStream) -> None:
        """Release the unsent messages and claim no more."""
        unsent = stream.unsent_messages()
        stream.drop_unsent_messages()
        if stream.account_id is not None:
            self._long_poll.unsubscribe(stream.poll_request, stream.waiter, unsent)

    def _park_local_streams(self, account: UUID | None, stream_ids: AbstractSet[UUID]) -> None:
        """Park streams of this process at once. Those of others learn it from the control event, as do these again."""
        for stream in self._streams.of_key(account) if account else self._streams:
            if stream.id in stream_ids:
                self._park(stream)

    def _park(self, stream: RelayStream) -> None:
        self._stop_messages(stream)
        stream.park()

    async def _record_closed(self, tx: Tx, streams: Sequence[RelayStream]) -> Sequence[None]:
        arguments: dict[str, list[Any]] = {
            "streams": [stream.id for stream in streams],
            "accounts": [stream.account_id for stream in streams],
            "tokens": [stream.token_id for stream in streams],
        }
        rows = await tx.all(ClosedStreamRow, Q.close_streams, **arguments)
        if not all(row.is_free for row in rows):  # a client that reconnected meanwhile is visible only now
            rows += await tx.all(ClosedStreamRow, Q.close_streams, **arguments)
        for account in {row.account_id for row in rows if row.account_id and row.is_free}:
            tx.notify(Channel.MESSAGES, str(account))
        if parked_tokens := {row.parked_token_id for row in rows if row.parked_token_id}:
            await activate_parked_streams(tx, parked_tokens)
        return [None] * len(streams)

    def _deliver(self, stream: RelayStream, messages: Sequence[ClaimedMessage]) -> None:
        """Deliver claimed messages, except those that a client of this process already has.

        If the database is unavailable for longer than a lease, messages that open streams hold become due again.
        """
        assert stream.account_id is not None
        account_streams = self._streams.of_key(stream.account_id)
        new_messages: list[ClaimedMessage] = []
        for message in messages:
            holder = next((other for other in account_streams if holds_previous_lease(other, message)), None)
            if holder is None:
                new_messages.append(message)
            else:
                holder.add_in_flight([message.id], message.lease)
        stream.deliver(new_messages)

    async def _keepalive_loop(self) -> None:
        extended_at = monotonic()
        while True:
            await asyncio.sleep(FULL_STREAM_CHECK_INTERVAL)
            any_full = any(stream.is_full for stream in self._streams)
            if any_full or monotonic() - extended_at >= KEEPALIVE_INTERVAL.total_seconds():
                extended_at = monotonic()
                await self._attempt("stream keepalive failed", self._extend_leases)

    async def _control_event_loop(self) -> None:
        with self._doorbell.listen(Channel.RELAY) as listener:
            while True:
                await self._attempt("control events not read", self._controller.dispatch_events)
                await listener.wait(POLL_INTERVAL)

    @staticmethod
    async def _attempt(failure: str, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run and log a failure: a loop that ended would leave open streams without leases or revocations."""
        try:
            await action()
        except PabalError as error:
            log.warning(failure, error=str(error))
        except Exception:
            log.exception(failure)

    async def _extend_leases(self) -> None:
        streams = [*self._streams]
        in_flight = [
            (stream, message_id, lease) for stream in streams for message_id, lease in stream.in_flight.items()
        ]
        async with self._db.autocommit() as tx:
            lost = await tx.all(
                LostLeaseRow,
                Q.extend_stream_leases,
                streams=[stream.id for stream in streams],
                ids=[message_id for _, message_id, _ in in_flight],
                leases=[lease for *_, lease in in_flight],
                accounts=[stream.account_id for stream, *_ in in_flight],
                life=STREAM_LIFETIME,
                hold=STREAM_LEASE_DURATION,
            )
        self._drop_lost(streams, in_flight, lost)
        await self._replace_lost_streams()

    def _drop_lost(
        self,
        streams: Iterable[RelayStream],
        in_flight: Iterable[tuple[RelayStream, UUID, UUID]],
        lost: Iterable[LostLeaseRow],
    ) -> None:
        message_ids, stream_ids = {row.message_id for row in lost}, {row.stream_id for row in lost}
        for stream, message_id, lease in in_flight:
            is_lost = message_id in message_ids and stream.in_flight.get(message_id) == lease
            if is_lost and stream.remove_in_flight([message_id]):
                self._wake(stream)
        for stream in streams:
            if stream.id in stream_ids and not stream.ended:
                stream.reset()

    async def _replace_lost_streams(self) -> None:
        """Activate parked streams of this process whose token lost its active stream with another process."""
        tokens = {stream.token_id for stream in self._streams if stream.is_parked}
        if not tokens:
            return
        async with self._db.autocommit() as tx:
            if inactive := await find_tokens_without_active_stream(tx, tokens):
                await activate_parked_streams(tx, inactive)


def holds_previous_lease(stream: RelayStream, message: ClaimedMessage) -> bool:
    """Whether the stream's client has the message and only lost its lease, with no other delivery since."""
    return message.previous_lease is not None and message.previous_lease == stream.in_flight.get(message.id)


async def purge_dead_streams(tx: Tx, batch: int) -> int:
    """Delete streams whose process ended without closing them."""
    return await tx.run(Q.purge_dead_streams, batch=batch)
