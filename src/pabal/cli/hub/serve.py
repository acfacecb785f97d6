"""`pabal up|serve|work`: run the hub, or one half of it."""

import asyncio
import resource
import signal
import socket
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from typing import Annotated, Any, cast

import uvicorn
import uvloop
from cyclopts import Parameter

from pabal.api.routes import ROUTES
from pabal.cli.context import require_current_schema
from pabal.cli.database_settings import database_settings
from pabal.cli.events.handlers_app import load_handlers
from pabal.cli.hub.migrate import migrate_target
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Host, Port
from pabal.cli.output import print_text
from pabal.cli.target import DatabaseTarget, running_target, start_target
from pabal.console.routes import console_routes
from pabal.core.errors import PortInUse, SetupError
from pabal.core.log import configure_logging, get_logger
from pabal.core.loop_watchdog import watched_event_loop
from pabal.db import embedded
from pabal.doctor import FindingLevel, check_trusted_proxies, check_webhook_secret
from pabal.events.handlers import EventHandlers
from pabal.hub import Hub, build_workers, open_hub, register_hub_process
from pabal.keys.webhook_secret import ensure_webhook_secret, with_webhook_secret
from pabal.notifications.templates.catalogue import register_templates
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings, load_settings
from pabal.web.app import create_app
from pabal.web.connections import ConnectionLimits
from pabal.web.request import parse_networks
from pabal.web.server import WebServer, open_file_limit

logger = get_logger()

TCP_USER_TIMEOUT_MS = 30_000
"""Milliseconds after which a connection whose peer acknowledges nothing is closed."""
MAX_OPEN_FILES = 1 << 20
SERVER_CHECK_INTERVAL = 0.5
"""Seconds between two checks of the embedded server."""

HandlersApp = Annotated[
    str | None, Parameter(help="Event handlers to run: module:name of a pabal.client.App, relative to this directory.")
]
ProgramName = Annotated[
    str | None, Parameter(help="Name of the program among those of its service. Default: the value of --app.")
]


def up_command(*, host: Host = None, port: Port = None, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Run the whole hub: database, API, workers and console."""
    settings = load_server_settings(connection, host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during the start, SIGTERM stops it as Ctrl-C does
    with bind_listener(settings) as listener, start_target(database_settings(settings)) as target:
        complete = ensure_webhook_secret(settings) if target.server else settings
        run_event_loop(run_whole_hub(complete, target, listener))


def serve_command(*, host: Host = None, port: Port = None, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Run the API and the console only, on the database of a running hub or an external one."""
    settings = load_server_settings(connection, host, port)
    with bind_listener(settings) as listener:
        run_event_loop(run_partial_hub(settings, running_target(database_settings(settings)), listener))


def work_command(
    *, app: HandlersApp = None, program: ProgramName = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Run the workers and chores only, on the database of a running hub or an external one."""
    settings = load_server_settings(connection)
    handlers = load_handlers(app, program) if app else None
    run_event_loop(run_partial_hub(settings, running_target(database_settings(settings)), None, handlers))


def load_server_settings(connection: Connection, host: str | None = None, port: int | None = None) -> Settings:
    settings = load_settings(host=host, port=port, data_dir=connection.data_dir, database_url=connection.database_url)
    configure_logging(settings.log_level, settings.log_format)
    return with_webhook_secret(settings)


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
    await migrate_target(settings, target)
    async with open_hub(settings, target.urls) as hub:
        print_welcome(settings, listener, await first_admin_password(hub))
        log_exposure_warnings(settings)
        watcher = asyncio.create_task(watch_embedded_server(settings, target)) if target.server else None
        try:
            await run_until_stopped(hub, listener, run_workers=True)
        finally:
            if watcher:
                watcher.cancel()


async def run_partial_hub(
    settings: Settings, target: DatabaseTarget, listener: socket.socket | None, handlers: EventHandlers | None = None
) -> None:
    await require_current_schema(target)
    async with open_hub(settings, target.urls) as hub:
        if listener:
            print_welcome(settings, listener, await first_admin_password(hub))
            log_exposure_warnings(settings)
        if handlers:
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            print_text(f"Handling events of {', '.join(handlers.services)}", "bold")
        await run_until_stopped(hub, listener, run_workers=listener is None, handlers=handlers)


async def first_admin_password(hub: Hub) -> str | None:
    """Create the first operator if there is none. Return the password if one was generated, to be shown once."""
    async with hub.transaction() as tx:
        password = hub.settings.admin_password
        return await ensure_first_operator(tx, password.get_secret_value() if password else None)


async def run_until_stopped(
    hub: Hub, listener: socket.socket | None, *, run_workers: bool, handlers: EventHandlers | None = None
) -> None:
    """Run until SIGINT or SIGTERM. Streams end first, open requests get a grace period, then the server closes."""
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop_signal, stop.set)
    server = web_server(hub) if listener else None
    serve_task = asyncio.create_task(server.serve(sockets=[listener])) if server and listener else None
    if serve_task:
        serve_task.add_done_callback(lambda _: stop.set())  # a server or worker that fails stops the process
    chores_task = asyncio.create_task(hub.chores.run()) if run_workers else None
    workers = build_workers(hub, handlers) if run_workers else []
    worker_tasks = [asyncio.create_task(worker.run(), name=worker.name) for worker in workers]
    for task in worker_tasks:
        task.add_done_callback(lambda _: stop.set())
    async with (
        watched_event_loop(hub.metrics.observe_loop_lag),
        register_hub_process(hub, workers, handlers) if run_workers else nullcontext(),
    ):
        await stop.wait()
        await hub.begin_shutdown()
        logger.info("hub stopping")
        if chores_task:
            chores_task.cancel()
        for worker in workers:
            worker.stop()
        if server and serve_task:
            server.stop()
            await serve_task
        await asyncio.gather(*worker_tasks)


def log_exposure_warnings(settings: Settings) -> None:
    """Log at start what the doctor would say about the webhook and the proxies."""
    for finding in (check_webhook_secret(settings), check_trusted_proxies(settings)):
        if finding.level is not FindingLevel.GOOD:
            logger.warning(finding.what, seen=str(finding.seen), advice=str(finding.advice))


def web_server(hub: Hub) -> WebServer:
    settings = hub.settings
    limits = ConnectionLimits.of_open_files(
        open_file_limit(), settings.database_pool_size, settings.connections_per_address
    )
    server = WebServer(
        uvicorn.Config(
            create_app(hub, ROUTES, console_routes(hub)),
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.stop_within.total_seconds())),
        ),
        limits,
        parse_networks(settings.trusted_proxies),
    )
    server.table.register_metrics(hub.metrics.meter)
    return server


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


def bind_listener(settings: Settings) -> socket.socket:
    """Bind the port before anything else starts, so that a port in use costs nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # closes a stream whose client vanished: its pings stay unacknowledged
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop the process that uses it, or "
            "choose another address with --host and --port, or PABAL_HOST and PABAL_PORT"
        ) from None
    return listener


def print_welcome(settings: Settings, listener: socket.socket, password: str | None) -> None:
    host, port = cast("tuple[str, int]", listener.getsockname()[:2])
    display_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 shown, not bound
    print_text(f"Pabal is at http://{display_host}:{port}", "bold")
    if password:
        print_text(f"  sign in as admin with the password {password}   (shown only once)")
    elif settings.admin_password:
        print_text("  sign in as admin with PABAL_ADMIN_PASSWORD, if it was set at the first start")
    else:
        print_text("  sign in as admin with the password shown at the first start")
    if settings.webhook_secret:
        print_text(
            f"  Kakao's skill needs the header {settings.webhook_header}; `pabal settings --show` prints its value"
        )
