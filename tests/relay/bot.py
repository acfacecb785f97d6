"""A bot on a stream: a raw client that parses server-sent events from the socket."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from support.silent_hop import stop_acknowledging

TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One received event."""

    id: int
    name: str
    data: dict[str, Any]


@dataclass(slots=True)
class StreamClient:
    """One connection and all events received on it."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    received: list[ReceivedEvent] = field(default_factory=list[ReceivedEvent])
    pings: int = 0
    raw: bytearray = field(default_factory=bytearray)
    _unread: bytes = b""
    _chunk_size: int | None = None
    """Size of the chunk that is being read, so that a read that timed out can be continued."""

    @property
    def last(self) -> int:
        return self.received[-1].id

    def messages(self) -> list[str]:
        """The texts of the received messages."""
        return [event.data["normalized"]["text"] for event in self.received if event.name == "message"]

    async def next(self, name: str) -> ReceivedEvent:
        """The next event with this name; others are recorded and skipped."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                event = await self.read()
                assert event is not None, f"the stream ended before {name}"
                if event.name == name:
                    return event

    async def first(self) -> ReceivedEvent:
        """The next event of any name."""
        async with asyncio.timeout(TIMEOUT):
            event = await self.read()
        assert event is not None, "the stream ended"
        return event

    async def until(self, marker: str) -> list[ReceivedEvent]:
        """The events before a marker, which was sent last."""
        events: list[ReceivedEvent] = []
        while (event := await self.first()).data.get("conversationKey") != marker:
            events.append(event)
        return events

    async def next_message(self) -> dict[str, Any]:
        return (await self.next("message")).data

    async def read(self) -> ReceivedEvent | None:
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
            event = ReceivedEvent(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            self.received.append(event)
            return event

    async def _block(self) -> bytes | None:
        while b"\n\n" not in self._unread:
            try:
                if self._chunk_size is None:
                    self._chunk_size = int(await self._reader.readuntil(b"\r\n"), 16)
                chunk = (await self._reader.readexactly(self._chunk_size + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            self._chunk_size = None
            self._unread += chunk
            if not chunk:
                return None
        block, _, self._unread = self._unread.partition(b"\n\n")
        return block + b"\n\n"

    async def body(self) -> dict[str, Any]:
        """The JSON of an error response."""
        return json.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    def disconnect(self) -> None:
        self._writer.transport.abort()

    def vanish(self) -> None:
        """Acknowledge nothing any more, without a word to the hub."""
        stop_acknowledging(self._writer.get_extra_info("socket"))

    async def is_reset(self) -> bool:
        """Wait for the end of the stream; True if the connection was reset, False after a clean end."""
        while await self.read():
            continue
        return isinstance(self._reader.exception(), ConnectionResetError)


@asynccontextmanager
async def connect_stream(
    address: str, token: str | None, last: int | None = None, path: str = "/v1/events"
) -> AsyncGenerator[StreamClient]:
    """Open a stream. Without a token, the path carries a ticket."""
    parts = urlsplit(address)
    assert parts.port
    reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
    try:
        lines = [f"GET {path} HTTP/1.1", "host: hub", *([f"authorization: Bearer {token}"] if token else [])]
        if last is not None:
            lines.append(f"last-event-id: {last}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        yield StreamClient(int(head[0].split()[1]), headers, reader, writer)
    finally:
        writer.close()
