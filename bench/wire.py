"""Just enough HTTP: requests as bytes, answers cut off by their length, streams by their blank lines."""

import asyncio
from collections.abc import Callable
from typing import cast

HOST = "127.0.0.1"
LENGTH = b"content-length: "
END = b"\r\n\r\n"


def asked(method: str, path: str, body: bytes = b"", token: str = "") -> bytes:
    """A request as it goes on the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: hub\r\n"
    if token:
        head += f"authorization: Bearer {token}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Line(asyncio.Protocol):
    """One end of a kept connection; `heard` is given the head and the body of whatever comes."""

    def __init__(self, heard: Callable[["Line", bytes, bytes], None]) -> None:
        self._heard = heard
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(END) + len(END)) >= len(END):
            head = self._unread[:end].lower()
            at = head.find(LENGTH) + len(LENGTH)
            whole = end + (int(head[at : head.find(b"\r", at)]) if at >= len(LENGTH) else 0)
            if len(self._unread) < whole:
                return
            body, self._unread = self._unread[end:whole], self._unread[whole:]
            self._heard(self, head, body)

    def say(self, data: bytes) -> None:
        self._transport.write(data)


class Stream(asyncio.Protocol):
    """A bot's stream; `heard` is given which message came, and in which conversation."""

    def __init__(self, token: str, heard: Callable[[bytes, bytes], None]) -> None:
        self._token = token
        self._heard = heard
        self._unread = b""
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(asked("GET", "/v1/events", token=self._token))

    def data_received(self, data: bytes) -> None:
        *blocks, self._unread = (self._unread + data).split(b"\n\n")
        for block in blocks:
            if b"\nevent: message\n" in block:
                self._heard(after(b'"id":"', block), after(b'"conversationKey":"', block))
            elif b"\nevent: connected\n" in block:
                self.connected.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.connected.done():
            self.connected.set_exception(exc or ConnectionError(self._unread.decode(errors="replace")))


def after(mark: bytes, block: bytes) -> bytes:
    """What stands between this mark and the next quote."""
    at = block.find(mark) + len(mark)
    return block[at : block.find(b'"', at)]


async def call(port: int, heard: Callable[[Line, bytes, bytes], None]) -> Line:
    _, line = await asyncio.get_running_loop().create_connection(lambda: Line(heard), HOST, port)
    return line


async def listen(port: int, token: str, heard: Callable[[bytes, bytes], None]) -> Stream:
    """Open a stream, and wait until the hub says that it is one."""
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(token, heard), HOST, port)
    await stream.connected
    return stream
