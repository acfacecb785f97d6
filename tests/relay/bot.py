"""A bot on a stream: a raw client that parses server-sent events from the socket."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Heard:
    """One received event."""

    id: int
    name: str
    data: dict[str, Any]


@dataclass(slots=True)
class Bot:
    """One connection and all events received on it."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    heard: list[Heard] = field(default_factory=list[Heard])
    pings: int = 0
    raw: bytearray = field(default_factory=bytearray)
    _unread: bytes = b""
    _coming: int | None = None
    """Size of the chunk that is being read, so that a read that timed out can be continued."""

    @property
    def last(self) -> int:
        return self.heard[-1].id

    def messages(self) -> list[str]:
        """The texts of the received messages."""
        return [event.data["normalized"]["text"] for event in self.heard if event.name == "message"]

    async def next(self, name: str) -> Heard:
        """The next event with this name; others are recorded and skipped."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await self.read()
                assert event is not None, f"the stream ended before {name}"
                if event.name == name:
                    return event

    async def first(self) -> Heard:
        """The next event of any name."""
        async with asyncio.timeout(PATIENCE):
            event = await self.read()
        assert event is not None, "the stream ended"
        return event

    async def until(self, marker: str) -> list[Heard]:
        """The events before a marker, which was sent last."""
        heard: list[Heard] = []
        while (event := await self.first()).data.get("conversationKey") != marker:
            heard.append(event)
        return heard

    async def next_message(self) -> dict[str, Any]:
        return (await self.next("message")).data

    async def read(self) -> Heard | None:
        """One event of any name; None at the end of the stream."""
        while True:
            block = await self._block()
            if block is None:
                return None
            self.raw += block
            if block.startswith(b":"):
                self.pings += 1
                continue
            fields = dict(line.split(": ", 1) for line in block.decode().rstrip("\n").split("\n"))
            event = Heard(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            self.heard.append(event)
            return event

    async def _block(self) -> bytes | None:
        while b"\n\n" not in self._unread:
            try:
                if self._coming is None:
                    self._coming = int(await self._reader.readuntil(b"\r\n"), 16)
                chunk = (await self._reader.readexactly(self._coming + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            self._coming = None
            self._unread += chunk
            if not chunk:
                return None
        block, _, self._unread = self._unread.partition(b"\n\n")
        return block + b"\n\n"

    async def body(self) -> dict[str, Any]:
        """The JSON of an error response."""
        return json.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    def hang_up(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def bot(address: str, token: str, last: int | None = None, path: str = "/v1/events") -> AsyncGenerator[Bot]:
    """Open a stream."""
    where = urlsplit(address)
    assert where.port
    reader, writer = await asyncio.open_connection("127.0.0.1", where.port)
    try:
        lines = [f"GET {path} HTTP/1.1", "host: hub", f"authorization: Bearer {token}"]
        if last is not None:
            lines.append(f"last-event-id: {last}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        yield Bot(int(head[0].split()[1]), headers, reader, writer)
    finally:
        writer.close()
