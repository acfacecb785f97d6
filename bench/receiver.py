"""A webhook receiver that answers at once, and counts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import httptools

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class CountingReceiver:
    """Counts requests; `all_received` is set at the expected one."""

    def __init__(self, expected: int) -> None:
        self.url = ""
        self.all_received = asyncio.Event()
        self._left = expected

    def count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.all_received.set()


class ReceiverConnection(asyncio.Protocol):
    def __init__(self, receiver: CountingReceiver) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(RESPONSE)
        self._receiver.count()


@asynccontextmanager
async def counting_receiver(expected: int) -> AsyncGenerator[CountingReceiver]:
    receiver = CountingReceiver(expected)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ReceiverConnection(receiver), "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
