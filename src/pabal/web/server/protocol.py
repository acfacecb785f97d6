"""One HTTP connection: uvicorn's protocol with limits on what a client may send, keep waiting and leave unread."""

import asyncio
from enum import Enum, auto
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from pabal.web.request import AUTHENTICATED_EXTENSION
from pabal.web.server.connections import CloseReason, ConnectionTable
from pabal.web.server.flow_control import GuardedFlowControl
from pabal.web.server.response_cycle import SingleWriteCycle

MAX_HEAD_BYTES = 16_384
"""Bytes of a request line and its headers, and of the trailers of a chunked body."""
MAX_HEADERS = 100
MAX_WAITING_REQUESTS = 4
"""Pipelined requests that wait for the response to an earlier one."""
MAX_DISCARDED_BYTES = 16 * 1_048_576
"""Bytes of a body that are read after its response was sent: a client that still sends does not read the response."""
HEAD_TIMEOUT = 10.0
BODY_GRACE = 10.0
"""Seconds before the minimum rate of a body applies."""
MIN_BODY_RATE = 1024
"""Bytes per second."""
UNREAD_TIMEOUT = 60.0
"""Seconds after which a client that takes nothing of its response is disconnected."""
SLOT_TIMEOUT = 10.0
"""Seconds that a new connection waits for a slot."""
LINGER = 2.0
"""Seconds in which a client may read an error and close the connection."""

CHECKED_HEADERS = frozenset({b"host", b"transfer-encoding", b"expect"})


class MessagePhase(Enum):
    """The part of a request that the connection waits for."""

    HEAD = auto()
    BODY = auto()
    COMPLETE = auto()


class RequestRefused(Exception):
    """The request violates HTTP or a limit. The connection cannot be used any longer."""

    def __init__(self, status: HTTPStatus, message: str, reason: CloseReason = CloseReason.MALFORMED) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class LimitedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Timeouts are checked by `close_expired`, which the server calls for all connections: two timers per request would
    cost more than the rest of this class.
    """

    def __init__(self, *args: Any, table: ConnectionTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.address = ""
        self.is_anonymous = True
        self._table = table
        self.flow: GuardedFlowControl  # pyright: ignore[reportIncompatibleVariableOverride]
        self._extensions = {AUTHENTICATED_EXTENSION: self._mark_authenticated}
        self._held_data: bytes | None = None
        self._running: RequestResponseCycle | None = None
        self._phase = MessagePhase.HEAD
        self._phase_since = self._waiting_since = self.loop.time()
        self._has_progress = False
        self._unparsed_bytes = 0
        self._head_bytes = 0
        self._host_count = 0
        self._transfer_encoding: bytes | None = None
        self._body_bytes = 0
        self._is_refused = False
        self._lingers_since: float | None = None
        self._unsent_bytes = 0
        self._unsent_since = 0.0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.connections.add(self)
        self.transport = transport
        self.flow = GuardedFlowControl(transport, self._may_read)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.server, self.client, self.scheme = get_local_addr(transport), get_remote_addr(transport), "http"
        self.address = self._table.address_key(self.client[0] if self.client else "")
        self._table.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                disconnect_cycle(cycle)
        self.pipeline.clear()
        super().connection_lost(exc)
        self._table.remove(self)
        self._extensions.clear()  # these two refer to this object: without the cycle it is freed at once
        self.flow.may_read = never

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def hold(self) -> None:
        """Read nothing until `serve` is called."""
        self._held_data = b""
        self.loop.call_soon(self._pause_while_held)  # the transport starts to read after `connection_made`

    def _pause_while_held(self) -> None:
        if self._held_data is not None:
            self.flow.pause_reading()

    def serve(self) -> None:
        data, self._held_data = self._held_data, None
        self._phase_since = self._waiting_since = self.loop.time()
        self.flow.resume_reading()
        if data:
            self.data_received(data)

    def abort(self) -> None:
        self.transport.abort()

    def _may_read(self) -> bool:
        return not (self.pipeline or self.flow.write_paused or self._is_refused or self._held_data is not None)

    def _mark_authenticated(self) -> None:
        if self.is_anonymous:
            self.is_anonymous = False
            self._table.release_slot(self)

    # Parser

    def data_received(self, data: bytes) -> None:
        if self._held_data is not None:  # read before `hold` took effect
            self._held_data += data
            if len(self._held_data) > MAX_HEAD_BYTES:
                self._table.closed[CloseReason.ADDRESS_LIMIT] += 1
                self.transport.abort()
            return
        if len(data) <= MAX_HEAD_BYTES:
            self._feed(data)
            return
        view = memoryview(data)  # in parts, so that a head cannot exceed its limit by more than one part
        for start in range(0, len(data), MAX_HEAD_BYTES):
            self._feed(view[start : start + MAX_HEAD_BYTES])

    def _feed(self, data: bytes | memoryview) -> None:
        if self._is_refused:
            self._discard(len(data))
            return
        self._has_progress = False
        try:
            self.parser.feed_data(data)  # pyright: ignore[reportOptionalMemberAccess] until connection_lost
        except httptools.HttpParserUpgrade:  # answer the request without the upgrade, and ignore what follows it
            self.cycle.keep_alive = False
            self._is_refused = True
            self._body_bytes = 0
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = cause if isinstance(cause, RequestRefused) else None
            self._refuse(refusal or RequestRefused(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received."))
        else:
            self._unparsed_bytes = 0 if self._has_progress else self._unparsed_bytes + len(data)
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._refuse(head_too_large())

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            raise RequestRefused(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests wait.", CloseReason.PIPELINING)
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        self._phase = MessagePhase.HEAD
        self._phase_since = self.loop.time()
        self._head_bytes = self._host_count = 0
        self._transfer_encoding = None

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head_bytes += len(name) + len(value) + 4
        if self._phase is MessagePhase.BODY:  # a trailer: counted, and never merged into the headers
            if self._head_bytes > MAX_HEAD_BYTES:
                raise head_too_large()
            return
        self.headers.append((name, value))
        if name in CHECKED_HEADERS:
            if name == b"host":
                self._host_count += 1
            elif name == b"transfer-encoding":
                self._transfer_encoding = value
            elif value.lower() == b"100-continue":
                self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        version = self._check_head()
        self._start_cycle(version)
        if self._table.is_closing:
            self.cycle.keep_alive = False
        self._phase = MessagePhase.BODY
        self._phase_since = self.loop.time()
        self._has_progress = True
        self._body_bytes = 0

    def _check_head(self) -> str:
        """Check the limits of the head; returns the HTTP version."""
        if self._head_bytes + len(self.url) > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise head_too_large()
        version = self.parser.get_http_version()  # pyright: ignore[reportOptionalMemberAccess]
        if version not in {"1.1", "1.0"}:
            raise RequestRefused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Use HTTP/1.1.")
        if self._host_count != 1 and (self._host_count or version == "1.1"):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "Send exactly one Host header.")
        if self._transfer_encoding is not None:
            if version == "1.0":
                raise RequestRefused(HTTPStatus.BAD_REQUEST, "Transfer-Encoding requires HTTP/1.1.")
            if self._transfer_encoding.lower() != b"chunked":
                raise RequestRefused(HTTPStatus.NOT_IMPLEMENTED, "The only supported Transfer-Encoding is chunked.")
        return version

    def _start_cycle(self, version: str) -> None:
        """Handle the request, or queue it behind an earlier one. As uvicorn does, with a cycle of our own."""
        protocol: Any = self  # its attributes are typed for other protocols as well
        parser, scope, app, earlier = protocol.parser, protocol.scope, protocol.app, protocol.cycle
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        self.cycle = SingleWriteCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        self._body_bytes += len(body)
        if self.cycle.response_complete and self._body_bytes > MAX_DISCARDED_BYTES:
            message = "The body is too large."
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, CloseReason.BODY_TOO_LARGE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progress = True
        self._phase = MessagePhase.COMPLETE
        super().on_message_complete()

    # Response

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._waiting_since = self.loop.time()
        self.flow.resume_reading()

    def _refuse(self, refusal: RequestRefused) -> None:
        """Refuse the request that is being received, and close the connection.

        The error is sent only if it is the next response: earlier requests are answered first, without the error.
        """
        self._table.closed[refusal.reason] += 1
        self._is_refused = True
        self.flow.pause_reading()
        last: RequestResponseCycle | None = self.cycle
        if self._phase is MessagePhase.BODY:  # the last request is the refused one
            if last is not self._running:
                self.pipeline.popleft()
                last = self.pipeline[0][0] if self.pipeline else self._running
            elif last.response_started:
                self.transport.close()
                return
            else:
                disconnect_cycle(last)
                last = None
        if last is None or last.response_complete:
            self._send_error(refusal.status, str(refusal))
        else:
            last.keep_alive = False

    def _send_error(self, status: HTTPStatus, message: str) -> None:
        """Send the error and wait for the client to close: closing before it has sent all could lose the error."""
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(message)).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + message.encode())
        self._lingers_since = self.loop.time()
        self._body_bytes = 0
        self.transport.write_eof()
        FlowControl.resume_reading(self.flow)

    def _discard(self, size: int) -> None:
        self._body_bytes += size
        if self._body_bytes > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def announce_close(self) -> None:
        """Close the connection after the last response that is on its way. An idle one stays open for one request."""
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.cycle.keep_alive = False

    # Timeouts

    def idle_seconds(self, now: float) -> float:
        """How long the connection has waited for its client; 0 while a request is handled."""
        if self._unsent_bytes:
            return now - self._unsent_since
        return 0 if self._is_handling else now - self._waiting_since

    @property
    def _is_handling(self) -> bool:
        cycle = self._running
        if cycle is None or cycle.response_complete:
            return False
        return cycle is not self.cycle or self._phase is not MessagePhase.BODY

    def close_expired(self, now: float) -> None:
        """Close the connection if its client has been too slow."""
        self._measure_unsent(now)
        if self._unsent_bytes and now - self._unsent_since > UNREAD_TIMEOUT:
            self._table.closed[CloseReason.UNREAD_RESPONSE] += 1
            self.transport.abort()
        elif self._lingers_since is not None:
            if now - self._lingers_since > LINGER:
                self.transport.abort()
        elif self._held_data is not None:
            if now - self._waiting_since > SLOT_TIMEOUT:
                self._table.closed[CloseReason.ADDRESS_LIMIT] += 1
                self.transport.abort()
        elif self.flow.read_paused:  # the client cannot send
            self._phase_since, self._body_bytes = now, 0
        elif not self.transport.is_closing():
            self._close_slow_sender(now)

    def _measure_unsent(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if not self._unsent_bytes or unsent < self._unsent_bytes:
            self._unsent_since = now
        self._unsent_bytes = unsent

    def _close_slow_sender(self, now: float) -> None:
        elapsed = now - self._phase_since
        if self._phase is MessagePhase.HEAD and elapsed > HEAD_TIMEOUT:
            self._table.closed[CloseReason.HEAD_TIMEOUT] += 1
            self.transport.close()
        elif self._phase is MessagePhase.BODY and self._body_bytes < MIN_BODY_RATE * (elapsed - BODY_GRACE):
            message = "The body did not arrive in time."
            self._refuse(RequestRefused(HTTPStatus.REQUEST_TIMEOUT, message, CloseReason.BODY_TIMEOUT))
        elif self._phase is MessagePhase.COMPLETE and self.idle_seconds(now) > self.timeout_keep_alive:
            self.transport.close()


def never() -> bool:
    return False


def head_too_large() -> RequestRefused:
    message = f"The request head is larger than {MAX_HEAD_BYTES} bytes or has more than {MAX_HEADERS} headers."
    return RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, CloseReason.HEAD_TOO_LARGE)


def disconnect_cycle(cycle: RequestResponseCycle) -> None:
    """Tell the handler of a request that its client is gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()
