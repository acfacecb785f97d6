"""HTTP client with an SSRF guard: one POST, and exactly what became of it.

Uses only the connections of httpcore2, the layer below httpx2. Redirects, cookies, proxies and decompression are not
disabled; they are not implemented. What matters is the difference between *never sent* and *perhaps arrived*.
"""

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from functools import cache
from typing import Self, cast

import httpcore2

from pabal import __version__
from pabal.core.errors import Invalid
from pabal.outside.dns import PinnedNetworkBackend, SystemResolver
from pabal.outside.http1 import ConnectionPool, ResponseParser
from pabal.outside.ssrf import (
    AllowedOrigins,
    Destination,
    DestinationRefused,
    HostLookup,
    parse_destination,
    resolve_host,
    url_error,
)

MAX_RESPONSE_BODY = 64 * 1024
MAX_CONNECTIONS = 256
MAX_IDLE_CONNECTIONS = 64
IDLE_TIMEOUT = timedelta(seconds=15)  # shorter than most servers': one that they close while we write is a NoResponse
DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"pabal/{__version__}"}
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""The characters that HTTP allows in a header name and value."""

LOCAL_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""The system's errors that say nothing about the receiver: no file descriptor, memory or local port is left."""
ALLOW_HINT = "To allow it, add its origin to PABAL_CALLBACK_ALLOW, such as http://127.0.0.1:9000"
NETWORK_ERRORS = (OSError, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. `is_complete`: the whole body arrived within the limits of time and size."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    is_complete: bool = True


class NotSentCause(Enum):
    """Which side prevented a request from being sent."""

    RECEIVER = auto()
    """The host does not resolve, or accepts no connection."""
    URL = auto()
    """The SSRF guard refuses the URL or the address behind it."""
    REQUEST = auto()
    """The request is not valid HTTP: it can never be sent."""
    CLIENT = auto()
    """This process has no free connection, socket or memory."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte of the request was sent: sending it again cannot duplicate it."""

    error: str
    cause: NotSentCause = NotSentCause.RECEIVER


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The request was sent, at least partly, and no response came: it may have arrived."""

    error: str


PostResult = HttpResponse | NotSent | NoResponse


class HttpClient:
    """Sends POST requests to public addresses and to the origins that the operator allows."""

    def __init__(
        self,
        allowed_origins: AllowedOrigins,
        *,
        idle_timeout: timedelta = IDLE_TIMEOUT,
        lookup: HostLookup | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.allowed_origins = allowed_origins
        self._resolver = SystemResolver()
        self._lookup = lookup = lookup or self._resolver.resolve
        network = network or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())  # a lazy import
        tls = tls or default_tls_context()
        # Separate pools: a connection to an allowed private address never carries a request to a public one.
        self._pools = {
            allowed: ConnectionPool(
                PinnedNetworkBackend(network, lookup, allowed=allowed),
                tls,
                idle_timeout=idle_timeout,
                max_connections=MAX_CONNECTIONS,
                max_idle=MAX_IDLE_CONNECTIONS,
            )
            for allowed in (False, True)
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._resolver.close()
        for pool in self._pools.values():
            await pool.close()

    async def check_url(self, url: str) -> Destination:
        """Parse and resolve a URL; raise Invalid if it is not allowed or does not resolve."""
        try:
            destination = parse_destination(url, self.allowed_origins)
            await resolve_host(destination.host, destination.port, self._lookup, allowed=destination.allowed)
        except DestinationRefused as error:
            raise url_error(f"{error.errors[0].why}. {ALLOW_HINT}") from None
        except OSError:
            raise url_error("has a host that does not resolve") from None
        return destination

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, time_limit: timedelta) -> PostResult:
        """Send once. `time_limit` covers everything from the DNS lookup to the last byte of the response."""
        parser = ResponseParser(MAX_RESPONSE_BODY)
        try:
            destination = parse_destination(url, self.allowed_origins)
            request = encode_request(destination, {"host": destination.authority, **DEFAULT_HEADERS, **headers}, body)
            async with asyncio.timeout(time_limit.total_seconds()):
                await self._pools[destination.allowed].exchange(destination, request, parser, time_limit)
        except Invalid as error:
            return NotSent(str(error), NotSentCause.URL)
        except httpcore2.LocalProtocolError:
            return NotSent("the request headers are not valid HTTP", NotSentCause.REQUEST)
        except NETWORK_ERRORS as exception:
            if not parser.has_connection_slot:
                return NotSent(f"no free connection within {time_limit.total_seconds():g} s", NotSentCause.CLIENT)
            if not parser.request_sent and is_local_shortage(exception):
                return NotSent("the hub has no free lookup thread, socket or memory", NotSentCause.CLIENT)
            error = describe_network_error(exception, time_limit)
            return build_response(parser) or (NoResponse(error) if parser.request_sent else NotSent(error))
        return build_response(parser) or NoResponse("the connection closed without a response")


def encode_request(destination: Destination, headers: Mapping[str, str], body: bytes) -> bytes:
    """Encode the request; raise LocalProtocolError if a header could inject another one."""
    if not all(HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value) for name, value in headers.items()):
        raise httpcore2.LocalProtocolError
    lines = [f"POST {destination.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body


def build_response(parser: ResponseParser) -> HttpResponse | None:
    if parser.status is None:
        return None
    return HttpResponse(parser.status, parser.headers, bytes(parser.body[:MAX_RESPONSE_BODY]), parser.is_complete)


@cache
def default_tls_context() -> ssl.SSLContext:
    """The system's certificate store. Cached, because loading it takes longer than all else at startup."""
    return httpcore2.default_ssl_context()


def is_local_shortage(exception: BaseException) -> bool:
    """Whether this process lacks what a connection needs. httpcore2 wraps the system's error."""
    error: BaseException | None = exception
    while error is not None:
        if isinstance(error, OSError) and error.errno in LOCAL_SHORTAGES:
            return True
        error = error.__cause__
    return False


def describe_network_error(exception: Exception, time_limit: timedelta) -> str:
    """A short reason without the URL, which may be secret."""
    match exception:
        case TimeoutError() | httpcore2.TimeoutException():
            return f"no response within {time_limit.total_seconds():g} s"
        case socket.gaierror():
            return "the host does not resolve"
        case httpcore2.ConnectError(args=(ssl.SSLError() as error, *_)):
            return f"TLS failed: {getattr(error, 'verify_message', None) or error.reason}"
        case httpcore2.ConnectError():
            return "connection failed"
        case httpcore2.RemoteProtocolError():
            return "the response is empty or not valid HTTP"
        case _:
            return "the connection was lost"
