"""The switchboard: every open stream of one process.

One statement a few times a minute keeps what all of them hold, one look at the news tells them what changed, and the
desk brings their messages. A stream that waits costs no connection and no query of its own.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

from pabal.core.errors import PabalError, RateLimited
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.queue.batcher import Batcher
from pabal.queue.long_poll import LongPoll
from pabal.relay.auth import RelayPrincipal, authenticate_relay_token
from pabal.relay.delivery import stream as news
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.stream import (
    STREAM_LEASE_DURATION,
    ControlEvent,
    ControlEventKind,
    RelayStream,
    StreamFrame,
    find_seen_control_event_ids,
    list_recent_control_events,
)

log = get_logger()

MAX_STREAMS = 5
KEEPALIVE_INTERVAL = timedelta(seconds=10)
STREAM_LIFETIME = timedelta(seconds=35)  # as long as what it holds, and a little
FULL_STREAM_CHECK_INTERVAL = 1.0
"""Seconds between looks whether a stream is full: what was answered in another process makes room."""
TOO_MANY_STREAMS_RETRY_AFTER = timedelta(seconds=5)

DISABLED_ERROR = {"code": "ACCOUNT_DISABLED", "message": "the account is disabled"}
ENDED_WAIT_FRAMES = {
    "lapsed": ("pairing_expired", {"reason": "the code was not used in time"}),
    "refused": ("pairing_expired", {"reason": "the pairing was not approved"}),
    "disabled": ("error", DISABLED_ERROR),
}
"""What a stream is told whose session waits for nobody any more."""

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class EndedWait:
    session_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class ClosedStreamRow:
    """That a closed stream left something of an account behind: free, or kept for its client."""

    account_id: UUID
    is_free: bool


class StreamRegistry:
    def __init__(
        self, db: Database, doorbell: Doorbell, long_poll: LongPoll[MessagePollRequest, ClaimedMessage]
    ) -> None:
        self._db = db
        self._long_poll = long_poll
        self._doorbell = doorbell
        self._streams: dict[UUID, RelayStream] = {}
        self._by_account: defaultdict[UUID, set[RelayStream]] = defaultdict(set)
        self._last_read = 0.0
        self._closed_streams = Batcher[RelayStream, None](db, self._record_closed)
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, token: str, last_event_id: int | None) -> tuple[RelayStream, RelayPrincipal]:
        """Open a stream for whoever shows this token; `last` is the newest id the client has.

        The token is looked at again once the stream can hear the news, so that nothing happens unheard in between.
        """
        async with self._db.autocommit() as tx:
            bearer = await authenticate_relay_token(tx, token)
        stream = RelayStream(new_id(), bearer.token_id, bearer.session_id, bearer.account_id, last_event_id)
        stream.waiter.on_rows = partial(self._deliver, stream)
        self._add(stream)
        try:
            async with self._db.transaction() as tx:
                knew = await find_seen_control_event_ids(tx, stream.account_id, stream.session_id)
                bearer = await authenticate_relay_token(tx, token)
                stream.awaits_pairing = bearer.session_id is not None and not bearer.paired
                self._set_account(stream, bearer.account_id)
                await self._register(tx, stream)
            stream.seen_ids = knew  # from here on it is told the news: what is new to it
        except BaseException:
            self._remove(stream)
            raise
        return stream, bearer

    def start(self, stream: RelayStream) -> None:
        """Let its messages come; what it is told before this comes first."""
        if stream.account_id is not None:
            self._long_poll.subscribe(stream.poll_request, stream.waiter)

    async def close(self, stream: RelayStream) -> None:
        """Forget a stream. What it was not sent is free at once; what it was sent is kept a while for its client."""
        unsent = stream.unsent_messages()
        if stream.account_id is not None:
            self._long_poll.unsubscribe(stream.poll_request, stream.waiter, unsent)
        stream.remove_in_flight([message.id for message in unsent])
        self._remove(stream)
        try:
            await self._closed_streams.put(stream)
        except PabalError as error:
            log.warning("left to its lease", stream=str(stream.id), error=str(error))

    def remove_in_flight(self, account: UUID, message_ids: Iterable[UUID]) -> None:
        """Let streams here know at once what was answered or acknowledged through another door."""
        ids = [*message_ids]
        for stream in self._by_account.get(account, ()):
            if stream.remove_in_flight(ids):
                self._long_poll.wake(stream.poll_request)

    # Coming and going

    def _add(self, stream: RelayStream) -> None:
        self._streams[stream.id] = stream
        if stream.account_id is not None:
            self._by_account[stream.account_id].add(stream)
        if not self._tasks:
            self._last_read = monotonic()
            self._tasks = [
                asyncio.create_task(self._keepalive_loop(), name="streams kept"),
                asyncio.create_task(self._control_event_loop(), name="streams told"),
            ]

    def _set_account(self, stream: RelayStream, account: UUID | None) -> None:
        if account is not None and stream.account_id is None:
            stream.account_id = account
            self._by_account[account].add(stream)

    def _remove(self, stream: RelayStream) -> None:
        self._streams.pop(stream.id, None)
        if stream.account_id is not None:
            self._by_account[stream.account_id].discard(stream)
            if not self._by_account[stream.account_id]:
                del self._by_account[stream.account_id]
        if not self._streams:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()

    async def _register(self, tx: Tx, stream: RelayStream) -> None:
        await tx.run(Q.lock_stream_owner, whose=str(stream.account_id or stream.token_id))
        admitted = await tx.value(
            Q.open_stream,
            id=stream.id,
            account=stream.account_id,
            token=stream.token_id,
            last=stream.last_event_id,
            life=STREAM_LIFETIME,
            most=MAX_STREAMS,
        )
        if admitted is None:
            raise RateLimited("streams open for this account", TOO_MANY_STREAMS_RETRY_AFTER)
        if stream.session_id:
            await tx.run(Q.touch_session, session=stream.session_id)
        if stream.account_id:
            lease = new_id()
            kept = await tx.column(
                Q.resume_messages,
                account=stream.account_id,
                token=stream.token_id,
                stream=stream.id,
                holder=stream.holder,
                lease=lease,
                hold=STREAM_LEASE_DURATION,
                last=stream.last_event_id,
            )
            stream.add_in_flight(kept, lease)

    async def _record_closed(self, tx: Tx, streams: Sequence[RelayStream]) -> Sequence[None]:
        held = [stream for stream in streams if stream.account_id is not None]
        closing: dict[str, list[Any]] = {
            "streams": [stream.id for stream in streams],
            "accounts": [stream.account_id for stream in held],
            "holders": [stream.holder for stream in held],
            "tokens": [stream.token_id for stream in held],
        }
        left = await tx.all(ClosedStreamRow, Q.close_streams, **closing)
        if not all(each.is_free for each in left):
            left += await tx.all(ClosedStreamRow, Q.close_streams, **closing)
        for account in {each.account_id for each in left if each.is_free}:
            tx.notify(Channel.MESSAGES, str(account))
        return [None] * len(streams)

    # Keeping

    def _deliver(self, stream: RelayStream, messages: Sequence[ClaimedMessage]) -> None:
        """Hand out what was claimed, but not to a client that has it already.

        After the database was away longer than a lease, what open streams hold is due again; they have it still.
        """
        assert stream.account_id is not None
        new: list[ClaimedMessage] = []
        for message in messages:
            holding = next(
                (each for each in self._by_account[stream.account_id] if holds_previous_lease(each, message)), None
            )
            if holding is None:
                new.append(message)
            else:
                holding.add_in_flight([message.id], message.lease)
        stream.deliver(new)

    async def _keepalive_loop(self) -> None:
        kept = monotonic()
        while True:
            await asyncio.sleep(FULL_STREAM_CHECK_INTERVAL)
            crowded = any(stream.waiter.free_slots <= 0 for stream in self._streams.values())
            if not crowded and monotonic() - kept < KEEPALIVE_INTERVAL.total_seconds():
                continue
            kept = monotonic()
            try:
                await self._extend_leases()
            except PabalError as error:
                log.warning("streams not kept", error=str(error))
            except Exception:  # nobody else would notice that leases end under open streams
                log.exception("streams not kept")

    async def _control_event_loop(self) -> None:
        with self._doorbell.listen(Channel.RELAY) as ear:
            while True:
                try:
                    await self._dispatch_control_events()
                except PabalError as error:
                    log.warning("streams hear nothing", error=str(error))
                except Exception:  # nor that a token was revoked
                    log.exception("streams hear nothing")
                await ear.wait(POLL_INTERVAL)

    async def _extend_leases(self) -> None:
        streams = [*self._streams.values()]
        held = [(stream, each, lease) for stream in streams for each, lease in stream.in_flight.items()]
        async with self._db.autocommit() as tx:
            lost = {
                *await tx.column(
                    Q.extend_stream_leases,
                    streams=[stream.id for stream in streams],
                    ids=[each for _, each, _ in held],
                    leases=[lease for *_, lease in held],
                    accounts=[stream.account_id for stream, *_ in held],
                    life=STREAM_LIFETIME,
                    hold=STREAM_LEASE_DURATION,
                )
            }
        for stream, each, lease in held:
            if each in lost and stream.in_flight.get(each) == lease and stream.remove_in_flight([each]):
                self._long_poll.wake(stream.poll_request)

    # News

    async def _dispatch_control_events(self) -> None:
        silence = timedelta(seconds=monotonic() - self._last_read)
        if silence > news.CONTROL_EVENT_RETENTION:
            self.close_all()  # what happened meanwhile is forgotten: whoever comes back shows its token
        waiting = [stream for stream in self._streams.values() if stream.session_id and stream.awaits_pairing]
        began = monotonic()
        async with self._db.autocommit() as tx:
            happened = await list_recent_control_events(tx, silence)
            over = await self._find_ended_waits(tx, waiting) if waiting else {}
            for each in happened:
                await self._dispatch(tx, each)
        self._last_read = began
        for stream in waiting:
            if stream.awaits_pairing and (why := over.get(stream.session_id)):
                name, data = ENDED_WAIT_FRAMES[why]
                self._end_stream(stream, name, **data)

    async def _dispatch(self, tx: Tx, happened: ControlEvent) -> None:
        for stream in self._affected_streams(happened):
            if stream.seen_ids is None or happened.id in stream.seen_ids:
                continue
            try:
                await self._apply_control_event(tx, stream, happened)
            except PabalError:  # the next look tells it
                raise
            except Exception:  # what nobody can make sense of keeps no other news from anybody
                log.exception("news not told", news=happened.id)
            stream.seen_ids.add(happened.id)

    async def _find_ended_waits(self, tx: Tx, waiting: Iterable[RelayStream]) -> dict[UUID | None, str]:
        """Which of the sessions wait for nobody any more, and why."""
        found = await tx.all(EndedWait, Q.find_ended_waits, sessions=[stream.session_id for stream in waiting])
        return {each.session_id: each.reason for each in found}

    async def _apply_control_event(self, tx: Tx, stream: RelayStream, happened: ControlEvent) -> None:
        match happened.kind:
            case ControlEventKind.PAIRED:
                is_first = stream.account_id is None and happened.account_id is not None
                if is_first:
                    await tx.run(Q.set_stream_account, id=stream.id, account=happened.account_id)
                    self._set_account(stream, happened.account_id)
                stream.awaits_pairing = False
                stream.enqueue_frame(StreamFrame("pairing_complete", happened.data))
                if is_first:
                    self.start(stream)
            case ControlEventKind.UNPAIRED:
                stream.drop_conversation(str(happened.data.get("conversationKey")))
                stream.enqueue_frame(StreamFrame("unpaired", happened.data))
            case ControlEventKind.DISABLED:
                self._end_stream(stream, "error", **DISABLED_ERROR)
            case ControlEventKind.REVOKED:
                self._end_stream(stream, "error", code="UNAUTHORIZED", message="the token is no longer good")
            case _:
                log.warning("news not understood", kind=happened.kind)

    def _affected_streams(self, happened: ControlEvent) -> list[RelayStream]:
        """Whom it is news to: the account's streams, and those of the session that has heard of no account yet."""
        named, account = happened.session_id, happened.account_id
        streams = [*self._by_account.get(account, ())] if account else []
        if named is not None:
            streams += [each for each in self._streams.values() if each.session_id == named and each not in streams]
        if happened.kind == ControlEventKind.REVOKED and not happened.data.get("all"):
            return [stream for stream in streams if stream.session_id is None]
        return streams

    def _end_stream(self, stream: RelayStream, name: str, **data: str) -> None:
        if stream.ended:
            return
        stream.ended = True
        if stream.account_id is not None:
            unsent = stream.unsent_messages()
            stream.drop_unsent_messages()
            self._long_poll.unsubscribe(stream.poll_request, stream.waiter, unsent)
        stream.enqueue_frame(StreamFrame(name, dict[str, object](data), is_last=True))

    def close_all(self) -> None:
        """End every stream; their clients will come back, here or elsewhere."""
        for stream in self._streams.values():
            stream.close()

    async def drain(self) -> None:
        """Wait until every stream that was closed is written down as closed."""
        await self._closed_streams.close()


def holds_previous_lease(stream: RelayStream, message: ClaimedMessage) -> bool:
    """Whether its client has the message from before, and only the lease was lost: nobody else has had it since."""
    return message.previous_lease is not None and message.previous_lease == stream.in_flight.get(message.id)


async def purge_dead_streams(tx: Tx, batch: int) -> int:
    """Forget streams whose process went without a word."""
    return await tx.run(Q.purge_dead_streams, batch=batch)
