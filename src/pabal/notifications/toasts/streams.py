"""Toast streams: the open streams of one process, and the task that feeds them.

A stream is a position in its person's changes. One query per wakeup feeds all streams, so an idle stream costs neither
a connection nor a query. A client that reconnects with its last number continues exactly there.
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
from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.doorbell.channels import Channel
from pabal.db.doorbell.doorbell import POLL_INTERVAL, Doorbell
from pabal.db.pool import Database
from pabal.notifications.people.tokens import Person, find_ended_person_tokens
from pabal.notifications.toasts.inbox import InboxState, ToastChange, list_toast_changes, load_inbox_state, toast_topic
from pabal.notifications.toasts.stream_slots import ToastSlot, ToastStreamSlots
from pabal.queue.open_streams import OpenStreams

log = get_logger()

MAX_PENDING_CHANGES = 100
"""Changes of one inbox that one query reads, and that one stream buffers."""
ALL_TOPICS = frozenset({""})


@dataclass(slots=True, eq=False)
class ToastStream:
    """One open stream. `last_seq` is the latest change it has buffered, `sent_seq` the latest it has sent."""

    person: Person
    slot: ToastSlot
    last_seq: int
    sent_seq: int
    request_refresh: Callable[[], None]
    """Called when the buffer has room again."""
    is_behind: bool = False
    is_closed: bool = False
    _pending: deque[ToastChange] = field(default_factory=deque[ToastChange])
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Whether the client is too slow. The stream then skips refreshes until its buffer is sent."""
        return len(self._pending) >= MAX_PENDING_CHANGES

    def push_changes(self, changes: Iterable[ToastChange]) -> None:
        for change in changes:
            if change.seq > self.last_seq:
                self._pending.append(change)
                self.last_seq = change.seq
        self._wakeup.set()

    def close(self) -> None:
        """End the stream: the client disconnected, the token expired, or the hub stops."""
        self.is_closed = True
        self._wakeup.set()

    async def changes(self, heartbeat_interval: timedelta) -> AsyncGenerator[ToastChange | None]:
        """Yield changes as they arrive, and None as a heartbeat."""
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
    """Feeds every open stream of this process with the changes of its person's inbox."""

    def __init__(self, db: Database, doorbell: Doorbell) -> None:
        self._db = db
        self._listener = doorbell.listen(Channel.TOASTS)
        self._streams = OpenStreams[str, ToastStream]()
        """By NOTIFY topic."""
        self.slots = ToastStreamSlots(db)
        self._refresh_task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, person: Person, last_seq: int | None) -> tuple[ToastStream, InboxState]:
        """Open a stream that continues after `last_seq`, or starts now. Also return the state of the inbox.

        Raises RateLimited if the person has too many streams open, in this and other processes.
        """
        topic = toast_topic(person.id)
        async with self._db.autocommit() as tx:
            slot = await self.slots.take(tx, topic)
            try:
                inbox = await load_inbox_state(tx, person.id)
            except BaseException:
                self.slots.release(slot)
                raise
        if last_seq is None:
            last_seq = inbox.last_seq
        elif last_seq > inbox.last_seq:  # from another inbox, or one that was restored or purged: start over
            last_seq = 0
        stream = ToastStream(person, slot, last_seq, last_seq, partial(self._listener.wake, topic))
        self._streams.add(stream, topic)
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._run(), name="toast streams")
        stream.request_refresh()
        return stream, inbox

    def close(self, stream: ToastStream) -> None:
        self._streams.remove(stream)
        self.slots.release(stream.slot)
        if not self._streams:
            self._listener.wake()  # let the task end

    def close_all(self) -> None:
        """End every stream. Clients reconnect, to this process or another."""
        self._streams.close_all()

    async def stop(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.gather(self._refresh_task, return_exceptions=True)
        await self.slots.stop()

    async def _run(self) -> None:
        refreshed_all = monotonic()
        with self._listener:
            while self._streams:
                woken = await self._listener.wait_for_topics(spread(POLL_INTERVAL))
                topics = self._listener.take_topics()
                if not woken or monotonic() - refreshed_all > POLL_INTERVAL.total_seconds():  # NOTIFY may be lost
                    topics, refreshed_all = ALL_TOPICS, monotonic()
                try:
                    await self._refresh_streams(topics)
                except PabalError as error:
                    log.warning("toast refresh failed", error=str(error))

    async def _refresh_streams(self, topics: AbstractSet[str]) -> None:
        """Feed the streams that are open now. One opened during the query may need earlier changes."""
        changed_topics = self._streams.keys() if "" in topics else topics & self._streams.keys()
        streams = [stream for topic in changed_topics for stream in self._streams.of_key(topic)]
        since: dict[str, int] = {}
        for stream in streams:
            stream.is_behind = stream.is_full
            if not stream.is_full:
                since[stream.person.id] = min(stream.last_seq, since.get(stream.person.id, stream.last_seq))
        async with self._db.autocommit() as tx:
            changes = await list_toast_changes(tx, since, MAX_PENDING_CHANGES) if since else []
            ended_tokens = await find_ended_person_tokens(tx, {stream.person.token_hash for stream in streams})
        changes_by_person: defaultdict[str, list[ToastChange]] = defaultdict(list)
        for change in changes:
            changes_by_person[change.recipient_id].append(change)
        for stream in streams:
            if not stream.is_behind:
                stream.push_changes(changes_by_person.get(stream.person.id, ()))
            if stream.person.token_hash in ended_tokens:
                stream.close()
            if stream.is_closed:  # also if its client left before the first byte
                self.close(stream)
        for person_id, person_changes in changes_by_person.items():
            if len(person_changes) == MAX_PENDING_CHANGES:  # there may be more
                self._listener.wake(toast_topic(person_id))
