"""The connections of one process to its database."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import asyncpg
import msgspec
from asyncpg import Record
from asyncpg.pool import Pool

from pabal.core.errors import Unavailable
from pabal.db.bells import Ring
from pabal.db.faults import our_words
from pabal.db.plans import Plans
from pabal.db.tx import Tx

if TYPE_CHECKING:
    from pabal.db.tx import Connection

UNREADABLE = "the database address cannot be read; a password with : / @ # ? in it must be percent-encoded"
POOLER_PORTS = frozenset({6432, 6543})  # pgbouncer's and Supabase's habits


@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach a database, and how long to wait for it."""

    url: str = field(repr=False)
    size: int = 16
    connect_timeout: timedelta = timedelta(seconds=5)
    statement_timeout: timedelta = timedelta(seconds=30)
    pooler: bool | None = None
    """Behind a transaction pooler? None means: find out."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the first connection found."""

    version: int
    superuser: bool
    pooler: bool


class Database:
    """A pool that comes back by itself after the server was away.

    Only doors open transactions: a request, a command, a worker.
    """

    def __init__(self, reach: Reach, on_commit: Callable[[set[Ring]], None] | None = None) -> None:
        self._reach = reach
        self._pool: Pool[Record] | None = None
        self._ground: Ground | None = None
        self._plans: Plans | None = None
        self.on_commit = on_commit
        self.on_counted: Callable[[Mapping[tuple[str, str], int]], None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def ground(self) -> Ground:
        if self._ground is None:
            raise Unavailable("the database is not open")
        return self._ground

    async def open(self) -> None:
        """Find out what we stand on, then fill the pool as work asks for it."""
        self._ground = ground = await survey(self._reach)
        self._plans = None if ground.pooler else Plans()
        with our_words():
            self._pool = await asyncpg.create_pool(
                min_size=0,
                max_size=self._reach.size,
                max_inactive_connection_lifetime=300,
                init=speak_json,
                reset=leave_as_is,
                **arguments(self._reach, ground),
            )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    def busy(self) -> int:
        """How many connections are in use right now."""
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[Tx]:
        """Each statement is its own transaction: the hot path of one statement is one round trip."""
        async with self._connection() as connection:
            tx = Tx(connection)
            try:
                yield tx
            finally:
                self._committed(tx)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Tx]:
        """All or nothing."""
        async with self._connection() as connection:
            tx = Tx(connection)
            async with tx.together():
                yield tx
            self._committed(tx)

    def _committed(self, tx: Tx) -> None:
        if tx.rung and self.on_commit is not None:
            self.on_commit(tx.rung)
        if tx.counted and self.on_counted is not None:
            self.on_counted(tx.counted)

    def _connection(self) -> "_Borrowed":
        if self._pool is None:
            raise Unavailable("the database is not open")
        return _Borrowed(self._pool, self._reach.connect_timeout.total_seconds(), self._plans)


class _Borrowed:
    """A pooled connection whose coming and going speaks our words, while the body between keeps its own errors."""

    __slots__ = ("_connection", "_patience", "_plans", "_pool")

    def __init__(self, pool: "Pool[Record]", patience: float, plans: Plans | None) -> None:
        self._pool = pool
        self._patience = patience
        self._plans = plans

    async def __aenter__(self) -> "Connection":
        with our_words():
            self._connection = connection = await self._pool.acquire(timeout=self._patience)
            if self._plans is not None and self._plans.are_old(connection.get_server_pid()):
                try:
                    await self._plans.renew(connection)
                except BaseException:
                    await self._pool.release(connection)
                    raise
        return connection

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            with our_words():
                await self._pool.release(self._connection)
        except Unavailable:
            if kind is None:  # otherwise what went wrong in between says more, and may be a cancellation
                raise


async def survey(reach: Reach) -> Ground:
    """Look at the server once: its version, who we are to it, whether a pooler stands in between."""
    try:
        with our_words():
            pooler = urlsplit(reach.url).port in POOLER_PORTS if reach.pooler is None else reach.pooler
            try:
                return await _survey(reach, pooler=pooler)
            except asyncpg.PostgresError as error:  # pgbouncer's "unsupported startup parameter"
                if reach.pooler is not None or pooler or "startup parameter" not in str(error):
                    raise
                return await _survey(reach, pooler=True)
    except ValueError as error:  # the driver's word for an address it cannot read
        raise Unavailable(UNREADABLE) from error


async def _survey(reach: Reach, *, pooler: bool) -> Ground:
    connection = await asyncpg.connect(**arguments(reach, Ground(0, superuser=False, pooler=pooler)))
    try:
        record = await connection.fetchrow(
            """
            select current_setting('server_version_num')::int as version,
                   r.rolsuper and exists (select from pg_roles where rolname = 'service_role') as superuser,
                   (select setting from pg_settings where name = 'statement_timeout') <> $1 as deaf
            from pg_roles r where r.rolname = session_user
            """,
            milliseconds(reach.statement_timeout),
        )
    finally:
        connection.terminate()
    assert record is not None
    # Some poolers take a session's settings and throw them away: whoever does not keep ours is one.
    swallowed = reach.pooler is None and record["deaf"]
    return Ground(record["version"], record["superuser"], pooler or swallowed)


def arguments(reach: Reach, ground: Ground) -> dict[str, Any]:
    """Build what the driver is told.

    A pooler knows no session settings and no prepared statements; a superuser puts on service_role's coat.
    """
    told: dict[str, Any] = {
        "dsn": reach.url,
        "timeout": reach.connect_timeout.total_seconds(),
        "command_timeout": reach.statement_timeout.total_seconds() + 1,
    }
    if ground.pooler:
        return told | {"statement_cache_size": 0, "server_settings": {"application_name": "pabal"}}
    settings = {
        "application_name": "pabal",
        "statement_timeout": milliseconds(reach.statement_timeout),
        "idle_in_transaction_session_timeout": "60000",
        "jit": "off",
        # Our statements are few and shaped for their indexes: planned once, and anew when a table has outgrown it.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
    }
    if ground.superuser:
        settings["role"] = "service_role"
    return told | {"server_settings": settings}


def milliseconds(span: timedelta) -> str:
    return str(max(1, span // timedelta(milliseconds=1)))


async def speak_json(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=as_json, decoder=from_json)


def from_json(text: str) -> Any:
    """Read what PostgreSQL holds as JSON; it takes numbers and depths that a fast reader refuses."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(text)
        except (RecursionError, ValueError):  # too deep, or a number of more digits than Python reads
            return text  # somebody will see what it is; a row that cannot be read at all would never be settled


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def leave_as_is(connection: object) -> None:
    """Stand in for the driver's reset query: we never change a session, so there is nothing to put back."""
