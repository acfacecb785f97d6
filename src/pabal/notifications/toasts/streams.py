"""The board: every open stream of toasts in one process.

A stream is a place in its person's changes: whatever is numbered after it is still to be told. One look at the ring
brings every stream on, so a stream that waits costs no connection and no query of its own, and one that comes back
with its last number goes on exactly there.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic

from pabal.core.backoff import spread
from pabal.core.errors import PabalError, RateLimited
from pabal.core.log import get_logger
from pabal.db.channels import Channel
from pabal.db.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.notifications.people.tokens import Person, find_ended_person_tokens
from pabal.notifications.toasts.inbox import InboxState, ToastChange, list_toast_changes, load_inbox_state, toast_topic
from pabal.queue.open_streams import OpenStreams

log = get_logger()

MAX_PENDING_CHANGES = 100
"""Changes of one inbox that one look brings, and that a stream may have unsent."""
MAX_STREAMS_PER_PERSON = 20
"""Streams a person may have open in one process."""
RETRY_AFTER = timedelta(seconds=5)
ALL_TOPICS = frozenset({""})


@dataclass(slots=True, eq=False)
class ToastStream:
    """One open stream. `last` numbers the newest change that was put into it, `sent` the newest that left it."""

    person: Person
    last_seq: int
    sent_seq: int
    request_refresh: Callable[[], None]
    """What to do when there is room again."""
    is_behind: bool = False
    is_closed: bool = False
    _pending: deque[ToastChange] = field(default_factory=deque[ToastChange])
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Whether its client is slow to take what there is: it is told nothing more until it has."""
        return len(self._pending) >= MAX_PENDING_CHANGES

    def push_changes(self, changes: Iterable[ToastChange]) -> None:
        for change in changes:
            if change.seq > self.last_seq:
                self._pending.append(change)
                self.last_seq = change.seq
        self._wakeup.set()

    def close(self) -> None:
        """End: the client has gone, its token has, or the hub is about to."""
        self.is_closed = True
        self._wakeup.set()

    async def changes(self, heartbeat_interval: timedelta) -> AsyncGenerator[ToastChange | None]:
        """What to send, as it comes; None when there has been nothing for a while."""
        while not self.is_closed:
            if self._pending:
                change = self._pending.popleft()
                self.sent_seq = change.seq
                yield change
                continue
            if self.is_behind:
                self.is_behind = False
                self.request_refresh()
            self._wakeup.clear()
            try:
                async with asyncio.timeout(heartbeat_interval.total_seconds()):
                    await self._wakeup.wait()
            except TimeoutError:
                yield None


class ToastStreams:
    """Tells every open stream of this process what changed in its person's inbox."""

    def __init__(self, db: Database, doorbell: Doorbell) -> None:
        self._db = db
        self._listener = doorbell.listen(Channel.TOASTS)
        self._streams = OpenStreams[str, ToastStream]()
        """By the topic their person's changes are rung under."""
        self._refresh_task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, person: Person, last_seq: int | None) -> tuple[ToastStream, InboxState]:
        """Open a stream that goes on after `last`, or begins now; and how the inbox stands."""
        async with self._db.autocommit() as tx:
            now = await load_inbox_state(tx, person.id)
        if last_seq is None:
            last_seq = now.last_seq
        elif (
            last_seq > now.last_seq
        ):  # not a number of this inbox, or of one that was restored or purged: tell all there is
            last_seq = 0
        topic = toast_topic(person.id)
        if len(self._streams.of_key(topic)) >= MAX_STREAMS_PER_PERSON:
            raise RateLimited("streams open for this person", RETRY_AFTER)
        stream = ToastStream(person, last_seq, last_seq, partial(self._listener.wake, topic))
        self._streams.add(stream, topic)
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._run(), name="toasts told")
        stream.request_refresh()
        return stream, now

    def close(self, stream: ToastStream) -> None:
        self._streams.remove(stream)
        if not self._streams:
            self._listener.wake()  # nobody is left to look for

    def close_all(self) -> None:
        """End every stream; their clients will come back, here or elsewhere."""
        self._streams.close_all()

    async def stop(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.gather(self._refresh_task, return_exceptions=True)

    async def _run(self) -> None:
        looked = monotonic()
        with self._listener:
            while self._streams:
                rang = await self._listener.wait_for_topics(spread(POLL_INTERVAL))
                topics = self._listener.take_topics()
                if (
                    not rang or monotonic() - looked > POLL_INTERVAL.total_seconds()
                ):  # a ring may be lost among many others
                    topics, looked = ALL_TOPICS, monotonic()
                try:
                    await self._refresh_streams(topics)
                except PabalError as error:
                    log.warning("toasts wait", error=str(error))

    async def _refresh_streams(self, topics: AbstractSet[str]) -> None:
        """Bring on the streams that were open before it; one that comes meanwhile may need what this look skips."""
        rung = self._streams.keys() if "" in topics else topics & self._streams.keys()
        streams = [stream for topic in rung for stream in self._streams.of_key(topic)]
        since: dict[str, int] = {}
        for stream in streams:
            stream.is_behind = stream.is_full
            if not stream.is_full:
                since[stream.person.id] = min(stream.last_seq, since.get(stream.person.id, stream.last_seq))
        async with self._db.autocommit() as tx:
            found = await list_toast_changes(tx, since, MAX_PENDING_CHANGES) if since else []
            gone = await find_ended_person_tokens(tx, {stream.person.token_hash for stream in streams})
        changed: defaultdict[str, list[ToastChange]] = defaultdict(list)
        for change in found:
            changed[change.recipient_id].append(change)
        for stream in streams:
            if not stream.is_behind:
                stream.push_changes(changed.get(stream.person.id, ()))
            if stream.person.token_hash in gone:
                stream.close()
                self.close(stream)
        for person, changes in changed.items():
            if len(changes) == MAX_PENDING_CHANGES:
                self._listener.wake(toast_topic(person))
