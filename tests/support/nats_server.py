"""A real NATS server in a process of its own, and a proxy in front of it."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.fault_proxy import FaultProxy
from support.wait import wait_until

NATS_SERVER = Path(sys.executable).with_name("nats-server")


class NatsProcess:
    """A server that keeps its port when it is killed and started again."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._command = [str(NATS_SERVER), "-a", "127.0.0.1", "-p", str(self.port), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._spawn()
        await wait_until(self._accepts)

    def _spawn(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


class NatsFaultProxy(FaultProxy):
    """Passes bytes as they are: the server speaks first."""

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:  # noqa: ARG002
        await self._flowing.wait()
        return b""


@asynccontextmanager
async def run_nats_server(*options: str) -> AsyncGenerator[NatsProcess]:
    server = NatsProcess(*options)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def run_nats_proxy(server: NatsProcess) -> AsyncGenerator[tuple[NatsFaultProxy, str]]:
    """Start a proxy in front of a server; yields it and the URL that leads through it."""
    proxy = NatsFaultProxy("127.0.0.1", server.port)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        proxy.admit_new_connections()
        proxy.reset()
