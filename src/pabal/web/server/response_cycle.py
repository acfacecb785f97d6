"""Sending a response: constant headers are encoded once, and a response of known length is one write."""

from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

CONSTANT_HEADERS = frozenset(
    {
        b"server",
        b"date",
        b"content-type",
        b"cache-control",
        b"x-content-type-options",
        b"referrer-policy",
        b"x-frame-options",
        b"cross-origin-opener-policy",
        b"content-security-policy",
        b"strict-transport-security",
    }
)
"""Headers with few different values in a minute. Others would displace them from the cache."""


class SingleWriteCycle(RequestResponseCycle):
    """One request and its response. The head of a response with a content length is sent with the body's first part."""

    _head: bytes | None = None

    async def send(self, message: Any) -> None:
        if self._head is not None:
            await self._send_first_part(message)
        elif self.response_started or self.scope["method"] == "HEAD" or not self._hold_head(message):
            await super().send(message)

    def _hold_head(self, message: Any) -> bool:
        """Encode the head of a response with a content length; False for any other message."""
        if message["type"] != "http.response.start" or self.disconnected:
            return False
        content_length = None
        lines = [STATUS_LINE[message["status"]]]
        for name, value in (*self.default_headers, *message["headers"]):
            if name in CONSTANT_HEADERS:
                lines.append(encode_constant_header(name, value))
                continue
            if name == b"content-length":
                content_length = int(value)
                lines.append(b"content-length: %d\r\n" % content_length)
                continue
            if name in {b"connection", b"transfer-encoding"}:
                return False
            lines.append(encode_header(name, value))
        if content_length is None:
            return False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self.expected_content_length = content_length
        self.chunked_encoding = False
        self.response_started = True
        self.waiting_for_100_continue = False
        return True

    async def _send_first_part(self, message: Any) -> None:
        head, self._head = self._head, None
        assert head is not None
        body = message.get("body", b"")
        if self.disconnected or len(body) != self.expected_content_length or message.get("more_body"):
            self.transport.write(head)
            await super().send(message)
            return
        self.transport.write(head + body)
        self.expected_content_length = 0
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


@lru_cache(256)
def encode_constant_header(name: bytes, value: bytes) -> bytes:
    return encode_header(name, value)


def encode_header(name: bytes, value: bytes) -> bytes:
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise RuntimeError("a response header contains a character that HTTP does not allow")
    return b"%b: %b\r\n" % (name.lower(), value)
