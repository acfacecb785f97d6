"""The course of an exchange: how far it has come, for whoever has to say so when it breaks off."""

from http import HTTPStatus

import httptools
from httpcore2 import RemoteProtocolError

MAX_OVERHEAD_BYTES = 64 * 1024
"""Bytes of an answer that are not its body: the head, and what chunks are wrapped in and followed by."""


class ResponseParser:
    """Reads an answer as it comes. `most` is how much of its body is listened to.

    The parser calls `on_…` while it is fed.
    """

    def __init__(self, max_body: int) -> None:
        self.request_sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self.is_reusable = False
        """Whether the connection is good for another exchange."""
        self._max_body = max_body
        self._bytes_fed = 0
        self._ends_at_close = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def needs_data(self) -> bool:
        return (
            not self.is_complete
            and len(self.body) <= self._max_body
            and self._bytes_fed - len(self.body) <= MAX_OVERHEAD_BYTES
        )

    def feed(self, data: bytes) -> None:
        """Read on; no data is the end of the connection."""
        if not data:
            if not self._ends_at_close:
                raise RemoteProtocolError("the connection ended before the answer did")
            self.is_complete = True
            return
        self._bytes_fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.is_complete:  # what comes after the end of an answer spoils the connection, and not the answer
                raise RemoteProtocolError(str(error)) from error
            self.is_reusable = False
        if self.status is None and self._bytes_fed > MAX_OVERHEAD_BYTES:
            raise RemoteProtocolError("the answer's head is too long")

    def on_message_begin(self) -> None:
        self.is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # what comes after the body is no header
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK:
            self.status = status
            self._ends_at_close = not self.headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self.body += data

    def on_message_complete(self) -> None:
        if self.status is None:  # only a word in between: the answer is still to come
            self.headers.clear()
        elif not self.is_complete:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()
