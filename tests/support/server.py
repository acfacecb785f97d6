"""A hub behind its real web server."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from pabal.api import routes
from pabal.cli.hub.run import web_server
from pabal.hub import Hub
from pabal.web.app import create_app
from pabal.web.route import Route
from pabal.web.server.server import WebServer

SERVE_TIMEOUT = 10.0


@asynccontextmanager
async def serve_hub(hub: Hub, table: Iterable[Route] = routes.ROUTES) -> AsyncGenerator[str]:
    """The hub behind its real web server, on a free port."""
    async with running_web_server(hub, table) as (address, _):
        yield address


@asynccontextmanager
async def running_web_server(hub: Hub, table: Iterable[Route] = routes.ROUTES) -> AsyncGenerator[tuple[str, WebServer]]:
    """The hub's address and its web server, on a free port."""
    server = web_server(hub)
    if table is not routes.ROUTES:
        server.config.app = create_app(hub, table)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
        finally:
            await hub.begin_shutdown()
            server.stop()
            await task
