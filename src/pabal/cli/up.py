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

from pabal.api.app import application
from pabal.api.protocol import Protocol
from pabal.api.server import Server
from pabal.cli import screen
from pabal.cli.migrate import bring_up, insist
from pabal.cli.options import App, DatabaseUrl, DataDir, Host, Port, Program
from pabal.cli.program import load
from pabal.cli.roads import Ground, running, started
from pabal.console.routes import routes
from pabal.core import log
from pabal.core.errors import Failed, PortTaken
from pabal.db import embedded
from pabal.events.handle import Handlers
from pabal.notifications.catalogue import register
from pabal.operators import operators
from pabal.settings import Settings, read
from pabal.wiring import Hub, on_roll, open_hub, workers

logger = log.get_logger()

VANISHED = 30_000
"""Milliseconds a client may leave what it was sent without a sign of life."""
MOST_FILES = 1 << 20
GLANCE = 0.5
"""Seconds between two looks at the embedded server."""


def up(*, host: Host = None, port: Port = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Run the whole hub: database, API, workers, console."""
    settings = read(host=host, port=port, data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to stop while starting, it stops as by Ctrl-C
    with listen(settings) as listener, started(settings) as ground:
        run(everything(settings, ground, listener))


def serve(*, host: Host = None, port: Port = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Run API and console only, on the database of a running hub or an external one."""
    settings = read(host=host, port=port, data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    with listen(settings) as listener:
        run(half(settings, running(settings), listener))


def work(
    *, app: App = None, program: Program = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Run workers and chores only, on the database of a running hub or an external one."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    handlers = load(app, program) if app else None
    run(half(settings, running(settings), None, handlers))


def run(main: Coroutine[Any, Any, None]) -> None:
    make_room()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def make_room() -> None:
    """Take all the open files we may have: every stream is one, and most processes begin with a thousand."""
    has, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if has < wanted:
        with suppress(ValueError, OSError):  # some kernels allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def everything(settings: Settings, ground: Ground, listener: socket.socket) -> None:
    """Migrate, see that somebody can sign in, open the doors, say where they are."""
    await bring_up(settings, ground)
    async with open_hub(settings, ground.roads) as hub:
        greet(settings, listener, await first_password(hub))
        keeper = asyncio.create_task(keep(settings, ground)) if ground.server else None
        try:
            await run_until_stopped(hub, listener, works=True)
        finally:
            if keeper:
                keeper.cancel()


async def half(
    settings: Settings, ground: Ground, listener: socket.socket | None, handlers: Handlers | None = None
) -> None:
    await insist(ground)
    async with open_hub(settings, ground.roads) as hub:
        if listener:
            greet(settings, listener, await first_password(hub))
        if handlers:
            async with hub.transaction() as tx:
                await handlers.announce(tx)
            screen.say(f"Handling events of {', '.join(handlers.services)}", "bold")
        await run_until_stopped(hub, listener, works=listener is None, handlers=handlers)


async def first_password(hub: Hub) -> str | None:
    """See that somebody can sign in; the password, if one had to be made up, to be shown this once."""
    async with hub.transaction() as tx:
        chosen = hub.settings.admin_password
        return await operators.ensure_first(tx, chosen.get_secret_value() if chosen else None)


async def run_until_stopped(
    hub: Hub, listener: socket.socket | None, *, works: bool, handlers: Handlers | None = None
) -> None:
    """Run until SIGINT or SIGTERM: streams end themselves, requests get a moment, then the doors close."""
    async with hub.transaction() as tx:
        await register(tx, hub.catalogue)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    server = web_server(hub) if listener else None
    serving = asyncio.create_task(server.serve(sockets=[listener])) if server and listener else None
    if serving:
        serving.add_done_callback(lambda _: stop.set())  # a server that fell over must not leave us waiting
    upkeep = asyncio.create_task(hub.chores.run()) if works else None
    employed = workers(hub, handlers) if works else []
    working = [asyncio.create_task(each.run(), name=each.name) for each in employed]
    for task in working:
        task.add_done_callback(lambda _: stop.set())  # nor a worker
    async with on_roll(hub, employed, handlers) if works else nullcontext():
        await stop.wait()
        await hub.send_home()
        logger.info("hub stopping")
        if upkeep:
            upkeep.cancel()
        for worker in employed:
            worker.stop()
        if server and serving:
            server.stop()
            await serving
        await asyncio.gather(*working)


def web_server(hub: Hub) -> Server:
    return Server(
        uvicorn.Config(
            application(hub, routes(hub)),
            http=Protocol,
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


async def keep(settings: Settings, ground: Ground) -> None:
    """Start the embedded server again, on the same port, should it be killed under us."""
    while True:
        await asyncio.sleep(GLANCE)
        server = ground.server
        if server is not None and not server.alive():
            await asyncio.to_thread(revive, settings, ground, server)


def revive(settings: Settings, ground: Ground, dead: embedded.Server) -> None:
    """Runs in a thread to its end even if the hub stops meanwhile, so whatever it starts is known and stopped."""
    logger.error("database died", pid=dead.pid)
    dead.stop()
    try:
        ground.server = embedded.start(settings.data_dir, pg_bin=settings.pg_bin, port=dead.endpoint.port)
    except Failed as error:
        logger.error("database stays down", why=str(error))
    else:
        logger.info("database back", pid=ground.server.pid)


def listen(settings: Settings) -> socket.socket:
    """Take the port before anything else is started, so that a taken one costs nothing."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a stream's client that vanished without a word is found out by its pings
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop what listens there, or choose "
            "another with --host and --port, or PABAL_HOST and PABAL_PORT"
        ) from None
    return listener


def greet(settings: Settings, listener: socket.socket, password: str | None) -> None:
    host, port = cast("tuple[str, int]", listener.getsockname()[:2])
    here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 shown, not bound
    screen.say(f"Pabal is at http://{here}:{port}", "bold")
    if password:
        screen.say(f"  sign in as admin with the password {password}   (shown this once)")
    elif settings.admin_password:
        screen.say("  sign in as admin with the password of PABAL_ADMIN_PASSWORD, if it was set at the first start")
    else:
        screen.say("  sign in as admin with the password shown at the first start")
