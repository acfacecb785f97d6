"""`pabal up`, `serve`, `work`: run the hub, or one half of it."""

import asyncio
import resource
import signal
import socket
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from typing import Any, cast

import uvicorn
import uvloop

from pabal.api.routes import ROUTES
from pabal.cli.handlers_app import load_handlers
from pabal.cli.migrate import migrate_target, require_current_schema
from pabal.cli.options import DatabaseUrl, DataDir, HandlersApp, Host, Port, ProgramName
from pabal.cli.output import print_text
from pabal.cli.target import DatabaseTarget, running_target, start_target
from pabal.console.routes import console_routes
from pabal.core.errors import PortInUse, SetupError
from pabal.core.log import configure_logging, get_logger
from pabal.db import embedded
from pabal.events.handlers import EventHandlers
from pabal.hub import Hub, build_workers, open_hub, register_hub_process
from pabal.notifications.templates.catalogue import register_templates
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings, load_settings
from pabal.web.app import create_app
from pabal.web.server import LimitedHttpProtocol, WebServer

logger = get_logger()

TCP_USER_TIMEOUT_MS = 30_000
"""Milliseconds a client may leave what it was sent without a sign of life."""
MAX_OPEN_FILES = 1 << 20
SERVER_CHECK_INTERVAL = 0.5
"""Seconds between two looks at the embedded server."""


def up_command(
    *, host: Host = None, port: Port = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Run the whole hub: database, API, workers, console."""
    settings = load_settings(host=host, port=port, data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to stop while starting, it stops as by Ctrl-C
    with bind_listener(settings) as listener, start_target(settings) as ground:
        run_event_loop(run_whole_hub(settings, ground, listener))


def serve_command(
    *, host: Host = None, port: Port = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Run API and console only, on the database of a running hub or an external one."""
    settings = load_settings(host=host, port=port, data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    with bind_listener(settings) as listener:
        run_event_loop(run_partial_hub(settings, running_target(settings), listener))


def work_command(
    *, app: HandlersApp = None, program: ProgramName = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Run workers and chores only, on the database of a running hub or an external one."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    handlers = load_handlers(app, program) if app else None
    run_event_loop(run_partial_hub(settings, running_target(settings), None, handlers))


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def raise_file_limit() -> None:
    """Take all the open files we may have: every stream is one, and most processes begin with a thousand."""
    has, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, MAX_OPEN_FILES)
    if has < wanted:
        with suppress(ValueError, OSError):  # some kernels allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def run_whole_hub(settings: Settings, target: DatabaseTarget, listener: socket.socket) -> None:
    """Migrate, see that somebody can sign in, open the doors, say where they are."""
    await migrate_target(settings, target)
    async with open_hub(settings, target.urls) as hub:
        print_welcome(settings, listener, await first_admin_password(hub))
        keeper = asyncio.create_task(watch_embedded_server(settings, target)) if target.server else None
        try:
            await run_until_stopped(hub, listener, run_workers=True)
        finally:
            if keeper:
                keeper.cancel()


async def run_partial_hub(
    settings: Settings, target: DatabaseTarget, listener: socket.socket | None, handlers: EventHandlers | None = None
) -> None:
    await require_current_schema(target)
    async with open_hub(settings, target.urls) as hub:
        if listener:
            print_welcome(settings, listener, await first_admin_password(hub))
        if handlers:
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            print_text(f"Handling events of {', '.join(handlers.services)}", "bold")
        await run_until_stopped(hub, listener, run_workers=listener is None, handlers=handlers)


async def first_admin_password(hub: Hub) -> str | None:
    """See that somebody can sign in; the password, if one had to be made up, to be shown this once."""
    async with hub.transaction() as tx:
        chosen = hub.settings.admin_password
        return await ensure_first_operator(tx, chosen.get_secret_value() if chosen else None)


async def run_until_stopped(
    hub: Hub, listener: socket.socket | None, *, run_workers: bool, handlers: EventHandlers | None = None
) -> None:
    """Run until SIGINT or SIGTERM: streams end themselves, requests get a moment, then the doors close."""
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    server = web_server(hub) if listener else None
    serving = asyncio.create_task(server.serve(sockets=[listener])) if server and listener else None
    if serving:
        serving.add_done_callback(lambda _: stop.set())  # a server that fell over must not leave us waiting
    upkeep = asyncio.create_task(hub.chores.run()) if run_workers else None
    employed = build_workers(hub, handlers) if run_workers else []
    working = [asyncio.create_task(each.run(), name=each.name) for each in employed]
    for task in working:
        task.add_done_callback(lambda _: stop.set())  # nor a worker
    async with register_hub_process(hub, employed, handlers) if run_workers else nullcontext():
        await stop.wait()
        await hub.begin_shutdown()
        logger.info("hub stopping")
        if upkeep:
            upkeep.cancel()
        for worker in employed:
            worker.stop()
        if server and serving:
            server.stop()
            await serving
        await asyncio.gather(*working)


def web_server(hub: Hub) -> WebServer:
    return WebServer(
        uvicorn.Config(
            create_app(hub, ROUTES, console_routes(hub)),
            http=LimitedHttpProtocol,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(hub.settings.stop_within.total_seconds())),
        )
    )


async def watch_embedded_server(settings: Settings, target: DatabaseTarget) -> None:
    """Start the embedded server again, on the same port, should it be killed under us."""
    while True:
        await asyncio.sleep(SERVER_CHECK_INTERVAL)
        server = target.server
        if server is not None and not server.is_alive():
            await asyncio.to_thread(restart_embedded_server, settings, target, server)


def restart_embedded_server(settings: Settings, target: DatabaseTarget, dead: embedded.EmbeddedServer) -> None:
    """Runs in a thread to its end even if the hub stops meanwhile, so whatever it starts is known and stopped."""
    logger.error("database died", pid=dead.pid)
    dead.stop()
    try:
        target.server = embedded.start_embedded_server(
            settings.data_dir, pg_bin=settings.pg_bin, port=dead.address.port
        )
    except SetupError as error:
        logger.error("database stays down", error=str(error))
    else:
        logger.info("database back", pid=target.server.pid)


def bind_listener(settings: Settings) -> socket.socket:
    """Take the port before anything else is started, so that a taken one costs nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a stream's client that vanished without a word is found out by its pings
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop what listens there, or choose "
            "another with --host and --port, or PABAL_HOST and PABAL_PORT"
        ) from None
    return listener


def print_welcome(settings: Settings, listener: socket.socket, password: str | None) -> None:
    host, port = cast("tuple[str, int]", listener.getsockname()[:2])
    here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 shown, not bound
    print_text(f"Pabal is at http://{here}:{port}", "bold")
    if password:
        print_text(f"  sign in as admin with the password {password}   (shown this once)")
    elif settings.admin_password:
        print_text("  sign in as admin with the password of PABAL_ADMIN_PASSWORD, if it was set at the first start")
    else:
        print_text("  sign in as admin with the password shown at the first start")
