"""What several tests need to build: a hub that serves on a real port."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from pabal.api import doors
from pabal.api.app import create_app
from pabal.api.door import Route
from pabal.cli.up import web_server
from pabal.wiring import Hub

PATIENCE = 10.0


@asynccontextmanager
async def serving(hub: Hub, table: Iterable[Route] = doors.ROUTES) -> AsyncGenerator[str]:
    """The hub behind its real web server, on a free port."""
    server = web_server(hub)
    if table is not doors.ROUTES:
        server.config.app = create_app(hub, api_routes=table)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await hub.begin_shutdown()
            server.stop()
            await task
