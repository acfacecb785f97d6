"""Just enough HTTP: requests as bytes, responses split by content length, event streams by blank lines."""

import asyncio
from collections.abc import Callable
from typing import cast

HOST = "127.0.0.1"
CONTENT_LENGTH = b"content-length: "
HEAD_END = b"\r\n\r\n"


WEBHOOK_SECRET = "the webhook secret of the benchmark"


def encode_webhook(body: bytes) -> bytes:
    """A request to the webhook, with the secret that the hub expects."""
    return encode_request("POST", "/kakao/webhook", body, webhook_secret=WEBHOOK_SECRET)


def encode_request(method: str, path: str, body: bytes = b"", token: str = "", webhook_secret: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: hub\r\n"
    if webhook_secret:
        head += f"x-pabal-secret: {webhook_secret}\r\n"
    if token:
        head += f"authorization: Bearer {token}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class HttpConnection(asyncio.Protocol):
    """One end of a kept connection. `on_message` gets the head and body of each request or response."""

    def __init__(self, on_message: Callable[["HttpConnection", bytes, bytes], None]) -> None:
        self._on_message = on_message
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (head_end := self._unread.find(HEAD_END) + len(HEAD_END)) >= len(HEAD_END):
            head = self._unread[:head_end].lower()
            at = head.find(CONTENT_LENGTH) + len(CONTENT_LENGTH)
            body_end = head_end + (int(head[at : head.find(b"\r", at)]) if at >= len(CONTENT_LENGTH) else 0)
            if len(self._unread) < body_end:
                return
            body, self._unread = self._unread[head_end:body_end], self._unread[body_end:]
            self._on_message(self, head, body)

    def send(self, data: bytes) -> None:
        self._transport.write(data)


class BotStream(asyncio.Protocol):
    """A bot's stream. `on_message` gets the message id and the conversation key of each message."""

    def __init__(self, token: str, on_message: Callable[[bytes, bytes], None]) -> None:
        self._token = token
        self._on_message = on_message
        self._unread = b""
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(encode_request("GET", "/v1/events", token=self._token))

    def data_received(self, data: bytes) -> None:
        *blocks, self._unread = (self._unread + data).split(b"\n\n")
        for block in blocks:
            if b"\nevent: message\n" in block:
                self._on_message(find_value(b'"id":"', block), find_value(b'"conversationKey":"', block))
            elif b"\nevent: connected\n" in block:
                self.connected.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.connected.done():
            self.connected.set_exception(exc or ConnectionError(self._unread.decode(errors="replace")))


def find_value(prefix: bytes, block: bytes) -> bytes:
    """The bytes between `prefix` and the next quote."""
    start = block.find(prefix) + len(prefix)
    return block[start : block.find(b'"', start)]


async def connect(port: int, on_message: Callable[[HttpConnection, bytes, bytes], None]) -> HttpConnection:
    _, connection = await asyncio.get_running_loop().create_connection(lambda: HttpConnection(on_message), HOST, port)
    return connection


async def open_stream(port: int, token: str, on_message: Callable[[bytes, bytes], None]) -> BotStream:
    """Open a stream and wait for its `connected` event."""
    _, stream = await asyncio.get_running_loop().create_connection(lambda: BotStream(token, on_message), HOST, port)
    await stream.connected
    return stream
