"""Guarded HTTP: one POST, and exactly what became of it.

Connections are httpcore2's, the engine below httpx2; what goes over them is ours, so redirects, cookies, proxies and
decompression are not switched off here, they do not exist. What has to be right is the line between *never sent* and
*perhaps arrived*.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Self, cast

import httpcore2

from pabal import __version__
from pabal.core.errors import Invalid
from pabal.outside.dns import PinnedNetworkBackend, SystemResolver
from pabal.outside.http1 import ConnectionPool, ResponseParser
from pabal.outside.ssrf import AllowedOrigins, Destination, HostLookup, parse_destination, resolve_host, url_error

MAX_RESPONSE_BODY = 64 * 1024
MAX_CONNECTIONS = 256
MAX_IDLE_CONNECTIONS = 64
IDLE_TIMEOUT = timedelta(
    seconds=15
)  # most servers keep a silent connection longer; one they closed first costs an Unknown
DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"pabal/{__version__}"}
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""What a header may be called, and say."""

NETWORK_ERRORS = (OSError, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A status came back. `whole`: so did all of the body, within the time and the size we give it."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of the request left: sending it again cannot make two."""

    error: str


@dataclass(frozen=True, slots=True)
class NoResponse:
    """It was on its way and nothing came back: it may have arrived."""

    error: str


PostResult = HttpResponse | NotSent | NoResponse


class HttpClient:
    """The hub's way to other people's servers. Keeps connections, follows nothing, waits for nobody."""

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
        network = network or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())  # it is one once imported
        tls = tls or default_tls_context()
        # Two sets: a connection opened because the operator allows it never carries what goes to the world.
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
        for lines in self._pools.values():
            await lines.close()

    async def check_url(self, url: str) -> Destination:
        """Say where a URL leads, as of now; Invalid when we would not go there or nobody knows where it is."""
        destination = parse_destination(url, self.allowed_origins)
        try:
            await resolve_host(destination.host, destination.port, self._lookup, allowed=destination.allowed)
        except OSError:
            raise url_error("has a host that does not resolve") from None
        return destination

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, time_limit: timedelta) -> PostResult:
        """Send once; `within` is for all of it, from the lookup to the answer's last byte."""
        course = ResponseParser(MAX_RESPONSE_BODY)
        try:
            where = parse_destination(url, self.allowed_origins)
            request = encode_request(where, {"host": where.authority, **DEFAULT_HEADERS, **headers}, body)
            async with asyncio.timeout(time_limit.total_seconds()):
                await self._pools[where.allowed].exchange(where, request, course, time_limit)
        except Invalid as error:
            return NotSent(str(error))
        except httpcore2.LocalProtocolError:
            return NotSent("the request's headers are not HTTP")
        except NETWORK_ERRORS as fault:
            why = describe_network_error(fault, time_limit)
            return build_response(course) or (NoResponse(why) if course.request_sent else NotSent(why))
        return build_response(course) or NoResponse("the connection ended without an answer")


def encode_request(destination: Destination, headers: Mapping[str, str], body: bytes) -> bytes:
    """The request as it goes on the wire; raises LocalProtocolError where a header would be more than one."""
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
    """Whose certificates we believe: read once, because it takes longer than all the rest of opening a hub."""
    return httpcore2.default_ssl_context()


def describe_network_error(exception: Exception, time_limit: timedelta) -> str:
    """The reason in a few words, without the address."""
    match exception:
        case TimeoutError() | httpcore2.TimeoutException():
            return f"nothing came back within {time_limit.total_seconds():g} s"
        case socket.gaierror():
            return "the name does not resolve"
        case httpcore2.ConnectError(args=(ssl.SSLError() as error, *_)):
            return f"TLS failed: {getattr(error, 'verify_message', None) or error.reason}"
        case httpcore2.ConnectError():
            return "no connection"
        case httpcore2.RemoteProtocolError():
            return "the answer was not HTTP, or none at all"
        case _:
            return "the connection broke"
