"""A TCP proxy in front of PostgreSQL that loses chosen statements or the server's answers to them, or holds them back.

To lose an answer, the server executes and commits the statement. Its answer is read to the end and dropped, then both
ends are reset.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from pabal.db.queries import Query

SSL_REQUEST = 80877103
START = struct.Struct("!ii")
HEAD = struct.Struct("!ci")
READY_FOR_QUERY = b"Z\0\0\0\5"
"""The end of an answer, followed by one byte. Outside of a transaction block the statement is committed."""


@dataclass(slots=True)
class ProxiedConnection:
    """One client's connection. `loses_answer` from the statement whose answer is lost."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    prepared: dict[bytes, str] = field(default_factory=dict[bytes, str])
    loses_answer: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@dataclass(slots=True)
class PausedQuery:
    """A query whose statements wait in front of the server."""

    waiting: list[asyncio.Event] = field(default_factory=list[asyncio.Event])
    is_resumed: bool = False

    async def wait(self) -> None:
        if not self.is_resumed:
            self.waiting.append(asyncio.Event())
            await self.waiting[-1].wait()

    def resume_first(self) -> None:
        """Let the statement go on that has waited longest."""
        self.waiting.pop(0).set()

    def resume(self) -> None:
        """Let all statements go on, and further ones pass."""
        self.is_resumed = True
        while self.waiting:
            self.resume_first()


class AnswerLossProxy:
    """Loses answers and statements of chosen queries. `lost` counts them."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._remaining: dict[str, int] = {}
        self._refused: set[str] = set()
        self._paused: dict[str, PausedQuery] = {}
        self._connections: list[ProxiedConnection] = []
        self._lost_number: int | None = None
        self.lost = 0
        self.statements = 0
        """How many statements were executed since `lose_answer_number`, BEGIN and COMMIT included."""

    def lose_answer_number(self, number: int | None) -> None:
        """Lose the answer to the statement with this number, from now on and counted from 0, on any connection."""
        self._lost_number, self.statements = number, 0

    def lose_answers(self, query: Query, times: int = 1) -> None:
        self._remaining[query.sql] = times

    def lose_statement(self, query: Query) -> None:
        """Reset the connection of the query's next statement before the server gets it."""
        self._refused.add(query.sql)

    def pause(self, query: Query) -> PausedQuery:
        """Hold the query's statements back until they are resumed."""
        self._paused[query.sql] = paused = PausedQuery()
        return paused

    def close(self) -> None:
        for connection in self._connections:
            connection.reset()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._upstream)
        connection = ProxiedConnection(writer, to_server)
        self._connections.append(connection)
        tasks = [
            asyncio.ensure_future(self._send_statements(reader, connection)),
            asyncio.ensure_future(self._send_answers(from_server, connection)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        to_server.close()
        writer.close()

    async def _send_statements(self, reader: asyncio.StreamReader, connection: ProxiedConnection) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            code = SSL_REQUEST
            while code == SSL_REQUEST:
                start = await reader.readexactly(START.size)
                size, code = START.unpack(start)
                connection.server.write(start + await reader.readexactly(size - START.size))
            while True:
                head = await reader.readexactly(HEAD.size)
                kind, size = HEAD.unpack(head)
                body = await reader.readexactly(size - 4)
                sql = self._watch(kind, body, connection)
                if sql in self._paused:
                    await self._paused[sql].wait()
                connection.server.write(head + body)

    def _watch(self, kind: bytes, body: bytes, connection: ProxiedConnection) -> str | None:
        """Returns the SQL of a statement that is executed."""
        first, _, rest = body.partition(b"\0")
        if kind == b"P":  # Parse: statement name and SQL
            connection.prepared[first] = rest.partition(b"\0")[0].decode()
        elif kind == b"B":  # Bind, followed by Execute: portal and statement name
            sql = connection.prepared[rest.partition(b"\0")[0]]
            self._count(connection)
            if sql in self._refused:
                self._refused.discard(sql)
                self.lost += 1
                connection.reset()
                raise ConnectionResetError
            if self._remaining.get(sql, 0) > 0:
                self._remaining[sql] -= 1
                connection.loses_answer = True
            return sql
        elif kind == b"Q":  # a simple query: BEGIN, COMMIT
            self._count(connection)
        return None

    def _count(self, connection: ProxiedConnection) -> None:
        if self.statements == self._lost_number:
            connection.loses_answer = True
        self.statements += 1

    async def _send_answers(self, reader: asyncio.StreamReader, connection: ProxiedConnection) -> None:
        dropped = b""
        with suppress(OSError, RuntimeError):  # uvloop raises RuntimeError for an aborted transport
            while data := await reader.read(65536):
                if not connection.loses_answer:
                    connection.client.write(data)
                    continue
                dropped += data
                if dropped[:-1].endswith(READY_FOR_QUERY):
                    self.lost += 1
                    connection.reset()


@asynccontextmanager
async def losing_answers(url: str) -> AsyncGenerator[tuple[AnswerLossProxy, str]]:
    """Start a proxy for this server; yields it with the URL through it."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    proxy = AnswerLossProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"))
    finally:
        server.close()
        proxy.close()
