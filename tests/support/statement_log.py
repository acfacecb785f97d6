"""A TCP proxy in front of PostgreSQL that records every statement a client executes."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from pabal.db.queries import Query

PROTOCOL_3 = 196608


class StatementLog:
    """The texts of the executed statements, in their order. Prepared statements are recorded when they are executed."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._connections: set[asyncio.Task[None]] = set()
        self.statements: list[str] = []

    def clear(self) -> None:
        self.statements.clear()

    def count(self, query: Query) -> int:
        return self.statements.count(query.sql)

    def count_containing(self, *texts: str) -> int:
        """How many statements contain one of these texts."""
        return sum(any(text in statement for text in texts) for statement in self.statements)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End all connections. A transport that is left open breaks the end of the test's event loop."""
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
                ends.append(upstream_writer)
                responses = asyncio.create_task(copy_bytes(upstream_reader, writer))
                try:
                    await self._copy_requests(reader, upstream_writer)
                finally:
                    responses.cancel()
        finally:
            for end in ends:
                end.transport.abort()

    async def _copy_requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        code = 0
        while code != PROTOCOL_3:  # requests for TLS come before the startup packet
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            upstream.write(head + await reader.readexactly(length - 8))
        prepared: dict[bytes, str] = {}
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            upstream.write(head + body)
            match head[:1]:
                case b"P":
                    name, text, _ = body.split(b"\0", 2)
                    prepared[name] = text.decode()
                case b"B":
                    _, name, _ = body.split(b"\0", 2)
                    self.statements.append(prepared[name])
                case b"Q":
                    self.statements.append(body[:-1].decode())
                case b"X":  # a client that ends waits until the connection is closed
                    return
                case _:
                    pass


async def copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)


@asynccontextmanager
async def run_statement_log(url: str) -> AsyncGenerator[tuple[StatementLog, str]]:
    """Listen on loopback; yield the log and the URL that leads through it."""
    parts = urlsplit(url)
    log = StatementLog(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(log.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host = parts.netloc.rpartition("@")
    try:
        yield log, urlunsplit(parts._replace(netloc=f"{host[0]}{host[1]}127.0.0.1:{port}"))
    finally:
        server.close()
        await log.close()
