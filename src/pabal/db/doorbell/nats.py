"""Wakeups by NATS: the server carries them between processes, and PostgreSQL has no part in it.

NATS stores nothing and confirms nothing. The client library reconnects by itself; here it does not, so that this module
knows at every moment whether the connection works, and the doorbell falls back to NOTIFY at once.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from pabal.core.backoff import spread
from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.core.nats_url import NatsServer
from pabal.core.outage import OutageLog
from pabal.db.doorbell.transport import ReceivePayload, TransportChanged
from pabal.db.waiting import wait_with_timeout

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = get_logger()

NATS_TIMEOUT = timedelta(seconds=2)
"""How long a server may take to accept a connection, or to answer a ping."""
NATS_PING_INTERVAL = timedelta(seconds=2)
FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.1, 5.0
MAX_UNREAD_PAYLOADS = 10_000
"""Payloads that wait in this process; others are dropped."""


class NatsTransport:
    """Sends and receives on one subject.

    `find_subject` returns the subject of this database: hubs of other databases may use the same server.
    """

    def __init__(
        self,
        servers: Sequence[NatsServer],
        find_subject: Callable[[], Awaitable[str]],
        receive: ReceivePayload,
        on_change: TransportChanged,
    ) -> None:
        self._servers = [*servers]
        self._find_subject = find_subject
        self._receive = receive
        self._on_change = on_change
        self._outage = OutageLog("nats disconnected", "nats connected again")
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._subject = ""
        self._reconnect_delay = FIRST_RECONNECT_DELAY
        self.was_tried = not servers
        """Whether the first attempt to connect is over."""

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    async def send(self, payload: str) -> None:
        client = self._client
        if client is None:
            raise Unavailable("NATS is disconnected")
        try:
            async with asyncio.timeout(NATS_TIMEOUT.total_seconds()):
                await client.publish(self._subject, payload.encode())
        except Exception as error:
            self._disconnect(client)
            raise Unavailable(f"NATS: {describe_nats_error(error)}") from error

    async def run(self) -> None:
        while True:
            try:
                await self._use_server(self._servers[0])
            except Exception as error:  # noqa: BLE001 the library raises errors of many kinds, and the task must go on
                self._outage.record_failure(f"{self._servers[0]}: {describe_nats_error(error)}")
            finally:
                if not self.was_tried:
                    self.was_tried = True
                    self._on_change()
            self._servers.append(self._servers.pop(0))
            await asyncio.sleep(spread(self._reconnect_delay))
            self._reconnect_delay = min(self._reconnect_delay * 2, MAX_RECONNECT_DELAY)

    async def _use_server(self, server: NatsServer) -> None:
        self._subject = await self._find_subject()
        async with connected_client(server) as (client, closed):
            untyped: Any = client  # the type of `subscribe` is not complete
            await untyped.subscribe(self._subject, cb=self._on_message, pending_msgs_limit=MAX_UNREAD_PAYLOADS)
            await ping_nats(client)  # the subscription is in effect
            self._client, self._closed, self.was_tried = client, closed, True
            self._outage.end()
            self._on_change()
            try:
                while not await wait_with_timeout(closed, NATS_PING_INTERVAL):
                    await ping_nats(client)
                    self._reconnect_delay = FIRST_RECONNECT_DELAY  # not for a server that accepts and closes
            finally:
                self._disconnect(client)
        raise Unavailable("the connection was closed")

    def _disconnect(self, client: "Client") -> None:
        """Count as disconnected at once: to close a connection takes a while, and what it refuses goes by NOTIFY."""
        if self._client is client:
            self._client = None
            self._closed.set()
            self._on_change()

    async def _on_message(self, message: "Msg") -> None:
        self._receive(message.data.decode(errors="replace"))


@asynccontextmanager
async def connected_client(server: NatsServer) -> AsyncGenerator[tuple["Client", asyncio.Event]]:
    """A connection to one server, and an event that is set when it ends."""
    from nats.aio.client import Client  # only hubs with PABAL_DOORBELL need it

    client, closed, is_connected = Client(), asyncio.Event(), False

    async def on_error(error: Exception) -> None:
        if not is_connected:  # the library would try again
            raise error

    async def on_close() -> None:
        closed.set()

    def credential(value: str | None) -> Callable[[], str] | None:
        """The library asks for credentials after it knows whether the connection is encrypted."""

        def provide() -> str:
            require_tls(client, server)
            return value or ""

        return None if value is None else provide

    try:
        async with asyncio.timeout(NATS_TIMEOUT.total_seconds()):
            await client.connect(
                f"nats://{str(server).partition('://')[2]}",
                name="pabal",
                allow_reconnect=False,
                no_echo=True,
                user=credential(server.user),
                password=credential(server.password),
                token=credential(server.token),
                tls=default_nats_tls() if server.tls else None,
                error_cb=on_error,
                closed_cb=on_close,
            )
        is_connected = True
        require_tls(client, server)
        yield client, closed
    finally:
        is_connected = True
        with suppress(Exception):
            async with asyncio.timeout(NATS_TIMEOUT.total_seconds()):
                await client.close()


def require_tls(client: "Client", server: NatsServer) -> None:
    """Refuse a server that does not encrypt: the library would send the password in the clear."""
    info: dict[str, Any] = client._server_info  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if server.tls and not info.get("tls_required"):
        raise Unavailable("the server does not require TLS, so tls:// is refused")


@cache
def default_nats_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def ping_nats(client: "Client") -> None:
    """Wait until the server has handled everything sent so far."""
    async with asyncio.timeout(NATS_TIMEOUT.total_seconds()):
        await client.flush()


async def check_nats(servers: Sequence[NatsServer]) -> None:
    """Connect to the first server that responds. Raises Unavailable with what each one said."""
    errors: list[str] = []
    for server in servers:
        try:
            async with connected_client(server) as (client, _):
                await ping_nats(client)
        except Exception as error:  # noqa: BLE001 the library raises errors of many kinds
            errors.append(f"{server}: {describe_nats_error(error)}")
        else:
            return
    raise Unavailable("; ".join(errors))


def describe_nats_error(error: BaseException) -> str:
    """The reason in one line. The library's own texts name no credentials."""
    if isinstance(error, TimeoutError):
        return f"no response within {NATS_TIMEOUT.total_seconds():g} s"
    if isinstance(error, (PabalError, OSError)):
        return str(error)
    return str(error).removeprefix("nats: ") or type(error).__name__
