"""What a process answers while it waits for its database at the start: it is alive, and not ready."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pabal.core.errors import Unavailable
from pabal.core.ids import new_id
from pabal.web.errors import error_response
from pabal.web.route import ErrorFormat
from pabal.web.server.server import WebServer, serving

ALIVE = msgspec.json.encode({"status": "ok"})


async def answer_while_waiting(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application: 200 for /healthz, 503 with Retry-After for everything else."""
    if scope["type"] != "http":
        return
    if Request(scope).url.path == "/healthz":
        response = Response(ALIVE, media_type="application/json")
    else:
        response = error_response(Unavailable("the database is not available yet"), ErrorFormat.PROBLEM, new_id().hex)
    response.headers["connection"] = "close"  # the next request is for the hub itself
    await response(scope, receive, send)


@asynccontextmanager
async def waiting_server(listener: socket.socket | None) -> AsyncGenerator[None]:
    """Answer on the socket for the duration of the block. The socket stays open."""
    if listener is None:
        yield
        return
    config = uvicorn.Config(
        answer_while_waiting,
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    async with serving(WebServer(config), listener.dup()):
        yield
