"""The connections of one process to its database."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import asyncpg
from asyncpg import Record
from asyncpg.pool import Pool

from pabal.core.errors import DATABASE_UNAVAILABLE, SchemaMismatch, Unavailable
from pabal.db.connect import (
    ANSWER_MARGIN,
    AnswerClock,
    ConnectOptions,
    HostDialer,
    HubConnection,
    ServerInfo,
    connect_arguments,
    probe_server,
)
from pabal.db.doorbell.channels import Wakeup
from pabal.db.errors import CONNECTION_ERRORS, translate_errors
from pabal.db.monitor import PoolMonitor
from pabal.db.plans import PlanRefresher
from pabal.db.schema_fit import SchemaFit
from pabal.db.stored_json import decode_jsonb, encode_jsonb
from pabal.db.tx import CountedOutcome, Tx

if TYPE_CHECKING:
    from pabal.db.tx import DriverConnection


IDLE_LIFETIME = timedelta(minutes=1)
"""After this time an unused connection is closed, so that a quiet process holds few of them."""


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
        self._schema_fit = SchemaFit()
        self._answers = AnswerClock()
        self._dialer: HostDialer | None = None
        self._monitor = PoolMonitor(self._answers, options.connect_timeout, self._dial, self._replace_idle)
        self._deadline = options.statement_timeout + ANSWER_MARGIN
        """How long one statement of this view of the pool may take."""
        self.on_commit = on_commit
        self.on_connect: Callable[[], None] | None = None
        """Called for every new connection before its first use: the server may have lost what was committed last."""
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
        self._dialer = HostDialer(self._options.url, self._options.connect_timeout, self._answers)
        self._server_info = server_info = await probe_server(self._options, self._dialer)
        self._plan_refresher = None if server_info.pooler else PlanRefresher()
        with translate_errors():
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._options.pool_size,
                max_inactive_connection_lifetime=IDLE_LIFETIME.total_seconds(),
                connect=self._dial_pooled,
                connection_class=HubConnection,
                init=declare_types,
                reset=skip_reset,
            )
        self._monitor.start()

    async def close(self) -> None:
        await self._monitor.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def _dial(self, timeout: timedelta | None = None) -> HubConnection:
        assert self._dialer is not None
        return await self._dialer.dial(connect_arguments(self._options, self.server_info), timeout)

    async def _dial_pooled(self, *_: object, **__: object) -> HubConnection:
        try:
            connection = await self._dial()
        except CONNECTION_ERRORS as error:
            self._monitor.suspect(error)
            raise
        self._monitor.register(connection)
        if self.on_connect is not None:
            self.on_connect()
        return connection

    async def _replace_idle(self) -> None:
        if self._pool is not None:
            await self._pool.expire_connections()

    def with_deadline(self, deadline: timedelta) -> "Database":
        """The same pool, for statements that may take at most `deadline` each."""
        return DatabaseView(self, deadline, is_reserved=False)

    async def require_fitting_schema(self) -> None:
        """Raise SchemaMismatch if a statement was rejected because of the schema, and it is still not ours."""
        if self._schema_fit.is_mismatch:
            async with self._acquire() as connection:
                if mismatch := await self._schema_fit.check(connection, self._deadline.total_seconds()):
                    raise mismatch

    def connections_in_use(self) -> int:
        """The number of connections in use."""
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[Tx]:
        """Run each statement in its own transaction: one statement is one round trip."""
        async with self._acquire() as connection:
            tx = Tx(connection, self._deadline.total_seconds())
            try:
                yield tx
            finally:
                self._after_commit(tx)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Tx]:
        """Run all statements of the block in one transaction."""
        async with self._acquire() as connection:
            tx = Tx(connection, self._deadline.total_seconds())
            async with tx.atomic():
                yield tx
            self._after_commit(tx)

    def _after_commit(self, tx: Tx) -> None:
        if tx.wakeups and self.on_commit is not None:
            self.on_commit(tx.wakeups)
        if tx.outcome_counts and self.on_outcome_counts is not None:
            self.on_outcome_counts(tx.outcome_counts)

    def _acquire(self) -> "_PooledConnectionContext":
        return self._acquire_for(self._deadline, is_reserved=False)

    def _acquire_for(self, deadline: timedelta, *, is_reserved: bool) -> "_PooledConnectionContext":
        if self._pool is None:
            raise Unavailable("the database is not open")
        self._monitor.refuse_during_outage()
        return _PooledConnectionContext(
            self._pool,
            self._options.connect_timeout.total_seconds(),
            deadline.total_seconds(),
            self._plan_refresher,
            None if is_reserved else self._shared_slots,
            self._monitor,
            self._schema_fit,
        )


class DatabaseView(Database):
    """The pool of another database object, with another deadline for its statements."""

    def __init__(self, shared: Database, deadline: timedelta, *, is_reserved: bool) -> None:
        super().__init__(shared._options)  # noqa: SLF001 the same module
        self._shared = shared
        self._schema_fit = shared._schema_fit  # noqa: SLF001 the same module
        self._is_reserved = is_reserved
        self._deadline = min(deadline, self._deadline)

    @property
    def server_info(self) -> ServerInfo:
        return self._shared.server_info

    def _acquire(self) -> "_PooledConnectionContext":
        return self._shared._acquire_for(self._deadline, is_reserved=self._is_reserved)  # noqa: SLF001 the same module

    def _after_commit(self, tx: Tx) -> None:
        self._shared._after_commit(tx)  # noqa: SLF001 the same module


class ReservedDatabase(DatabaseView):
    """The same pool, for work that must not wait behind other work: a share of the connections is kept for it."""

    def __init__(self, shared: Database, deadline: timedelta | None = None) -> None:
        super().__init__(shared, deadline or shared._deadline, is_reserved=True)  # noqa: SLF001 the same module


class _PooledConnectionContext:
    """Acquires and releases a connection, translating the errors of both but not those of the block."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_monitor",
        "_plan_refresher",
        "_pool",
        "_schema_fit",
        "_slots",
        "_timeout",
    )

    def __init__(
        self,
        pool: "Pool[Record]",
        timeout: float,
        deadline: float,
        plan_refresher: PlanRefresher | None,
        slots: asyncio.Semaphore | None,
        monitor: PoolMonitor,
        schema_fit: SchemaFit,
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        self._deadline = deadline
        self._plan_refresher = plan_refresher
        self._slots = slots
        self._monitor = monitor
        self._schema_fit = schema_fit

    async def __aenter__(self) -> "DriverConnection":
        try:
            return await self._acquire()
        except Unavailable as error:
            self._monitor.outage_log.record_failure(error)
            raise

    async def _acquire(self) -> "DriverConnection":
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
        try:
            async with asyncio.timeout(self._timeout):
                await slots.acquire()
        except TimeoutError:
            reason = f"no free connection in the pool for {self._timeout:g} s"
            raise Unavailable(DATABASE_UNAVAILABLE + reason, nothing_sent=True) from None
        try:
            self._monitor.refuse_during_outage()
        except Unavailable:
            slots.release()
            raise

    async def _connect(self) -> "DriverConnection":
        with translate_errors():
            self._connection = connection = await self._pool.acquire(timeout=self._timeout)
        self._monitor.begin_use()
        if self._plan_refresher is not None and self._plan_refresher.needs_refresh(connection.get_server_pid()):
            try:
                with translate_errors():
                    await self._plan_refresher.refresh(connection, self._deadline)
            except BaseException as error:
                self._monitor.end_use(error)
                with suppress(Unavailable), translate_errors():  # the monitor may terminate it at the same time
                    await self._pool.release(connection)
                raise
        return connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        mismatch: SchemaMismatch | None = None
        try:
            if self._schema_fit.needs_check(error):
                mismatch = await self._schema_fit.check(self._connection, self._deadline)
        finally:
            self._monitor.end_use(error)
            await self._release(is_failed=kind is not None)
        if mismatch:
            raise mismatch from error

    async def _release(self, *, is_failed: bool) -> None:
        try:
            with translate_errors():
                await self._pool.release(self._connection)
        except Unavailable:
            if not is_failed:  # otherwise keep the error of the block, which may be a cancellation
                raise
        finally:
            if self._slots is not None:
                self._slots.release()


ARRAY_TYPES = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "inet": (1041, 869),
    "timestamptz": (1185, 1184),
    "interval": (1187, 1186),
    "numeric": (1231, 1700),
    "uuid": (2951, 2950),
    "jsonb": (3807, 3802),
}
"""The fixed ids of PostgreSQL's array types and of their elements."""


async def declare_types(connection: Any) -> None:
    """Tell the driver the types of our statements.

    Otherwise it asks the server about each array type, on every new connection, with a statement that takes a second if
    JIT compilation is on. Through a transaction pooler the driver cannot turn it off for that statement.
    """
    await register_json_codecs(connection)
    types = [
        {"oid": array, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": ","}
        | dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
        for name, (array, element) in ARRAY_TYPES.items()
    ]
    connection._protocol.get_settings().register_data_types(types)  # noqa: SLF001 the driver has no other access


async def register_json_codecs(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encode_jsonb, decoder=decode_jsonb)


async def skip_reset(connection: object) -> None:
    """Replace the driver's reset query, which costs a round trip: no code here changes session state."""
