"""uvicorn's HTTP protocol with two limits it lacks: how long a request's head may be, and how long it may take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 65_536
HEAD_WITHIN = 10.0
END = b"\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """One connection. Somebody who sends headers without end, or one byte a minute, is shown the door."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            end = (self._tail + data).find(END)  # what follows the head, in the same breath, is body
            self._head_bytes += len(data) if end < 0 else max(end - len(self._tail), 0)
            self._tail = (self._tail + data)[-len(END) + 1 :]
            if self._head_bytes > HEAD_LIMIT:
                self.send_400_response(f"The head of the request is larger than {HEAD_LIMIT} bytes.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # the next request on a kept connection
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._tail = b""
        self._patience = asyncio.get_running_loop().call_later(HEAD_WITHIN, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self.transport.close()
