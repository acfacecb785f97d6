"""The doorbell: one LISTEN connection per process, and a way to wait that holds no connection at all.

Rings made here wake this process at once. For the others they are gathered and sent after the commit, many in one
NOTIFY: a NOTIFY inside every inserting transaction takes a database-wide lock at commit. A ring may be lost; whoever
waits gives a limit and looks into the table again when it passes.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

import asyncpg

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.db.bells import CHANNEL, Bell, Ring
from pabal.db.faults import AWAY, our_words, short
from pabal.db.pool import Database, Ground, Reach, arguments
from pabal.db.queries import Query

log = get_logger()

SEND = Query("notify", "select pg_notify($1, $2)", ("channel", "payload"), "doorbell")
FLOOR = timedelta(seconds=1)
"""How long somebody who hears nothing waits before looking again: the doorbell only makes it sooner."""
SELF_TEST = timedelta(seconds=2)
PULSE = timedelta(seconds=20)
"""How often the listener rings itself: a connection that died without a word is found out by its silence."""
MOST_PAYLOAD = 7900
"""Bytes; PostgreSQL takes 7999, and the sender's name stands before."""
FIRST_ABSENCE, LONGEST_ABSENCE = 0.1, 5.0


class Doorbell:
    """Rings after commit, wakes who waits.

    `reach` leads to the database itself: a pooler would swallow LISTEN. None means there is no such way, and everybody
    lives by the polling floor.
    """

    def __init__(self, db: Database, reach: Reach | None, pulse: timedelta = PULSE) -> None:
        self._db = db
        self._reach = reach
        self._pulse = pulse
        self._me = new_id().hex
        self._waiting: defaultdict[Bell, set[Ear]] = defaultdict(set)
        self._owed: set[Ring] = set()
        self._owing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_itself = asyncio.Event()
        self.listening = False

    async def open(self) -> None:
        self._tasks.append(asyncio.create_task(self._send(), name="doorbell sends"))
        if self._reach is not None:
            self._tasks.append(asyncio.create_task(self._listen(self._reach), name="doorbell listens"))

    async def close(self) -> None:
        """Stop listening and send what is still owed: a command rings and ends at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(SELF_TEST.total_seconds()):
                await self._pay()
        self.listening = False

    def ring(self, bells: Iterable[Bell]) -> None:
        """Wake everybody who waits for these bells."""
        self.pass_on(map(Ring, bells))

    def pass_on(self, rings: Iterable[Ring]) -> None:
        """Wake this process now and the others soon. Called after the commit, never before."""
        for ring in rings:
            self._wake(ring)
            self._owed.add(ring)
        self._owing.set()

    async def wait(self, bell: Bell, limit: timedelta) -> bool:
        """Wait for a ring that comes after this call, at most `limit`. True when it rang."""
        with self.hear(bell) as heard:
            return await heard.within(limit)

    def hear(self, *bells: Bell) -> "Ear":
        """Start listening now, wait later: nothing rung in between is missed."""
        return Ear([self._waiting[bell] for bell in bells])

    def _wake(self, ring: Ring) -> None:
        for ear in self._waiting[ring.bell]:
            ear.nudge(ring.topic)

    async def _send(self) -> None:
        while True:
            await self._owing.wait()
            try:
                await self._pay()
            except Exception:  # or no other process would ever be woken again
                log.exception("ring lost")

    async def _pay(self) -> None:
        self._owing.clear()
        owed, self._owed = self._owed, set()
        if not owed:
            return
        try:
            async with self._db.autocommit() as tx:
                await tx.value(SEND, channel=CHANNEL, payload=" ".join([self._me, *written(owed)]))
        except PabalError as error:
            log.warning("ring lost", why=str(error))
        except asyncio.CancelledError:
            self._owed |= owed  # whoever closes the doorbell sends it
            raise

    async def _listen(self, reach: Reach) -> None:
        absence = FIRST_ABSENCE
        while True:
            try:
                await self._listen_once(reach)
            except (*AWAY, asyncpg.PostgresError) as error:
                log.warning("doorbell deaf", why=short(error))
            except Exception:  # or this one would not
                log.exception("doorbell deaf")
            if self.listening:
                self.listening = False
                absence = FIRST_ABSENCE
            await asyncio.sleep(absence * random.uniform(0.8, 1.2))  # noqa: S311 spreads reconnects, guards nothing
            absence = min(absence * 2, LONGEST_ABSENCE)

    async def _listen_once(self, reach: Reach) -> None:
        connection = await asyncpg.connect(**arguments(reach, Ground(0, superuser=False, pooler=False)))
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(CHANNEL, self._hear)
            await self._ring_itself(connection)
            self.listening = True
            for bell in Bell:  # whatever was rung while we were deaf
                self._wake(Ring(bell))
            while not await happens(gone, self._pulse):
                await self._ring_itself(connection)
        finally:
            connection.terminate()

    async def _ring_itself(self, connection: Any) -> None:
        self._heard_itself.clear()
        async with asyncio.timeout(SELF_TEST.total_seconds()):
            await connection.execute("select pg_notify($1, $2)", CHANNEL, self._me)
            await self._heard_itself.wait()

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        """Wake for what others rang. Anybody may NOTIFY here, so what makes no sense is passed over."""
        sender, _, rung = str(payload).partition(" ")
        if sender == self._me:
            self._heard_itself.set()
            return
        for ring in map(Ring.read, rung.split()):
            if ring is not None:
                self._wake(ring)


def written(rings: Iterable[Ring]) -> list[str]:
    """How rings go into one NOTIFY; when their topics would not fit, the bells are rung for everybody."""
    whole = sorted(map(str, rings))
    return whole if len(" ".join(whole)) <= MOST_PAYLOAD else sorted({text.partition("/")[0] for text in whole})


class Ear:
    """One waiter, at one bell or several."""

    def __init__(self, waiting: "Sequence[set[Ear]]") -> None:
        self._waiting = waiting
        self._rang = asyncio.Event()
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        for each in self._waiting:
            each.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for each in self._waiting:
            each.discard(self)

    def nudge(self, topic: str = "") -> None:
        """Wake this one waiter without a ring."""
        self._topics.add(topic)
        self._rang.set()

    def heard(self) -> bool:
        """Whether it rang since somebody last asked; it is then used up."""
        rang = self._rang.is_set()
        if rang:
            self._rang.clear()
            self._topics.clear()
        return rang

    def topics(self) -> set[str]:
        """For whom it rang since somebody last asked; an empty topic among them is everybody. It is then used up."""
        topics, self._topics = self._topics, set()
        self._rang.clear()
        return topics

    async def within(self, limit: timedelta) -> bool:
        """Wait for the next ring, at most `limit`; it is then used up."""
        await happens(self._rang, limit)
        return self.heard()  # a ring that came together with the limit counts

    async def rings(self, limit: timedelta) -> bool:
        """Wait for a ring, at most `limit`, and leave it to `topics` to use it up."""
        return await happens(self._rang, limit)


async def happens(event: asyncio.Event, limit: timedelta) -> bool:
    try:
        async with asyncio.timeout(limit.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def self_test(reach: Reach) -> bool:
    """Does a NOTIFY reach a LISTEN on this connection? Behind a transaction pooler it does not."""
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    with our_words():
        connection = await asyncpg.connect(**arguments(reach, Ground(0, superuser=False, pooler=bool(reach.pooler))))
        try:
            await connection.add_listener("pabal_self_test", hear)
            await connection.execute("select pg_notify('pabal_self_test', '')")
            return await happens(heard, SELF_TEST)
        finally:
            connection.terminate()
