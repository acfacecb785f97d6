"""Run a command against the database: a query, a transaction, or a whole hub.

Queries and transactions do without the hub, whose modules take half a second of CPU to import.
"""

import asyncio
import getpass
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from pabal.cli.database_settings import DatabaseSettings, database_settings, load_database_settings
from pabal.cli.options import Connection
from pabal.cli.target import DatabaseTarget, attach_or_start_target, require_data_dir
from pabal.core.actor import Actor
from pabal.core.errors import SetupError
from pabal.db.migrate import load_migrations, read_migration_status
from pabal.db.pool import ConnectOptions, Database
from pabal.db.schema import check_migration_status
from pabal.db.tx import Tx

if TYPE_CHECKING:
    from pabal.hub import Hub

ResultT = TypeVar("ResultT")
COMMAND_POOL_SIZE = 2


def run_query(connection: Connection, query: Callable[[Tx], Awaitable[ResultT]]) -> ResultT:
    """Run a query; each statement is its own transaction."""
    settings = load_database_settings(connection)

    async def run(target: DatabaseTarget) -> ResultT:
        async with open_database(settings, target) as db, db.autocommit() as tx:
            return await query(tx)

    return run_on_target(settings, run)


def run_transaction(connection: Connection, change: Callable[[Tx], Awaitable[ResultT]]) -> ResultT:
    """Run a change in one transaction and notify running hubs after the commit."""
    return run_transactions(connection, lambda db: commit(db, change))


async def commit(db: Database, change: Callable[[Tx], Awaitable[ResultT]]) -> ResultT:
    async with db.transaction() as tx:
        return await change(tx)


def run_transactions(connection: Connection, change: Callable[[Database], Awaitable[ResultT]]) -> ResultT:
    """Run a change that opens its own transactions; running hubs are notified after each commit."""
    from pabal.core.log import configure_logging
    from pabal.db.doorbell.doorbell import Doorbell
    from pabal.queue.throughput import ThroughputCounter

    settings = load_database_settings(connection)
    configure_logging(settings.log_level, settings.log_format)

    async def run(target: DatabaseTarget) -> ResultT:
        async with open_database(settings, target) as db:
            doorbell, throughput = Doorbell(db, None), ThroughputCounter(db)
            db.on_commit, db.on_outcome_counts = doorbell.broadcast, throughput.add_counts
            await throughput.open()
            await doorbell.open()
            try:
                return await change(db)
            finally:
                await doorbell.close()
                await throughput.close()

    return run_on_target(settings, run)


def with_hub(connection: Connection, action: Callable[["Hub"], Awaitable[ResultT]]) -> ResultT:
    """Open a hub on the database for one action. Use it where keys, templates or HTTP clients are needed."""
    from pabal.core.log import configure_logging
    from pabal.hub import open_hub
    from pabal.settings import load_settings

    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)

    async def run(target: DatabaseTarget) -> ResultT:
        async with open_hub(settings, target.urls) as hub:
            return await action(hub)

    return run_on_target(database_settings(settings), run)


def run_on_target(settings: DatabaseSettings, action: Callable[[DatabaseTarget], Awaitable[ResultT]]) -> ResultT:
    require_data_dir(settings)

    async def run() -> ResultT:
        await require_current_schema(target)
        return await action(target)

    with attach_or_start_target(settings) as target:
        return asyncio.run(run())


@asynccontextmanager
async def open_database(settings: DatabaseSettings, target: DatabaseTarget) -> AsyncGenerator[Database]:
    options = ConnectOptions(
        target.urls.main,
        pool_size=COMMAND_POOL_SIZE,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pooler=settings.database_pooler,
        prepared=settings.database_prepared,
    )
    async with Database(options) as db:
        yield db


async def require_current_schema(target: DatabaseTarget) -> None:
    """Refuse a schema other than the one this version was written for."""
    status = await read_migration_status(target.direct_url)
    check_migration_status(status, load_migrations())
    if status.pending:
        raise SetupError(f"Migrations pending: {len(status.pending)}. Run `pabal migrate up` first")


def cli_actor() -> Actor:
    """The user of this terminal, for the audit log."""
    try:
        return Actor(f"cli:{getpass.getuser()}")
    except (OSError, KeyError):
        return Actor(f"cli:{os.getuid()}")
