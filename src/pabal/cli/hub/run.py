"""Run the server, the workers and the chores of one process until it is told to stop."""

import asyncio
import signal
import socket
from contextlib import nullcontext
from datetime import timedelta

import uvicorn
from starlette.types import ASGIApp

from pabal.api.health import ROUTES as HEALTH_ROUTES
from pabal.api.routes import ROUTES
from pabal.cli.processes.child import SupervisorLink
from pabal.console.routes import console_routes
from pabal.core.log import get_logger
from pabal.core.loop_watchdog import watched_event_loop
from pabal.db.waiting import wait_with_timeout
from pabal.events.consume.handlers import EventHandlers
from pabal.hub import Hub
from pabal.hub_workers import build_workers, register_hub_process
from pabal.notifications.templates.catalogue import register_templates
from pabal.web.app import create_app
from pabal.web.request import parse_networks
from pabal.web.server.connections import ConnectionLimits
from pabal.web.server.server import WebServer, open_file_limit

log = get_logger()


class StopRequest:
    """How the process is told to stop.

    SIGTERM first lets a load balancer notice, for `lame_duck`; SIGINT, or a second signal, does not. With `is_drain`,
    another process has taken over, and open requests have more time.
    """

    def __init__(self, lame_duck: timedelta) -> None:
        self.lame_duck = timedelta()
        self.is_drain = False
        self._requested, self._hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.request)
        loop.add_signal_handler(signal.SIGTERM, self.request, lame_duck)

    def request(self, lame_duck: timedelta = timedelta()) -> None:
        if self._requested.is_set():
            self._hurried.set()
        self.lame_duck = lame_duck
        self._requested.set()

    def request_drain(self) -> None:
        self.is_drain = True
        self._requested.set()

    def follow(self, link: SupervisorLink) -> None:
        """Stop as the supervisor says, and when it ends."""
        link.on_drain, link.on_supervisor_end = self.request_drain, self.request
        if link.is_supervisor_gone or link.is_drain_requested:
            self.request()

    async def wait(self) -> None:
        await self._requested.wait()

    async def wait_for_load_balancer(self) -> None:
        if self.lame_duck:
            await wait_with_timeout(self._hurried, self.lame_duck)


async def run_until_stopped(
    hub: Hub,
    listener: socket.socket | None,
    *,
    run_workers: bool,
    handlers: EventHandlers | None = None,
    link: SupervisorLink | None = None,
    serves_api: bool = True,
) -> None:
    """Run until SIGINT or SIGTERM.

    The process first says that it is not ready, then accepts no more connections, ends its streams, and gives open
    requests a grace period. Without `serves_api`, the socket serves only probes and metrics.
    """
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
    stop = StopRequest(hub.settings.lame_duck)
    if link:
        stop.follow(link)
    server = (web_server(hub) if serves_api else metrics_server(hub)) if listener else None
    serve_task = asyncio.create_task(server.serve(sockets=[listener])) if server and listener else None
    if serve_task:
        serve_task.add_done_callback(lambda _: stop.request())  # a server or worker that fails stops the process
    chores_task = asyncio.create_task(hub.chores.run()) if run_workers else None
    workers = build_workers(hub, handlers) if run_workers else []
    worker_tasks = [asyncio.create_task(worker.run(), name=worker.name) for worker in workers]
    for task in worker_tasks:
        task.add_done_callback(lambda _: stop.request())
    async with (
        watched_event_loop(hub.metrics.observe_loop_lag),
        register_hub_process(hub, workers, handlers) if run_workers else nullcontext(),
    ):
        if link and server:
            await server.wait_until_started()
            link.report_ready(hub.metrics)
        await stop.wait()
        log.info("hub stopping")
        hub.stopping.set()
        if server:
            server.announce_close()
            await stop.wait_for_load_balancer()
            await server.stop_accepting()  # before the streams end: their clients reconnect at once
        await hub.begin_shutdown()
        if chores_task:
            chores_task.cancel()
        for worker in workers:
            worker.stop()
        if server and serve_task:
            server.stop(drain=stop.is_drain)
            await serve_task
        await asyncio.gather(*worker_tasks)
        if link:
            await link.report_final_metrics()


def web_server(hub: Hub) -> WebServer:
    """The server of the API and the console."""
    return build_server(hub, create_app(hub, ROUTES, console_routes(hub)))


def metrics_server(hub: Hub) -> WebServer:
    """The server of a worker process: probes and metrics only."""
    return build_server(hub, create_app(hub, HEALTH_ROUTES))


def build_server(hub: Hub, app: ASGIApp) -> WebServer:
    settings = hub.settings
    limits = ConnectionLimits.of_open_files(
        open_file_limit(), settings.database_pool_size, settings.connections_per_address, settings.processes or 1
    )
    server = WebServer(
        uvicorn.Config(
            app,
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
