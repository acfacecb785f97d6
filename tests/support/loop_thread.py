"""A hub in a thread of its own, and the CPU time that a request costs its event loop."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import uvloop

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.server import serve_hub

ResultT = TypeVar("ResultT")
TIMEOUT = 60.0
MAX_BLOCK = 0.050
"""Seconds of CPU time that one request may keep the event loop from other requests."""
MEASUREMENTS = 3
"""A slow request is repeated: a garbage collection or another process may have cost the time."""
READ_SIZE = 65_536
UNIQUE = b"UNIQUE-NUMBER"
"""Stands in a body for a number that no other request has, so that no measurement gets a cached response."""
NUMBERS = count()


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as bytes, so that it may contain what no client library sends."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)

    def encode(self) -> bytes:
        body = self.body.replace(UNIQUE, b"%012d" % next(NUMBERS))
        lines = [f"{self.method} {self.target} HTTP/1.1", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if not any(name.lower() == "host" for name, _ in self.headers):
            lines.append("Host: localhost")
        if body or self.method not in {"GET", "HEAD", "DELETE"}:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


@dataclass(frozen=True, slots=True)
class LoopThread:
    """A hub that serves in a thread. Requests come from the calling thread and are not part of the measured time."""

    hub: Hub
    address: tuple[str, int]
    origin: str
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT)

    def cpu_seconds(self) -> float:
        assert self.thread.ident
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def send(self, request: RawRequest) -> tuple[int, bytes]:
        """Send the request and return the status and the response, of a stream only its beginning."""
        received = bytearray()
        with socket.create_connection(self.address, TIMEOUT) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):  # an early error response closes the connection
                connection.sendall(request.encode())
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(READ_SIZE):
                    received += part
                    if b"text/event-stream" in received[:2000] and b"\r\n\r\n" in received:
                        break
        return int(received.split(b" ", 2)[1]) if received else 0, bytes(received)

    def measure(self, request: RawRequest) -> tuple[float, int]:
        """The CPU time of the loop for this request, and the status."""
        before = self.cpu_seconds()
        status, _ = self.send(request)
        return self.cpu_seconds() - before, status

    def longest_block(self, request: RawRequest, prepare: Callable[[], object] = lambda: None) -> tuple[float, int]:
        """The longest CPU time without giving other tasks a turn, and the status.

        The total is measured first, because it is cheap and at least as long as any block.
        """
        seconds, status = self.measure(request)
        for _ in range(MEASUREMENTS - 1):
            if seconds < MAX_BLOCK:
                return seconds, status
            prepare()
            seconds = min(seconds, self.measure(request)[0])
        for _ in range(MEASUREMENTS):
            if seconds < MAX_BLOCK:
                break
            prepare()
            with self.ticking() as turns:
                self.send(request)
            seconds = min(seconds, max(turns))
        return seconds, status

    @contextmanager
    def ticking(self) -> Generator[list[float]]:
        """Collect the CPU time between two turns of a callback that runs once per iteration of the loop."""
        turns: list[float] = [0.0]
        stop = threading.Event()

        def tick(last: float) -> None:
            now = time.thread_time()
            if now - last > MAX_BLOCK / 10:
                turns.append(now - last)
            if not stop.is_set():
                self.loop.call_soon(tick, time.thread_time())

        self.loop.call_soon_threadsafe(lambda: tick(time.thread_time()))
        try:
            yield turns
        finally:
            stop.set()


@asynccontextmanager
async def open_served_hub(settings: Settings, urls: DatabaseUrls) -> AsyncGenerator[tuple[Hub, str]]:
    async with open_hub(settings, urls) as hub, serve_hub(hub) as address:
        yield hub, address


@contextmanager
def loop_thread(settings: Settings, urls: DatabaseUrls) -> Generator[LoopThread]:
    """A hub with its real web server in a thread with its own event loop."""
    ready = threading.Event()
    state: dict[str, Any] = {}

    async def serve() -> None:
        stop = asyncio.Event()
        async with open_served_hub(settings, urls) as (hub, address):
            state.update(hub=hub, address=address, loop=asyncio.get_running_loop(), stop=stop)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            state["error"] = error
            raise
        finally:
            ready.set()

    gc.collect()
    gc.freeze()  # as `pabal` does; otherwise each full collection visits what earlier tests left
    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    assert ready.wait(TIMEOUT)
    assert "error" not in state, state["error"]
    host, _, port = state["address"].removeprefix("http://").partition(":")
    try:
        yield LoopThread(state["hub"], (host, int(port)), state["address"], state["loop"], thread)
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(TIMEOUT)
