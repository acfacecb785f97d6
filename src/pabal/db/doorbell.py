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
from pabal.db.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.errors import CONNECTION_ERRORS, summarize_error, translate_errors
from pabal.db.pool import ConnectOptions, Database, ServerInfo, connect_arguments
from pabal.db.queries import Query

log = get_logger()

NOTIFY_QUERY = Query("notify", "select pg_notify($1, $2)", ("channel", "payload"), "doorbell")
POLL_INTERVAL = timedelta(seconds=1)
"""How long somebody who hears nothing waits before looking again: the doorbell only makes it sooner."""
SELF_TEST_TIMEOUT = timedelta(seconds=2)
KEEPALIVE_INTERVAL = timedelta(seconds=20)
"""How often the listener rings itself: a connection that died without a word is found out by its silence."""
MAX_PAYLOAD_BYTES = 7900
"""Bytes; PostgreSQL takes 7999, and the sender's name stands before."""
FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.1, 5.0


class Doorbell:
    """Rings after commit, wakes who waits.

    `reach` leads to the database itself: a pooler would swallow LISTEN. None means there is no such way, and everybody
    lives by the polling floor.
    """

    def __init__(
        self, db: Database, options: ConnectOptions | None, keepalive_interval: timedelta = KEEPALIVE_INTERVAL
    ) -> None:
        self._db = db
        self._options = options
        self._keepalive_interval = keepalive_interval
        self._sender_id = new_id().hex
        self._listeners: defaultdict[Channel, set[Listener]] = defaultdict(set)
        self._pending: set[Wakeup] = set()
        self._has_pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._self_test_received = asyncio.Event()
        self.listening = False

    async def open(self) -> None:
        self._tasks.append(asyncio.create_task(self._send_loop(), name="doorbell sends"))
        if self._options is not None:
            self._tasks.append(asyncio.create_task(self._listen_loop(self._options), name="doorbell listens"))

    async def close(self) -> None:
        """Stop listening and send what is still owed: a command rings and ends at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
                await self._send_pending()
        self.listening = False

    def notify(self, channels: Iterable[Channel]) -> None:
        """Wake everybody who waits for these bells."""
        self.broadcast(map(Wakeup, channels))

    def broadcast(self, wakeups: Iterable[Wakeup]) -> None:
        """Wake this process now and the others soon. Called after the commit, never before."""
        for ring in wakeups:
            self._wake(ring)
            self._pending.add(ring)
        self._has_pending.set()

    async def wait(self, channel: Channel, timeout: timedelta) -> bool:
        """Wait for a ring that comes after this call, at most `limit`. True when it rang."""
        with self.listen(channel) as heard:
            return await heard.wait(timeout)

    def listen(self, *channels: Channel) -> "Listener":
        """Start listening now, wait later: nothing rung in between is missed."""
        return Listener([self._listeners[bell] for bell in channels])

    def _wake(self, ring: Wakeup) -> None:
        for ear in self._listeners[ring.channel]:
            ear.wake(ring.topic)

    async def _send_loop(self) -> None:
        while True:
            await self._has_pending.wait()
            try:
                await self._send_pending()
            except Exception:  # or no other process would ever be woken again
                log.exception("ring lost")

    async def _send_pending(self) -> None:
        self._has_pending.clear()
        owed, self._pending = self._pending, set()
        if not owed:
            return
        try:
            async with self._db.autocommit() as tx:
                await tx.value(
                    NOTIFY_QUERY, channel=NOTIFY_CHANNEL, payload=" ".join([self._sender_id, *encode_wakeups(owed)])
                )
        except PabalError as error:
            log.warning("ring lost", error=str(error))
        except asyncio.CancelledError:
            self._pending |= owed  # whoever closes the doorbell sends it
            raise

    async def _listen_loop(self, reach: ConnectOptions) -> None:
        absence = FIRST_RECONNECT_DELAY
        while True:
            try:
                await self._listen_once(reach)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                log.warning("doorbell deaf", error=summarize_error(error))
            except Exception:  # or this one would not
                log.exception("doorbell deaf")
            if self.listening:
                self.listening = False
                absence = FIRST_RECONNECT_DELAY
            await asyncio.sleep(absence * random.uniform(0.8, 1.2))  # noqa: S311 spreads reconnects, guards nothing
            absence = min(absence * 2, MAX_RECONNECT_DELAY)

    async def _listen_once(self, reach: ConnectOptions) -> None:
        connection = await asyncpg.connect(**connect_arguments(reach, ServerInfo(0, superuser=False, pooler=False)))
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(NOTIFY_CHANNEL, self._on_notify)
            await self._self_test(connection)
            self.listening = True
            for bell in Channel:  # whatever was rung while we were deaf
                self._wake(Wakeup(bell))
            while not await wait_with_timeout(gone, self._keepalive_interval):
                await self._self_test(connection)
        finally:
            connection.terminate()

    async def _self_test(self, connection: Any) -> None:
        self._self_test_received.clear()
        async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
            await connection.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, self._sender_id)
            await self._self_test_received.wait()

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        """Wake for what others rang. Anybody may NOTIFY here, so what makes no sense is passed over."""
        sender, _, rung = str(payload).partition(" ")
        if sender == self._sender_id:
            self._self_test_received.set()
            return
        for ring in map(Wakeup.parse, rung.split()):
            if ring is not None:
                self._wake(ring)


def encode_wakeups(wakeups: Iterable[Wakeup]) -> list[str]:
    """How rings go into one NOTIFY; when their topics would not fit, the bells are rung for everybody."""
    whole = sorted(map(str, wakeups))
    return whole if len(" ".join(whole)) <= MAX_PAYLOAD_BYTES else sorted({text.partition("/")[0] for text in whole})


class Listener:
    """One waiter, at one bell or several."""

    def __init__(self, registries: "Sequence[set[Listener]]") -> None:
        self._registries = registries
        self._woken = asyncio.Event()
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        for each in self._registries:
            each.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for each in self._registries:
            each.discard(self)

    def wake(self, topic: str = "") -> None:
        """Wake this one waiter without a ring."""
        self._topics.add(topic)
        self._woken.set()

    def take_wakeup(self) -> bool:
        """Whether it rang since somebody last asked; it is then used up."""
        rang = self._woken.is_set()
        if rang:
            self._woken.clear()
            self._topics.clear()
        return rang

    def take_topics(self) -> set[str]:
        """For whom it rang since somebody last asked; an empty topic among them is everybody. It is then used up."""
        topics, self._topics = self._topics, set()
        self._woken.clear()
        return topics

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for the next ring, at most `limit`; it is then used up."""
        await wait_with_timeout(self._woken, timeout)
        return self.take_wakeup()  # a ring that came together with the limit counts

    async def wait_for_topics(self, timeout: timedelta) -> bool:
        """Wait for a ring, at most `limit`, and leave it to `topics` to use it up."""
        return await wait_with_timeout(self._woken, timeout)


async def wait_with_timeout(event: asyncio.Event, timeout: timedelta) -> bool:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def check_listen_notify(options: ConnectOptions) -> bool:
    """Does a NOTIFY reach a LISTEN on this connection? Behind a transaction pooler it does not."""
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    with translate_errors():
        connection = await asyncpg.connect(
            **connect_arguments(options, ServerInfo(0, superuser=False, pooler=bool(options.pooler)))
        )
        try:
            await connection.add_listener("pabal_self_test", hear)
            await connection.execute("select pg_notify('pabal_self_test', '')")
            return await wait_with_timeout(heard, SELF_TEST_TIMEOUT)
        finally:
            connection.terminate()
