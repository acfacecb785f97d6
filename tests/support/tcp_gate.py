"""A port in front of a server that can be closed: as if the server were stopped, and started again."""

import asyncio
import socket
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TcpGate:
    """Refuses connections until it is opened."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        assert parts.hostname
        assert parts.port
        self._server = (parts.hostname, parts.port)
        self._port = free_port()
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        login = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self._port}"))

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", self._port)

    async def close(self) -> None:
        """Refuse connections and end those that are open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self._server)
            self._writers |= {writer, server_writer}
            await asyncio.gather(self._pump(reader, server_writer), self._pump(server_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        self._writers.discard(writer)
        writer.transport.abort()
