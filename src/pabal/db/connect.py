"""Connect to the database: the hosts of its URL one by one, on sockets that notice a dead peer."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import asyncpg

from pabal.core.database_url import DatabaseHost, parse_database_url
from pabal.core.errors import Unavailable
from pabal.db.errors import CONNECTION_ERRORS, summarize_error, translate_errors

if TYPE_CHECKING:
    BaseConnection = asyncpg.Connection[asyncpg.Record]
else:
    BaseConnection = asyncpg.Connection

INVALID_URL_TEXT = "the database URL is invalid; the characters : / @ # ? in a password must be percent-encoded"
POOLER_PORTS = frozenset({6432, 6543})  # the defaults of PgBouncer and Supabase

HOST_TIMEOUT = timedelta(seconds=1.5)
"""How long one of several hosts may take: a silent host must not keep the next one from being tried."""
UNACKNOWLEDGED_TIMEOUT = timedelta(seconds=8)
"""How long sent bytes may stay unacknowledged before the kernel ends the connection, on both sides."""
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 5, 2, 3  # seconds, seconds, probes; on both sides
DISCONNECT_CHECK_INTERVAL = timedelta(seconds=2)
"""How often the server checks, while it executes a statement or waits for a lock, that the client is still there."""
ANSWER_MARGIN = timedelta(seconds=1)
"""How much longer to wait for an answer than the server may take for a statement."""
CANCEL_WINDOW = 1.0
"""A cancel request needs a connection of its own, so it is sent only if the server answered within these seconds."""

PLANNER_SETTINGS = {
    "jit": "off",
    # The statements are few and written for their indexes: planned once, and again when a table has outgrown it.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
}

BUSY_BACKENDS = """
select pid from pg_stat_activity
where datname = current_database() and application_name = 'pabal'
  and (
      coalesce(state, 'disabled') = 'disabled'
      or state = 'active' and wait_event is distinct from 'ClientRead'
      or state_change > now() - interval '1 second'
  )
"""
"""The hub's backends that execute a statement, our own among them, or whose answer may still be on its way."""

SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL,
    "TCP_KEEPCNT": KEEPALIVE_COUNT,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_TIMEOUT // timedelta(milliseconds=1),
}

NEXT_HOST_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,  # it starts, stops, or is a standby without connections
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TargetServerAttributeNotMatched,  # a standby
)
"""Errors after which the next host is tried. A wrong password is not one of them."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to connect to a database."""

    url: str = field(repr=False)
    pool_size: int = 16
    reserved: int = 0
    """How many of the connections only a `ReservedDatabase` may use."""
    connect_timeout: timedelta = timedelta(seconds=5)
    statement_timeout: timedelta = timedelta(seconds=30)
    pooler: bool | None = None
    """Whether the URL leads to a transaction pooler; None to detect it."""
    prepared: bool = False
    """Whether the pooler keeps prepared statements."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the first connection found out about the server."""

    version: int
    superuser: bool
    pooler: bool
    detects_disconnect: bool = False
    """Whether the server can check for a lost client while it executes a statement. It cannot on Windows."""


class AnswerClock:
    """When the server last answered on any connection of a pool."""

    __slots__ = ("last_answer",)

    def __init__(self) -> None:
        self.last_answer = monotonic()

    def record_answer(self) -> None:
        self.last_answer = monotonic()


class HubConnection(BaseConnection):
    """A connection that does not wait for a dead server when a statement times out or is cancelled.

    The driver sends a cancel request over a new connection to the same host, and waits for it. That is right for a slow
    statement. A server that has been silent may be unreachable, so the connection is terminated instead.
    """

    host: DatabaseHost | None = None
    answers: AnswerClock | None = None
    waiting_since: float | None = None
    """When the statement was sent that has no answer yet."""

    async def execute(self, *args: Any, **options: Any) -> str:
        self.waiting_since = monotonic()
        try:
            return await super().execute(*args, **options)
        finally:
            self.waiting_since = None

    async def _execute(self, *args: Any, **options: Any) -> Any:
        self.waiting_since = monotonic()
        try:
            return await super()._execute(*args, **options)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        finally:
            self.waiting_since = None

    def _cancel_current_command(self, waiter: Any, cancel_waiter: Any = None) -> None:
        if self.answers is not None and monotonic() - self.answers.last_answer < CANCEL_WINDOW:
            super()._cancel_current_command(waiter, cancel_waiter)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            # Not at once: the driver still uses the statement's future after this call.
            asyncio.get_running_loop().call_soon(self.terminate)

    async def _cancel(self, waiter: Any, cancel_waiter: Any = None) -> None:
        timer = asyncio.get_running_loop().call_later(HOST_TIMEOUT.total_seconds(), self.terminate)
        try:
            await super()._cancel(waiter, cancel_waiter)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        finally:
            timer.cancel()


class HostDialer:
    """Connects to the first host that answers: the last one that worked, then the others in the order of the URL.

    Of several hosts only a writable one is taken, unless the URL says otherwise.
    """

    def __init__(self, url: str, connect_timeout: timedelta, answers: AnswerClock | None = None) -> None:
        try:
            self._url = parse_database_url(url)
        except ValueError:
            raise Unavailable(INVALID_URL_TEXT) from None
        self._connect_timeout = connect_timeout
        self._answers = answers
        self._hosts: list[DatabaseHost | None] = [*self._url.hosts] or [None]

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(host.port for host in self._url.hosts)

    async def dial(self, arguments: dict[str, Any], timeout: timedelta | None = None) -> HubConnection:
        """Connect to a host with these arguments of asyncpg.connect. `timeout` applies to each host.

        Raises the error of the only host, or one that names the errors of all hosts: a TimeoutError if all were.
        """
        reasons: list[str] = []
        error_class: type[OSError] = TimeoutError
        for host in self._hosts.copy():
            try:
                connection = await self._dial_host(host, timeout or self._host_timeout(), arguments)
            except NEXT_HOST_ERRORS as error:
                if len(self._hosts) == 1:
                    raise
                reasons.append(f"{host}: {summarize_error(error)}")
                if not isinstance(error, TimeoutError):
                    error_class = ConnectionError
                continue
            self._prefer(host)
            return connection
        raise error_class("; ".join(reasons))

    async def _dial_host(
        self, host: DatabaseHost | None, timeout: timedelta, arguments: dict[str, Any]
    ) -> HubConnection:
        if host is not None:
            arguments = arguments | {"host": host.name, "port": host.port}
        if len(self._hosts) > 1:
            arguments = arguments | {"target_session_attrs": self._url.session_attributes or "read-write"}
        connection = await asyncpg.connect(
            self._url.driver_url, timeout=timeout.total_seconds(), connection_class=HubConnection, **arguments
        )
        connection.host, connection.answers = host, self._answers
        detect_dead_server(connection)
        if self._answers is not None:
            self._answers.record_answer()
        return connection

    def _host_timeout(self) -> timedelta:
        if self._url.host_timeout is not None:
            return self._url.host_timeout
        limit = self._connect_timeout
        return limit if len(self._hosts) == 1 else min(limit, HOST_TIMEOUT)

    def _prefer(self, host: DatabaseHost | None) -> None:
        if self._hosts[0] != host:
            from pabal.core.log import get_logger  # not at import: commands do without it

            get_logger().info("database host changed", host=str(host))
            self._hosts.remove(host)
            self._hosts.insert(0, host)


def detect_dead_server(connection: HubConnection) -> None:
    """Let the kernel end the connection if the server's host no longer acknowledges."""
    transport: Any = connection._transport  # noqa: SLF001 the driver has no other access  # pyright: ignore[reportAttributeAccessIssue]
    peer = transport.get_extra_info("socket")
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in SOCKET_OPTIONS.items():
            if hasattr(socket, name):  # not every option exists on every system
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except (OSError, ValueError):
        return  # a Unix socket, or the server has disconnected already, for which uvloop raises ValueError


async def find_unanswered(probe: HubConnection, connections: Sequence[HubConnection]) -> Sequence[HubConnection]:
    """Those of these waiting connections whose statement the server does not execute: their answer will not come.

    A pooler hides which backend works for which connection. If fewer backends work than connections wait, all are lost.
    """
    async with probe.transaction():
        await probe.execute("set local role none")  # the login sees what its own sessions do, service_role does not
        busy = {record["pid"] for record in await probe.fetch(BUSY_BACKENDS)}
    if probe.get_server_pid() in busy:
        return [connection for connection in connections if connection.get_server_pid() not in busy]
    others = len(busy) - 1
    return connections if len(connections) > others else ()


async def probe_server(options: ConnectOptions, dialer: HostDialer | None = None) -> ServerInfo:
    """Connect once to find the server's version, our privileges, and whether there is a pooler."""
    dialer = dialer or HostDialer(options.url, options.connect_timeout)
    try:
        with translate_errors():
            pooler = not POOLER_PORTS.isdisjoint(dialer.ports) if options.pooler is None else options.pooler
            try:
                return await _probe_once(options, dialer, pooler=pooler)
            except asyncpg.PostgresError as error:  # pgbouncer's "unsupported startup parameter"
                if options.pooler is not None or pooler or "startup parameter" not in str(error):
                    raise
                return await _probe_once(options, dialer, pooler=True)
    except ValueError as error:  # the driver cannot parse the URL
        raise Unavailable(INVALID_URL_TEXT) from error


async def _probe_once(options: ConnectOptions, dialer: HostDialer, *, pooler: bool) -> ServerInfo:
    connection = await dialer.dial(connect_arguments(options, ServerInfo(0, superuser=False, pooler=pooler)))
    try:
        record = await connection.fetchrow(
            """
            select current_setting('server_version_num')::int as version,
                   r.rolsuper and exists (select from pg_roles where rolname = 'service_role') as superuser,
                   (select setting from pg_settings where name = 'statement_timeout') <> $1 as ignores_settings,
                   version() !~* 'visual c|mingw|windows' as detects_disconnect
            from pg_roles r where r.rolname = session_user
            """,
            to_milliseconds(options.statement_timeout),
        )
    finally:
        connection.terminate()
    assert record is not None
    # Some poolers accept session settings and ignore them.
    is_pooler = pooler or (options.pooler is None and record["ignores_settings"])
    return ServerInfo(record["version"], record["superuser"], is_pooler, record["detects_disconnect"])


def connect_arguments(options: ConnectOptions, server_info: ServerInfo) -> dict[str, Any]:
    """The arguments of asyncpg.connect, without the URL and the host.

    A pooler supports no session settings, and prepared statements only if it says so. A superuser takes the role
    service_role.
    """
    arguments: dict[str, Any] = {"command_timeout": (options.statement_timeout + ANSWER_MARGIN).total_seconds()}
    if server_info.pooler:
        arguments["server_settings"] = {"application_name": "pabal"}
        return arguments if options.prepared else arguments | {"statement_cache_size": 0}
    settings = {
        "application_name": "pabal",
        "statement_timeout": to_milliseconds(options.statement_timeout),
        "idle_in_transaction_session_timeout": "60000",
        **PLANNER_SETTINGS,
        # A client that vanished must not keep its locks. The server ignores these on a Unix socket.
        "tcp_user_timeout": to_milliseconds(UNACKNOWLEDGED_TIMEOUT),
        "tcp_keepalives_idle": str(KEEPALIVE_IDLE),
        "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL),
        "tcp_keepalives_count": str(KEEPALIVE_COUNT),
    }
    if server_info.detects_disconnect:
        settings["client_connection_check_interval"] = to_milliseconds(DISCONNECT_CHECK_INTERVAL)
    if server_info.superuser:
        settings["role"] = "service_role"
    return arguments | {"server_settings": settings}


def to_milliseconds(duration: timedelta) -> str:
    return str(max(1, duration // timedelta(milliseconds=1)))


def is_server_unreachable(error: BaseException) -> bool:
    """Whether an error means that the connection or its server is lost. A server that refuses us is reachable."""
    return isinstance(error, CONNECTION_ERRORS) and not isinstance(
        error,
        (
            asyncpg.QueryCanceledError,
            asyncpg.InsufficientResourcesError,
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InvalidCatalogNameError,
        ),
    )
