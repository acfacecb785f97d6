"""A TCP hop in front of the hub that can swallow both directions, like a client that sleeps or changes its network.

The hop's kernel still acknowledges every byte, so to the hub the connection looks alive. `stop_acknowledging` makes a
client's own socket drop packets instead: nothing acknowledges, as if its machine were gone.
"""

import asyncio
import ctypes
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

SO_ATTACH_FILTER = 26
REJECT_EVERYTHING = struct.pack("HBBI", 6, 0, 0, 0)  # one BPF instruction: return 0


class SilentHop:
    """Forwards connections. Each connection forwards until it is swallowed; new ones forward again."""

    def __init__(self, port: int) -> None:
        self._upstream_port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._generation = 0
        self.swallowed_bytes = 0
        self.address = ""

    def swallow(self) -> None:
        """Drop what existing connections send, in both directions, and never tell either end."""
        self._generation += 1

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        self._writers |= {writer, upstream_writer}
        generation = self._generation
        await asyncio.gather(
            self._pump(reader, upstream_writer, generation), self._pump(upstream_reader, writer, generation)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int) -> None:
        with suppress(OSError, RuntimeError):  # uvloop raises RuntimeError for an aborted transport
            while data := await reader.read(65536):
                if generation != self._generation:
                    self.swallowed_bytes += len(data)
                    continue
                writer.write(data)
                await writer.drain()
        if generation == self._generation:
            writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def silent_hop(address: str) -> AsyncGenerator[SilentHop]:
    """Start a hop in front of the server at `address`."""
    port = urlsplit(address).port
    assert port
    hop = SilentHop(port)
    server = await asyncio.start_server(hop.forward, "127.0.0.1", 0)
    hop.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hop
    finally:
        server.close()
        hop.close()


def stop_acknowledging(client: Any) -> None:
    """Let the kernel drop every packet for this socket before TCP sees it."""
    program = ctypes.create_string_buffer(REJECT_EVERYTHING)
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
