"""The connections of one process to its database."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import asyncpg
import msgspec
from asyncpg import Record
from asyncpg.pool import Pool

from pabal.core.errors import Unavailable
from pabal.core.outage import OutageLog, database_outage_log
from pabal.db.channels import Wakeup
from pabal.db.errors import translate_errors
from pabal.db.tx import CountedOutcome, Tx

if TYPE_CHECKING:
    from pabal.db.tx import PooledConnection

PLAN_CHECK_INTERVAL = 1.0
"""Seconds between checks of the table sizes, while the pool is used."""
MIN_PLANNED_ROWS = 50
"""Below this size every plan is good enough."""
REPLAN_GROWTH = 4
"""A table that grew by this factor since its statements were planned needs new plans."""

TABLE_ROW_COUNTS_SQL = """
select c.oid::bigint as oid, pg_stat_get_live_tuples(c.oid) as rows
from pg_class c
where c.relkind = 'r'
  and c.relnamespace in (select n.oid from pg_namespace n where n.nspname in ('public', 'pabal', 'notification'))
"""


class PlanRefresher:
    """Discards the generic plans of a pool's connections when tables have outgrown them.

    Connections are identified by the pid of their server process.
    """

    def __init__(self) -> None:
        self._planned_rows: dict[int, int] = {}
        self._last_check = monotonic()
        self._is_outgrown = False
        self._refreshed_backends: set[int] = set()

    def needs_refresh(self, backend_pid: int) -> bool:
        """Whether a check of the table sizes is due, or this connection has plans to discard."""
        return monotonic() - self._last_check >= PLAN_CHECK_INTERVAL or (
            self._is_outgrown and backend_pid not in self._refreshed_backends
        )

    async def refresh(self, connection: "PooledConnection") -> None:
        """Check the table sizes if that is due, and discard the connection's plans if they are outdated."""
        if monotonic() - self._last_check >= PLAN_CHECK_INTERVAL:
            self._last_check = monotonic()
            if self.update_row_counts(
                {row["oid"]: row["rows"] for row in await connection.fetch(TABLE_ROW_COUNTS_SQL)}
            ):
                self._is_outgrown = True
                self._refreshed_backends.clear()
        backend_pid = connection.get_server_pid()
        if self._is_outgrown and backend_pid not in self._refreshed_backends:
            await connection.execute("discard plans")
            self._refreshed_backends.add(backend_pid)

    def update_row_counts(self, rows: dict[int, int]) -> bool:
        """Store the table sizes; returns whether a table has outgrown its plans."""
        outgrown = False
        for table, count in rows.items():
            planned_rows = max(self._planned_rows.get(table, 0), MIN_PLANNED_ROWS)
            if count >= REPLAN_GROWTH * planned_rows:
                outgrown = True
            elif count * REPLAN_GROWTH > planned_rows:  # neither outgrown nor emptied
                continue
            self._planned_rows[table] = count
        return outgrown


INVALID_URL_TEXT = "the database URL is invalid; the characters : / @ # ? in a password must be percent-encoded"
POOLER_PORTS = frozenset({6432, 6543})  # the defaults of PgBouncer and Supabase


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


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the first connection found out about the server."""

    version: int
    superuser: bool
    pooler: bool


class Database:
    """A connection pool that recovers when the server was unavailable.

    Only entry points open transactions: an endpoint, a command, a worker, a batcher.
    """

    def __init__(self, options: ConnectOptions, on_commit: Callable[[set[Wakeup]], None] | None = None) -> None:
        self._options = options
        self._shared_slots = asyncio.Semaphore(options.pool_size - options.reserved)
        """One for each connection that work without a reserved share may use at once."""
        self._pool: Pool[Record] | None = None
        self._server_info: ServerInfo | None = None
        self._plan_refresher: PlanRefresher | None = None
        self._outage = database_outage_log()
        self.on_commit = on_commit
        self.on_outcome_counts: Callable[[Mapping[tuple[str, CountedOutcome], int]], None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def server_info(self) -> ServerInfo:
        if self._server_info is None:
            raise Unavailable("the database is not open")
        return self._server_info

    async def open(self) -> None:
        """Probe the server and create the pool. Connections are opened on demand."""
        self._server_info = server_info = await probe_server(self._options)
        self._plan_refresher = None if server_info.pooler else PlanRefresher()
        with translate_errors():
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._options.pool_size,
                max_inactive_connection_lifetime=300,
                init=register_json_codecs,
                reset=skip_reset,
                **connect_arguments(self._options, server_info),
            )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    def connections_in_use(self) -> int:
        """The number of connections in use."""
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[Tx]:
        """Run each statement in its own transaction: one statement is one round trip."""
        async with self._acquire() as connection:
            tx = Tx(connection)
            try:
                yield tx
            finally:
                self._after_commit(tx)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Tx]:
        """Run all statements of the block in one transaction."""
        async with self._acquire() as connection:
            tx = Tx(connection)
            async with tx.atomic():
                yield tx
            self._after_commit(tx)

    def _after_commit(self, tx: Tx) -> None:
        if tx.wakeups and self.on_commit is not None:
            self.on_commit(tx.wakeups)
        if tx.outcome_counts and self.on_outcome_counts is not None:
            self.on_outcome_counts(tx.outcome_counts)

    def _acquire(self, *, is_reserved: bool = False) -> "_PooledConnectionContext":
        if self._pool is None:
            raise Unavailable("the database is not open")
        return _PooledConnectionContext(
            self._pool,
            self._options.connect_timeout.total_seconds(),
            self._plan_refresher,
            None if is_reserved else self._shared_slots,
            self._outage,
        )


class ReservedDatabase(Database):
    """The same pool, for work that must not wait behind other work: a share of the connections is kept for it."""

    def __init__(self, shared: Database) -> None:
        super().__init__(shared._options)  # noqa: SLF001 the same module
        self._shared = shared

    def _acquire(self, *, is_reserved: bool = True) -> "_PooledConnectionContext":
        return self._shared._acquire(is_reserved=is_reserved)  # noqa: SLF001 the same module

    def _after_commit(self, tx: Tx) -> None:
        self._shared._after_commit(tx)  # noqa: SLF001 the same module


class _PooledConnectionContext:
    """Acquires and releases a connection, translating the errors of both but not those of the block."""

    __slots__ = ("_connection", "_outage", "_plan_refresher", "_pool", "_slots", "_timeout")

    def __init__(
        self,
        pool: "Pool[Record]",
        timeout: float,
        plan_refresher: PlanRefresher | None,
        slots: asyncio.Semaphore | None,
        outage: OutageLog,
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        self._plan_refresher = plan_refresher
        self._slots = slots
        self._outage = outage

    async def __aenter__(self) -> "PooledConnection":
        try:
            return await self._acquire()
        except Unavailable as error:
            self._outage.record_failure(error)
            raise

    async def _acquire(self) -> "PooledConnection":
        if self._slots is None:
            return await self._connect()
        await self._take_slot(self._slots)
        try:
            return await self._connect()
        except BaseException:
            self._slots.release()
            raise

    async def _take_slot(self, slots: asyncio.Semaphore) -> None:
        if not slots.locked():
            await slots.acquire()  # does not wait
            return
        with translate_errors():
            async with asyncio.timeout(self._timeout):
                await slots.acquire()

    async def _connect(self) -> "PooledConnection":
        with translate_errors():
            self._connection = connection = await self._pool.acquire(timeout=self._timeout)
            if self._plan_refresher is not None and self._plan_refresher.needs_refresh(connection.get_server_pid()):
                try:
                    await self._plan_refresher.refresh(connection)
                except BaseException:
                    await self._pool.release(connection)
                    raise
        return connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, Unavailable):
            self._outage.record_failure(error)
        elif self._outage.is_open and error is None:
            self._outage.record_success()
        try:
            with translate_errors():
                await self._pool.release(self._connection)
        except Unavailable:
            if kind is None:  # otherwise keep the error of the block, which may be a cancellation
                raise
        finally:
            if self._slots is not None:
                self._slots.release()


async def probe_server(options: ConnectOptions) -> ServerInfo:
    """Connect once to find the server's version, our privileges, and whether there is a pooler."""
    try:
        with translate_errors():
            pooler = urlsplit(options.url).port in POOLER_PORTS if options.pooler is None else options.pooler
            try:
                return await _probe_once(options, pooler=pooler)
            except asyncpg.PostgresError as error:  # pgbouncer's "unsupported startup parameter"
                if options.pooler is not None or pooler or "startup parameter" not in str(error):
                    raise
                return await _probe_once(options, pooler=True)
    except ValueError as error:  # the driver cannot parse the URL
        raise Unavailable(INVALID_URL_TEXT) from error


async def _probe_once(options: ConnectOptions, *, pooler: bool) -> ServerInfo:
    connection = await asyncpg.connect(**connect_arguments(options, ServerInfo(0, superuser=False, pooler=pooler)))
    try:
        record = await connection.fetchrow(
            """
            select current_setting('server_version_num')::int as version,
                   r.rolsuper and exists (select from pg_roles where rolname = 'service_role') as superuser,
                   (select setting from pg_settings where name = 'statement_timeout') <> $1 as ignores_settings
            from pg_roles r where r.rolname = session_user
            """,
            to_milliseconds(options.statement_timeout),
        )
    finally:
        connection.terminate()
    assert record is not None
    # Some poolers accept session settings and ignore them.
    is_pooler = pooler or (options.pooler is None and record["ignores_settings"])
    return ServerInfo(record["version"], record["superuser"], is_pooler)


def connect_arguments(options: ConnectOptions, server_info: ServerInfo) -> dict[str, Any]:
    """The arguments of asyncpg.connect.

    A pooler supports neither session settings nor prepared statements. A superuser takes the role service_role.
    """
    arguments: dict[str, Any] = {
        "dsn": options.url,
        "timeout": options.connect_timeout.total_seconds(),
        "command_timeout": options.statement_timeout.total_seconds() + 1,
    }
    if server_info.pooler:
        return arguments | {"statement_cache_size": 0, "server_settings": {"application_name": "pabal"}}
    settings = {
        "application_name": "pabal",
        "statement_timeout": to_milliseconds(options.statement_timeout),
        "idle_in_transaction_session_timeout": "60000",
        "jit": "off",
        # The statements are few and written for their indexes: planned once, and again when a table has outgrown it.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
    }
    if server_info.superuser:
        settings["role"] = "service_role"
    return arguments | {"server_settings": settings}


def to_milliseconds(duration: timedelta) -> str:
    return str(max(1, duration // timedelta(milliseconds=1)))


async def register_json_codecs(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encode_jsonb, decoder=decode_jsonb)


def decode_jsonb(text: str) -> Any:
    """Decode JSON. PostgreSQL stores numbers and nesting depths that msgspec refuses."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(text)
        except (RecursionError, ValueError):  # nested too deep, or a number with too many digits for Python
            return text  # a row that cannot be decoded could never be settled


def encode_jsonb(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def skip_reset(connection: object) -> None:
    """Replace the driver's reset query, which costs a round trip: no code here changes session state."""
