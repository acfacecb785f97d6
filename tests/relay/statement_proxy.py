"""A proxy in front of PostgreSQL that counts the executed statements."""

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from pabal.db.queries import Query

SSL_REQUEST = 80877103
START = struct.Struct("!ii")
HEAD = struct.Struct("!ci")


class StatementProxy:
    """Counts the statements of one process. Each is one round trip."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = host, port
        self._counts: Counter[str] = Counter()

    def clear(self) -> None:
        self._counts.clear()

    def count(self, query: Query) -> int:
        return self._counts[query.sql]

    def count_containing(self, *texts: str) -> int:
        """How many statements contain one of these texts."""
        return sum(number for sql, number in self._counts.items() if any(text in sql for text in texts))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._upstream)
        tasks = [
            asyncio.ensure_future(self._listen(reader, to_server)),
            asyncio.ensure_future(pump(from_server, writer)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        to_server.close()
        writer.close()

    async def _listen(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        prepared: dict[bytes, str] = {}
        with suppress(asyncio.IncompleteReadError, OSError):
            code = SSL_REQUEST
            while code == SSL_REQUEST:
                start = await reader.readexactly(START.size)
                size, code = START.unpack(start)
                to_server.write(start + await reader.readexactly(size - START.size))
            while True:
                head = await reader.readexactly(HEAD.size)
                kind, size = HEAD.unpack(head)
                body = await reader.readexactly(size - 4)
                self._record(kind, body, prepared)
                to_server.write(head + body)

    def _record(self, kind: bytes, body: bytes, prepared: dict[bytes, str]) -> None:
        first, _, rest = body.partition(b"\0")
        if kind == b"P":  # Parse: statement name and SQL
            prepared[first] = rest.partition(b"\0")[0].decode()
        elif kind == b"B":  # Bind, followed by Execute: portal and statement name
            self._counts[prepared[rest.partition(b"\0")[0]]] += 1
        elif kind == b"Q":
            self._counts[first.decode()] += 1


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)


@asynccontextmanager
async def counting_statements(url: str) -> AsyncGenerator[tuple[StatementProxy, str]]:
    """Start a proxy for this server; yields it with the URL through it."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    proxy = StatementProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"))
    finally:
        server.close()
