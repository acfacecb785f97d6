"""The doorbell: one LISTEN connection per process, and waiting that holds no connection.

A wakeup reaches the listeners of this process at once. Other processes get it by NOTIFY after the commit, many wakeups
in one: a NOTIFY inside every transaction would take a database-wide lock at commit. A wakeup may be lost, so listeners
wait with a timeout and then read the table.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from time import monotonic
from typing import Any, Self

import asyncpg

from pabal.core.backoff import spread
from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.core.outage import OutageLog
from pabal.db.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.connect import ConnectOptions, HostDialer, ServerInfo, connect_arguments
from pabal.db.errors import CONNECTION_ERRORS, summarize_error, translate_errors
from pabal.db.load_polling import POLLING_ANNOUNCEMENT, SQL_SENDER, LoadPolling
from pabal.db.pool import Database
from pabal.db.queries import Query

log = get_logger()

NOTIFY_QUERY = Query(
    "notify",
    "select pg_notify($1, $2), set_config('synchronous_commit', 'off', true)",
    ("channel", "payload"),
    "doorbell",
)
"""A wakeup need not survive a crash, so its commit does not wait for the disk: listeners get it a write earlier."""
POLL_INTERVAL = timedelta(seconds=1)
"""How long to wait for a wakeup before polling the table."""
SELF_TEST_TIMEOUT = timedelta(seconds=2)
KEEPALIVE_INTERVAL = timedelta(seconds=5)
"""How often the process notifies itself to detect a dead connection."""
MAX_PAYLOAD_BYTES = 7900
"""PostgreSQL allows 7999; the sender's id takes the rest."""
COMMIT_NOTIFY_INTERVAL = 0.005
"""Seconds between statements of a process that notify at their own commit."""
FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.1, 5.0


class Doorbell:
    """Wakes listeners in this and other processes after a commit.

    `options` must connect to the database directly, because LISTEN does not work through a transaction pooler. With
    None, listeners only poll.
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
        self._commit_notified_at = -COMMIT_NOTIFY_INTERVAL
        self._tasks: list[asyncio.Task[None]] = []
        self._self_test_received = asyncio.Event()
        self.load_polling = LoadPolling(db, self._sender_id, lambda: self.wake_here(Wakeup(Channel.EVENTS)))
        self._outage = OutageLog("listener disconnected", "listener connected again")
        self.listening = False

    async def open(self) -> None:
        self._tasks.append(asyncio.create_task(self._send_loop(), name="doorbell sends"))
        if self._options is not None:
            self._tasks.append(asyncio.create_task(self._listen_loop(self._options), name="doorbell listens"))

    async def close(self) -> None:
        """Stop listening and send the pending wakeups: a command may end right after its commit."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.load_polling.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
                await self._send_pending()
        self.listening = False

    def notify(self, channels: Iterable[Channel]) -> None:
        """Wake all listeners of these channels."""
        self.broadcast(map(Wakeup, channels))

    def broadcast(self, wakeups: Iterable[Wakeup]) -> None:
        """Wake this process now and the others soon. Call it after the commit."""
        wakeups = [*wakeups]
        for wakeup in wakeups:
            self.wake_here(wakeup)
        self.send(wakeups)

    def send(self, wakeups: Iterable[Wakeup]) -> None:
        """Wake the other processes soon, and not this one."""
        self._pending.update(wakeups)
        if self._pending:
            self._has_pending.set()

    def reserve_commit_notification(self) -> str | None:
        """Our name as a sender, for a statement that notifies at its own commit; None if that would be too often.

        It saves the waiter a round trip, and it holds a database-wide lock during the commit's write to disk.
        """
        now = monotonic()
        if self._pending or now - self._commit_notified_at < COMMIT_NOTIFY_INTERVAL:
            return None
        self._commit_notified_at = now
        return self._sender_id

    async def wait(self, channel: Channel, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup. Returns whether there was one."""
        with self.listen(channel) as listener:
            return await listener.wait(timeout)

    def listen(self, *channels: Channel, on_wakeup: Callable[[str], bool] | None = None) -> "Listener":
        """Start listening now and wait later, without missing wakeups in between.

        `on_wakeup` is called with the topic of every wakeup and returns whether it concerns the listener.
        """
        return Listener([self._listeners[channel] for channel in channels], on_wakeup)

    def wake_here(self, wakeup: Wakeup) -> None:
        """Wake the listeners of this process only."""
        for listener in self._listeners[wakeup.channel]:
            listener.receive(wakeup.topic)

    async def _send_loop(self) -> None:
        while True:
            await self._has_pending.wait()
            try:
                await self._send_pending()
            except Exception:  # if this task ended, other processes would no longer be woken
                log.exception("notify lost")

    async def _send_pending(self) -> None:
        self._has_pending.clear()
        pending, self._pending = self._pending, set()
        if not pending:
            return
        try:
            async with self._db.autocommit() as tx:
                await tx.value(
                    NOTIFY_QUERY, channel=NOTIFY_CHANNEL, payload=" ".join([self._sender_id, *encode_wakeups(pending)])
                )
        except PabalError as error:
            log.warning("notify lost", error=str(error))
        except asyncio.CancelledError:
            self._pending |= pending  # sent by close()
            raise

    async def _listen_loop(self, options: ConnectOptions) -> None:
        delay = FIRST_RECONNECT_DELAY
        dialer = HostDialer(options.url, options.connect_timeout)
        while True:
            try:
                await self._listen_once(options, dialer)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                self._outage.record_failure(summarize_error(error))
            except Exception:  # if this task ended, this process would no longer be woken
                log.exception("listener disconnected")
            if self.listening:
                self.listening = False
                delay = FIRST_RECONNECT_DELAY
            await asyncio.sleep(spread(delay))
            delay = min(delay * 2, MAX_RECONNECT_DELAY)

    async def _listen_once(self, options: ConnectOptions, dialer: HostDialer) -> None:
        connection = await dialer.dial(connect_arguments(options, ServerInfo(0, superuser=False, pooler=False)))
        terminated = asyncio.Event()
        connection.add_termination_listener(lambda _: terminated.set())
        try:
            await connection.add_listener(NOTIFY_CHANNEL, self._on_notify)
            await self._self_test(connection)
            await self.load_polling.read(connection)
            self.listening = True
            self._outage.end()
            for channel in Channel:  # wakeups may have been missed before
                self.wake_here(Wakeup(channel))
            while not await wait_with_timeout(terminated, self._keepalive_interval):
                await self._self_test(connection)
        finally:
            connection.terminate()

    async def _self_test(self, connection: Any) -> None:
        self._self_test_received.clear()
        async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
            await connection.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, self._sender_id)
            await self._self_test_received.wait()

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        """Wake listeners for another process's notification. Any client can NOTIFY, so unknown payloads are ignored."""
        sender, _, wakeups = str(payload).partition(" ")
        if sender == self._sender_id:
            self._self_test_received.set()
            return
        if sender == SQL_SENDER:
            self.load_polling.count_notification()
        elif wakeups == POLLING_ANNOUNCEMENT:
            self.load_polling.poll_for()
        for wakeup in map(Wakeup.parse, wakeups.split()):
            if wakeup is not None:
                self.wake_here(wakeup)


def encode_wakeups(wakeups: Iterable[Wakeup]) -> list[str]:
    """Encode wakeups for one NOTIFY. If they do not fit, the channels with the most topics lose them: all listeners."""
    texts_of: defaultdict[Channel, set[str]] = defaultdict(set)
    for wakeup in wakeups:
        texts_of[wakeup.channel].add(str(wakeup))
    while len(" ".join(texts := sorted(chain.from_iterable(texts_of.values())))) > MAX_PAYLOAD_BYTES:
        longest = max(texts_of, key=lambda channel: len(texts_of[channel]))
        texts_of[longest] = {str(longest)}
    return texts


class Listener:
    """Receives wakeups of one or more channels."""

    def __init__(self, registries: "Sequence[set[Listener]]", on_wakeup: Callable[[str], bool] | None = None) -> None:
        self._registries = registries
        self._on_wakeup = on_wakeup
        self._woken = asyncio.Event()
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        for registry in self._registries:
            registry.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for registry in self._registries:
            registry.discard(self)

    def receive(self, topic: str) -> None:
        """Wake this listener if the wakeup concerns it."""
        if self._on_wakeup is None or self._on_wakeup(topic):
            self.wake(topic)

    def wake(self, topic: str = "") -> None:
        """Wake this listener only."""
        self._topics.add(topic)
        self._woken.set()

    def take_wakeup(self) -> bool:
        """Return whether there was a wakeup since the last call, and reset it."""
        woken = self._woken.is_set()
        if woken:
            self._woken.clear()
            self._topics.clear()
        return woken

    def take_topics(self) -> set[str]:
        """Return the topics of the wakeups since the last call, and reset them. The empty topic stands for all."""
        topics, self._topics = self._topics, set()
        self._woken.clear()
        return topics

    async def wait(self, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup, and reset it."""
        await wait_with_timeout(self._woken, timeout)
        return self.take_wakeup()  # also counts a wakeup that arrived together with the timeout

    async def wait_for_topics(self, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup, which `take_topics` then resets."""
        return await wait_with_timeout(self._woken, timeout)


async def wait_with_timeout(event: asyncio.Event, timeout: timedelta) -> bool:
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def check_listen_notify(options: ConnectOptions) -> bool:
    """Return whether LISTEN works on this connection. Through a transaction pooler it does not."""
    received = asyncio.Event()

    def on_notify(*_: object) -> None:
        received.set()

    with translate_errors():
        connection = await HostDialer(options.url, options.connect_timeout).dial(
            connect_arguments(options, ServerInfo(0, superuser=False, pooler=bool(options.pooler)))
        )
        try:
            await connection.add_listener("pabal_self_test", on_notify)
            await connection.execute("select pg_notify('pabal_self_test', '')")
            return await wait_with_timeout(received, SELF_TEST_TIMEOUT)
        finally:
            connection.terminate()
