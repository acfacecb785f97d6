"""Wakeups by LISTEN and NOTIFY: one connection per process that listens."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg

from pabal.core.backoff import spread
from pabal.core.log import get_logger
from pabal.core.outage import OutageLog
from pabal.db.connect import ConnectOptions, HostDialer, ServerInfo, connect_arguments
from pabal.db.doorbell.channels import NOTIFY_CHANNEL
from pabal.db.doorbell.load_polling import LoadPolling
from pabal.db.doorbell.transport import FORWARDED, ReceivePayload, TransportChanged
from pabal.db.errors import CONNECTION_ERRORS, summarize_error, translate_errors
from pabal.db.pool import Database
from pabal.db.queries import Query
from pabal.db.waiting import wait_with_timeout

log = get_logger()

NOTIFY_QUERY = Query(
    "notify",
    "select pg_notify($1, $2), set_config('synchronous_commit', 'off', true)",
    ("channel", "payload"),
    "doorbell",
)
"""A wakeup need not survive a crash, so its commit does not wait for the disk: listeners get it a write earlier."""
SELF_TEST_TIMEOUT = timedelta(seconds=2)
KEEPALIVE_INTERVAL = timedelta(seconds=5)
"""How often the process notifies itself to detect a dead connection."""
FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.1, 5.0


class NotifyTransport:
    """Sends by NOTIFY on a pooled connection, and listens on one of its own.

    `options` must connect to the database directly, because LISTEN does not work through a transaction pooler. With
    None, nothing is received.
    """

    def __init__(
        self,
        db: Database,
        options: ConnectOptions | None,
        sender_id: str,
        load_polling: LoadPolling,
        receive: ReceivePayload,
        on_change: TransportChanged,
        keepalive_interval: timedelta = KEEPALIVE_INTERVAL,
    ) -> None:
        self._db = db
        self._options = options
        self._sender_id = sender_id
        self.sender = sender_id
        """How this process calls itself in its payloads: its id, with or without a prefix."""
        self._load_polling = load_polling
        self._receive = receive
        self._on_change = on_change
        self._keepalive_interval = keepalive_interval
        self._self_test_received = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._interrupted = asyncio.Event()
        """Set when the connection ends, or is not wanted any more."""
        self._outage = OutageLog("listener disconnected", "listener connected again")
        self._reconnect_delay = FIRST_RECONNECT_DELAY
        self.is_connected = False

    def listen_if(self, *, wanted: bool) -> None:
        """Listen, or close the connection: another process may forward what it hears."""
        if wanted:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self._interrupted.set()

    async def send(self, payload: str) -> None:
        async with self._db.autocommit() as tx:
            await tx.value(NOTIFY_QUERY, channel=NOTIFY_CHANNEL, payload=payload)

    async def run(self) -> None:
        if self._options is None:
            return
        dialer = HostDialer(self._options.url, self._options.connect_timeout)
        while True:
            await self._wanted.wait()
            try:
                await self._listen_once(self._options, dialer)
            except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
                self._outage.record_failure(summarize_error(error))
            except Exception:  # if this task ended, this process would no longer be woken
                log.exception("listener disconnected")
            if self._wanted.is_set():
                await asyncio.sleep(spread(self._reconnect_delay))
                self._reconnect_delay = min(self._reconnect_delay * 2, MAX_RECONNECT_DELAY)

    async def _listen_once(self, options: ConnectOptions, dialer: HostDialer) -> None:
        connection = await dialer.dial(connect_arguments(options, ServerInfo(0, superuser=False, pooler=False)))
        self._interrupted = interrupted = asyncio.Event()
        connection.add_termination_listener(lambda _: interrupted.set())
        try:
            await connection.add_listener(NOTIFY_CHANNEL, self._on_notify)
            await self._self_test(connection)
            await self._load_polling.read(connection)
            self.is_connected, self._reconnect_delay = True, FIRST_RECONNECT_DELAY
            self._outage.end()
            self._on_change()
            while self._wanted.is_set() and not await wait_with_timeout(interrupted, self._keepalive_interval):
                await self._self_test(connection)
        finally:
            connection.terminate()
            if self.is_connected:
                self.is_connected = False
                self._on_change()

    async def _self_test(self, connection: Any) -> None:
        self._self_test_received.clear()
        async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
            await connection.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, self.sender)
            await self._self_test_received.wait()

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if str(payload).removeprefix(FORWARDED) == self._sender_id:
            self._self_test_received.set()
        else:
            self._receive(str(payload))


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
