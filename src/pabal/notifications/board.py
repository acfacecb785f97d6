"""The board: every open stream of toasts in one process.

A stream is a place in its person's changes: whatever is numbered after it is still to be told. One look at the ring
brings every stream on, so a stream that waits costs no connection and no query of its own, and one that comes back
with its last number goes on exactly there.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic

from pabal.core.errors import PabalError, TooMany
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.doorbell import FLOOR, Doorbell
from pabal.db.pool import Database
from pabal.notifications import people, toasts
from pabal.notifications.people import Person
from pabal.notifications.toasts import Change, Standing, topic_of

log = get_logger()

PAGE = 100
"""Changes of one inbox that one look brings, and that a stream may have unsent."""
MOST_STREAMS = 20
"""Streams a person may have open in one process."""
AGAIN = timedelta(seconds=5)
EVERYBODY = frozenset({""})


@dataclass(slots=True, eq=False)
class Stream:
    """One open stream. `last` numbers the newest change that was put into it, `sent` the newest that left it."""

    person: Person
    last: int
    sent: int
    ask: Callable[[], None]
    """What to do when there is room again."""
    is_behind: bool = False
    ended: bool = False
    _changes: deque[Change] = field(default_factory=deque[Change])
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Whether its client is slow to take what there is: it is told nothing more until it has."""
        return len(self._changes) >= PAGE

    def tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.seq > self.last:
                self._changes.append(change)
                self.last = change.seq
        self._more.set()

    def hang_up(self) -> None:
        """End: the client has gone, its token has, or the hub is about to."""
        self.ended = True
        self._more.set()

    async def changes(self, pulse: timedelta) -> AsyncGenerator[Change | None]:
        """What to send, as it comes; None when there has been nothing for a while."""
        while not self.ended:
            if self._changes:
                change = self._changes.popleft()
                self.sent = change.seq
                yield change
                continue
            if self.is_behind:
                self.is_behind = False
                self.ask()
            self._more.clear()
            try:
                async with asyncio.timeout(pulse.total_seconds()):
                    await self._more.wait()
            except TimeoutError:
                yield None


class Board:
    """Tells every open stream of this process what changed in its person's inbox."""

    def __init__(self, db: Database, doorbell: Doorbell) -> None:
        self._db = db
        self._ear = doorbell.hear(Bell.TOASTS)
        self._streams: defaultdict[str, set[Stream]] = defaultdict(set)
        """By the topic their person's changes are rung under."""
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    async def open(self, person: Person, last: int | None) -> tuple[Stream, Standing]:
        """Open a stream that goes on after `last`, or begins now; and how the inbox stands."""
        async with self._db.autocommit() as tx:
            now = await toasts.standing(tx, person.id)
        if last is None:
            last = now.last
        elif last > now.last:  # not a number of this inbox, or of one that was restored or purged: tell all there is
            last = 0
        topic = topic_of(person.id)
        if len(self._streams.get(topic, ())) >= MOST_STREAMS:
            raise TooMany("streams open for this person", AGAIN)
        stream = Stream(person, last, last, partial(self._ear.nudge, topic))
        self._streams[topic].add(stream)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._looks(), name="toasts told")
        stream.ask()
        return stream, now

    def close(self, stream: Stream) -> None:
        topic = topic_of(stream.person.id)
        others = self._streams.get(topic, set()) - {stream}
        if others:
            self._streams[topic] = others
        else:
            self._streams.pop(topic, None)
        if not self._streams:
            self._ear.nudge()  # nobody is left to look for

    def hang_up(self) -> None:
        """End every stream; their clients will come back, here or elsewhere."""
        for streams in self._streams.values():
            for stream in streams:
                stream.hang_up()

    async def finish(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _looks(self) -> None:
        looked = monotonic()
        with self._ear:
            while self._streams:
                rang = await self._ear.rings(FLOOR * random.uniform(0.8, 1.2))  # noqa: S311 spreads many processes
                topics = self._ear.topics()
                if not rang or monotonic() - looked > FLOOR.total_seconds():  # a ring may be lost among many others
                    topics, looked = EVERYBODY, monotonic()
                try:
                    await self._look(topics)
                except PabalError as error:
                    log.warning("toasts wait", why=str(error))

    async def _look(self, topics: AbstractSet[str]) -> None:
        """Bring on the streams that were open before it; one that comes meanwhile may need what this look skips."""
        rung = self._streams if "" in topics else topics & self._streams.keys()
        streams = [stream for topic in rung for stream in self._streams[topic]]
        since: dict[str, int] = {}
        for stream in streams:
            stream.is_behind = stream.is_full
            if not stream.is_full:
                since[stream.person.id] = min(stream.last, since.get(stream.person.id, stream.last))
        async with self._db.autocommit() as tx:
            found = await toasts.changes(tx, since, PAGE) if since else []
            gone = await people.ended(tx, {stream.person.token for stream in streams})
        changed: defaultdict[str, list[Change]] = defaultdict(list)
        for change in found:
            changed[change.recipient_id].append(change)
        for stream in streams:
            if not stream.is_behind:
                stream.tell(changed.get(stream.person.id, ()))
            if stream.person.token in gone:
                stream.hang_up()
                self.close(stream)
        for person, changes in changed.items():
            if len(changes) == PAGE:
                self._ear.nudge(topic_of(person))
