"""uvicorn's HTTP protocol with two limits it lacks: how long a request's head may be, and how long it may take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT = 10.0
HEAD_END = b"\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. Somebody who sends headers without end, or one byte a minute, is shown the door."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            end = (self._tail + data).find(HEAD_END)  # what follows the head, in the same breath, is body
            self._head_bytes += len(data) if end < 0 else max(end - len(self._tail), 0)
            self._tail = (self._tail + data)[-len(HEAD_END) + 1 :]
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # the next request on a kept connection
            self._start_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_head_timer()
        super().on_headers_complete()

    def _start_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self._close_slow_connection)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow_connection(self) -> None:
        self.transport.close()
