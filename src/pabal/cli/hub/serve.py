"""`pabal up|serve|work`: run the hub, or one half of it."""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Annotated, Any

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import require_current_schema
from pabal.cli.database_settings import database_settings
from pabal.cli.events.handlers_app import load_handlers
from pabal.cli.hub.migrate import migrate_target
from pabal.cli.hub.run import run_until_stopped
from pabal.cli.hub.start import first_admin_password, greet, retry_until_available, socket_url, start_hub
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Host, Port
from pabal.cli.output import print_text
from pabal.cli.processes.child import supervisor_link
from pabal.cli.processes.listener import InheritedSockets, bind_listener, inherited_sockets, open_listener
from pabal.cli.processes.supervisor import Supervisor
from pabal.cli.target import DatabaseTarget, running_target, start_target
from pabal.core.errors import SetupError
from pabal.core.log import configure_logging, get_logger
from pabal.db import embedded
from pabal.db.pool import Database
from pabal.events.consume.handlers import EventHandlers
from pabal.hub import connect_options
from pabal.keys.webhook_secret import ensure_webhook_secret, with_webhook_secret
from pabal.settings import Settings, load_settings

logger = get_logger()

MAX_OPEN_FILES = 1 << 20
SERVER_CHECK_INTERVAL = 0.5
"""Seconds between two checks of the embedded server."""

HandlersApp = Annotated[
    str | None, Parameter(help="Event handlers to run: module:name of a pabal_client.App, relative to this directory.")
]
ProgramName = Annotated[
    str | None, Parameter(help="Name of the program among those of its service. Default: the value of --app.")
]
Processes = Annotated[
    int | None,
    Parameter(help="Number of processes on the port, under a supervisor. [PABAL_PROCESSES]", validator=Number(gte=1)),
]


def up_command(
    *, host: Host = None, port: Port = None, processes: Processes = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Run the whole hub: database, API, workers and console."""
    settings = load_server_settings(connection, host=host, port=port, processes=processes)
    if inherited := inherited_sockets(os.environ):
        run_event_loop(run_child(settings, inherited, run_workers=True))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during the start, SIGTERM stops it as Ctrl-C does
    with open_listener(settings) as listener, start_target(database_settings(settings)) as target:
        complete = ensure_webhook_secret(settings) if target.server else settings
        run_event_loop(run_whole_hub(complete, target, listener))


def serve_command(
    *, host: Host = None, port: Port = None, processes: Processes = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Run the API and the console only.

    Uses the database of a running hub or an external one.
    """
    settings = load_server_settings(connection, host=host, port=port, processes=processes)
    if inherited := inherited_sockets(os.environ):
        run_event_loop(run_child(settings, inherited, run_workers=False))
        return
    with open_listener(settings) as listener:
        run_event_loop(run_server(settings, running_target(database_settings(settings)), listener))


def work_command(
    *, app: HandlersApp = None, program: ProgramName = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Run the workers and chores only.

    Uses the database of a running hub or an external one.
    """
    settings = load_server_settings(connection)
    handlers = load_handlers(app, program) if app else None
    target = running_target(database_settings(settings))
    with bind_work_listener(settings) as listener:
        run_event_loop(run_work(settings, target, listener, handlers))


def load_server_settings(connection: Connection, **options: object) -> Settings:
    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url, **options)
    configure_logging(settings.log_level, settings.log_format)
    return with_webhook_secret(settings)


def bind_work_listener(settings: Settings) -> "socket.socket | nullcontext[None]":
    if settings.work_port is None:
        return nullcontext()
    return bind_listener(settings.work_host, settings.work_port, "PABAL_WORK_HOST and PABAL_WORK_PORT")


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed: every stream needs one, and the default is often 1024."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    target_limit = MAX_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, MAX_OPEN_FILES)
    if soft_limit < target_limit:
        with suppress(ValueError, OSError):  # some kernels allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (target_limit, hard_limit))


async def run_whole_hub(settings: Settings, target: DatabaseTarget, listener: socket.socket) -> None:
    """Migrate, create the first operator, print the address, serve until stopped."""

    async def prepare() -> None:
        await migrate_target(settings, target)

    watcher = asyncio.create_task(watch_embedded_server(settings, target)) if target.server else None
    try:
        if settings.processes:
            await supervise(settings, target, listener, prepare)
            return
        async with start_hub(settings, target.urls, prepare, listener) as started:
            greet(settings, listener, started.password)
            await run_until_stopped(started.hub, listener, run_workers=True)
    finally:
        if watcher:
            watcher.cancel()


async def run_server(settings: Settings, target: DatabaseTarget, listener: socket.socket) -> None:
    async def prepare() -> None:
        await require_current_schema(target)

    if settings.processes:
        await supervise(settings, target, listener, prepare)
        return
    async with start_hub(settings, target.urls, prepare, listener) as started:
        greet(settings, listener, started.password)
        await run_until_stopped(started.hub, listener, run_workers=False)


async def run_work(
    settings: Settings, target: DatabaseTarget, listener: socket.socket | None, handlers: EventHandlers | None
) -> None:
    async def prepare() -> None:
        await require_current_schema(target)

    if listener:
        print_text(f"Probes and metrics are at {socket_url(listener)}")
    async with start_hub(settings, target.urls, prepare, listener) as started:
        hub = started.hub
        if handlers:
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            print_text(f"Handling events of {', '.join(handlers.services)}", "bold")
        await run_until_stopped(hub, listener, run_workers=True, handlers=handlers, serves_api=False)


async def run_child(settings: Settings, inherited: InheritedSockets, *, run_workers: bool) -> None:
    """Serve on the supervisor's socket. The supervisor has migrated, and prints the address."""
    target = running_target(database_settings(settings))

    async def prepare() -> None:
        await require_current_schema(target)

    async with (
        supervisor_link(inherited.channel) as link,
        start_hub(settings, target.urls, prepare, inherited.listener if inherited.is_first else None) as started,
    ):
        await run_until_stopped(started.hub, inherited.listener, run_workers=run_workers, link=link)


async def supervise(
    settings: Settings, target: DatabaseTarget, listener: socket.socket, prepare: Callable[[], Awaitable[None]]
) -> None:
    """Prepare the database, print the address, and run the children until stopped."""

    async def prepare_once() -> str | None:
        await prepare()
        async with Database(connect_options(settings, target.urls.main, pooler=settings.database_pooler)) as db:
            return await first_admin_password(db, settings)

    greet(settings, listener, await retry_until_available(prepare_once, listener))
    await Supervisor(settings, listener).run()


async def watch_embedded_server(settings: Settings, target: DatabaseTarget) -> None:
    """Restart the embedded server on the same port if it dies."""
    while True:
        await asyncio.sleep(SERVER_CHECK_INTERVAL)
        server = target.server
        if server is not None and not server.is_alive():
            await asyncio.to_thread(restart_embedded_server, settings, target, server)


def restart_embedded_server(settings: Settings, target: DatabaseTarget, dead: embedded.EmbeddedServer) -> None:
    """Run in a thread that finishes even if the hub stops meanwhile, so that the new server is stopped as well."""
    logger.error("database died", pid=dead.pid)
    dead.stop()
    try:
        user = embedded.ensure_server_user(settings.pg_user)
        target.server = embedded.start_embedded_server(
            settings.data_dir, pg_bin=settings.pg_bin, port=dead.address.port, user=user
        )
    except SetupError as error:
        logger.error("database restart failed", error=str(error))
    else:
        logger.info("database restarted", pid=target.server.pid)
