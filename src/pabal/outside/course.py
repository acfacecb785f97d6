"""The course of an exchange: how far it has come, for whoever has to say so when it breaks off."""

from http import HTTPStatus

import httptools
from httpcore2 import RemoteProtocolError

MOST_HEAD = 64 * 1024
"""Bytes of an answer that are not its body: the head, and what chunks are wrapped in and followed by."""


class Course:
    """Reads an answer as it comes. `most` is how much of its body is listened to.

    The parser calls `on_…` while it is fed.
    """

    def __init__(self, most: int) -> None:
        self.sent = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.whole = False
        self.again = False
        """Whether the connection is good for another exchange."""
        self._most = most
        self._fed = 0
        self._ends_with_connection = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def listens(self) -> bool:
        return not self.whole and len(self.body) <= self._most and self._fed - len(self.body) <= MOST_HEAD

    def feed(self, data: bytes) -> None:
        """Read on; no data is the end of the connection."""
        if not data:
            if not self._ends_with_connection:
                raise RemoteProtocolError("the connection ended before the answer did")
            self.whole = True
            return
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.whole:  # what comes after the end of an answer spoils the connection, and not the answer
                raise RemoteProtocolError(str(error)) from error
            self.again = False
        if self.status is None and self._fed > MOST_HEAD:
            raise RemoteProtocolError("the answer's head is too long")

    def on_message_begin(self) -> None:
        self.again = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # what comes after the body is no header
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.whole:
            return
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK:
            self.status = status
            self._ends_with_connection = not self.headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.whole:
            self.body += data

    def on_message_complete(self) -> None:
        if self.status is None:  # only a word in between: the answer is still to come
            self.headers.clear()
        elif not self.whole:
            self.whole = True
            self.again = self._parser.should_keep_alive()
