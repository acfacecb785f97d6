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

from pabal.core.errors import PabalError, TooMany
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.doorbell import FLOOR, Doorbell
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.queue.desk import Desk
from pabal.queue.gatherer import Gatherer
from pabal.relay import news
from pabal.relay.bearer import Bearer, bearer_of
from pabal.relay.lane import HeldMessage, Waiting
from pabal.relay.news import Kind, News
from pabal.relay.stream import HOLD, Frame, Stream

log = get_logger()

MOST_STREAMS = 5
KEEP = timedelta(seconds=10)
LIFE = timedelta(seconds=35)  # as long as what it holds, and a little
GLANCE = 1.0
"""Seconds between looks whether a stream is full: what was answered in another process makes room."""
AGAIN = timedelta(seconds=5)

DISABLED = {"code": "ACCOUNT_DISABLED", "message": "the account is disabled"}
OVER = {
    "lapsed": ("pairing_expired", {"reason": "the code was not used in time"}),
    "refused": ("pairing_expired", {"reason": "the pairing was not approved"}),
    "disabled": ("error", DISABLED),
}
"""What a stream is told whose session waits for nobody any more."""

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Over:
    session: UUID
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """That a closed stream left something of an account behind: free, or kept for its client."""

    account_id: UUID
    is_free: bool


class Switchboard:
    def __init__(self, db: Database, doorbell: Doorbell, desk: Desk[Waiting, HeldMessage]) -> None:
        self._db = db
        self._desk = desk
        self._doorbell = doorbell
        self._streams: dict[UUID, Stream] = {}
        self._by_account: defaultdict[UUID, set[Stream]] = defaultdict(set)
        self._heard = 0.0
        self._closings = Gatherer[Stream, None](db, self._write_closings)
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, token: str, last: int | None) -> tuple[Stream, Bearer]:
        """Open a stream for whoever shows this token; `last` is the newest id the client has.

        The token is looked at again once the stream can hear the news, so that nothing happens unheard in between.
        """
        async with self._db.autocommit() as tx:
            bearer = await bearer_of(tx, token)
        stream = Stream(new_id(), bearer.token, bearer.session, bearer.account, last)
        stream.seat.take = partial(self._hand, stream)
        self._enter(stream)
        try:
            async with self._db.transaction() as tx:
                knew = await news.known(tx, stream.account, stream.session)
                bearer = await bearer_of(tx, token)
                stream.waits = bearer.session is not None and not bearer.paired
                self._join(stream, bearer.account)
                await self._admit(tx, stream)
            stream.knew = knew  # from here on it is told the news: what is new to it
        except BaseException:
            self._forget(stream)
            raise
        return stream, bearer

    def start(self, stream: Stream) -> None:
        """Let its messages come; what it is told before this comes first."""
        if stream.account is not None:
            self._desk.sit(stream.waiting, stream.seat)

    async def close(self, stream: Stream) -> None:
        """Forget a stream. What it was not sent is free at once; what it was sent is kept a while for its client."""
        unsent = stream.unsent()
        if stream.account is not None:
            self._desk.rise(stream.waiting, stream.seat, unsent)
        stream.settled([message.id for message in unsent])
        self._forget(stream)
        try:
            await self._closings.put(stream)
        except PabalError as error:
            log.warning("left to its lease", stream=str(stream.id), why=str(error))

    def settled(self, account: UUID, messages: Iterable[UUID]) -> None:
        """Let streams here know at once what was answered or acknowledged through another door."""
        ids = [*messages]
        for stream in self._by_account.get(account, ()):
            if stream.settled(ids):
                self._desk.look(stream.waiting)

    # Coming and going

    def _enter(self, stream: Stream) -> None:
        self._streams[stream.id] = stream
        if stream.account is not None:
            self._by_account[stream.account].add(stream)
        if not self._tasks:
            self._heard = monotonic()
            self._tasks = [
                asyncio.create_task(self._keeps(), name="streams kept"),
                asyncio.create_task(self._listens(), name="streams told"),
            ]

    def _join(self, stream: Stream, account: UUID | None) -> None:
        if account is not None and stream.account is None:
            stream.account = account
            self._by_account[account].add(stream)

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        if stream.account is not None:
            self._by_account[stream.account].discard(stream)
            if not self._by_account[stream.account]:
                del self._by_account[stream.account]
        if not self._streams:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()

    async def _admit(self, tx: Tx, stream: Stream) -> None:
        await tx.run(Q.lock, whose=str(stream.account or stream.token))
        admitted = await tx.value(
            Q.open,
            id=stream.id,
            account=stream.account,
            token=stream.token,
            last=stream.last,
            life=LIFE,
            most=MOST_STREAMS,
        )
        if admitted is None:
            raise TooMany("streams open for this account", AGAIN)
        if stream.session:
            await tx.run(Q.touch, session=stream.session)
        if stream.account:
            lease = new_id()
            kept = await tx.column(
                Q.resume,
                account=stream.account,
                token=stream.token,
                stream=stream.id,
                holder=stream.holder,
                lease=lease,
                hold=HOLD,
                last=stream.last,
            )
            stream.hold(kept, lease)

    async def _write_closings(self, tx: Tx, streams: Sequence[Stream]) -> Sequence[None]:
        held = [stream for stream in streams if stream.account is not None]
        closing: dict[str, list[Any]] = {
            "streams": [stream.id for stream in streams],
            "accounts": [stream.account for stream in held],
            "holders": [stream.holder for stream in held],
            "tokens": [stream.token for stream in held],
        }
        left = await tx.all(Left, Q.close, **closing)
        if not all(each.is_free for each in left):
            left += await tx.all(Left, Q.close, **closing)
        for account in {each.account_id for each in left if each.is_free}:
            tx.ring(Bell.MESSAGES, str(account))
        return [None] * len(streams)

    # Keeping

    def _hand(self, stream: Stream, messages: Sequence[HeldMessage]) -> None:
        """Hand out what was claimed, but not to a client that has it already.

        After the database was away longer than a lease, what open streams hold is due again; they have it still.
        """
        assert stream.account is not None
        new: list[HeldMessage] = []
        for message in messages:
            holding = next((each for each in self._by_account[stream.account] if has_still(each, message)), None)
            if holding is None:
                new.append(message)
            else:
                holding.hold([message.id], message.lease)
        stream.hand(new)

    async def _keeps(self) -> None:
        kept = monotonic()
        while True:
            await asyncio.sleep(GLANCE)
            crowded = any(stream.seat.free <= 0 for stream in self._streams.values())
            if not crowded and monotonic() - kept < KEEP.total_seconds():
                continue
            kept = monotonic()
            try:
                await self._keep()
            except PabalError as error:
                log.warning("streams not kept", why=str(error))
            except Exception:  # nobody else would notice that leases end under open streams
                log.exception("streams not kept")

    async def _listens(self) -> None:
        with self._doorbell.hear(Bell.RELAY) as ear:
            while True:
                try:
                    await self._spread()
                except PabalError as error:
                    log.warning("streams hear nothing", why=str(error))
                except Exception:  # nor that a token was revoked
                    log.exception("streams hear nothing")
                await ear.within(FLOOR)

    async def _keep(self) -> None:
        streams = [*self._streams.values()]
        held = [(stream, each, lease) for stream in streams for each, lease in stream.held.items()]
        async with self._db.autocommit() as tx:
            lost = {
                *await tx.column(
                    Q.keep,
                    streams=[stream.id for stream in streams],
                    ids=[each for _, each, _ in held],
                    leases=[lease for *_, lease in held],
                    accounts=[stream.account for stream, *_ in held],
                    life=LIFE,
                    hold=HOLD,
                )
            }
        for stream, each, lease in held:
            if each in lost and stream.held.get(each) == lease and stream.settled([each]):
                self._desk.look(stream.waiting)

    # News

    async def _spread(self) -> None:
        silence = timedelta(seconds=monotonic() - self._heard)
        if silence > news.KEEP:
            self.hang_up()  # what happened meanwhile is forgotten: whoever comes back shows its token
        waiting = [stream for stream in self._streams.values() if stream.session and stream.waits]
        began = monotonic()
        async with self._db.autocommit() as tx:
            happened = await news.fresh(tx, silence)
            over = await self._in_vain(tx, waiting) if waiting else {}
            for each in happened:
                await self._pass_on(tx, each)
        self._heard = began
        for stream in waiting:
            if stream.waits and (why := over.get(stream.session)):
                name, data = OVER[why]
                self._end(stream, name, **data)

    async def _pass_on(self, tx: Tx, happened: News) -> None:
        for stream in self._concerned(happened):
            if stream.knew is None or happened.id in stream.knew:
                continue
            try:
                await self._tell(tx, stream, happened)
            except PabalError:  # the next look tells it
                raise
            except Exception:  # what nobody can make sense of keeps no other news from anybody
                log.exception("news not told", news=happened.id)
            stream.knew.add(happened.id)

    async def _in_vain(self, tx: Tx, waiting: Iterable[Stream]) -> dict[UUID | None, str]:
        """Which of the sessions wait for nobody any more, and why."""
        found = await tx.all(Over, Q.over, sessions=[stream.session for stream in waiting])
        return {each.session: each.why for each in found}

    async def _tell(self, tx: Tx, stream: Stream, happened: News) -> None:
        match happened.kind:
            case Kind.PAIRED:
                is_first = stream.account is None and happened.account_id is not None
                if is_first:
                    await tx.run(Q.join_account, id=stream.id, account=happened.account_id)
                    self._join(stream, happened.account_id)
                stream.waits = False
                stream.tell(Frame("pairing_complete", happened.data))
                if is_first:
                    self.start(stream)
            case Kind.UNPAIRED:
                stream.take_back(str(happened.data.get("conversationKey")))
                stream.tell(Frame("unpaired", happened.data))
            case Kind.DISABLED:
                self._end(stream, "error", **DISABLED)
            case Kind.REVOKED:
                self._end(stream, "error", code="UNAUTHORIZED", message="the token is no longer good")
            case _:
                log.warning("news not understood", kind=happened.kind)

    def _concerned(self, happened: News) -> list[Stream]:
        """Whom it is news to: the account's streams, and those of the session that has heard of no account yet."""
        named, account = happened.session_id, happened.account_id
        streams = [*self._by_account.get(account, ())] if account else []
        if named is not None:
            streams += [each for each in self._streams.values() if each.session == named and each not in streams]
        if happened.kind == Kind.REVOKED and not happened.data.get("all"):
            return [stream for stream in streams if stream.session is None]
        return streams

    def _end(self, stream: Stream, name: str, **data: str) -> None:
        if stream.ended:
            return
        stream.ended = True
        if stream.account is not None:
            unsent = stream.unsent()
            stream.clear()
            self._desk.rise(stream.waiting, stream.seat, unsent)
        stream.tell(Frame(name, dict[str, object](data), ends=True))

    def hang_up(self) -> None:
        """End every stream; their clients will come back, here or elsewhere."""
        for stream in self._streams.values():
            stream.hang_up()

    async def finish(self) -> None:
        """Wait until every stream that was closed is written down as closed."""
        await self._closings.close()


def has_still(stream: Stream, message: HeldMessage) -> bool:
    """Whether its client has the message from before, and only the lease was lost: nobody else has had it since."""
    return message.had is not None and message.had == stream.held.get(message.id)


async def sweep(tx: Tx, batch: int) -> int:
    """Forget streams whose process went without a word."""
    return await tx.run(Q.sweep, batch=batch)
