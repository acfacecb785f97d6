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
from pabal.outside.course import Course
from pabal.outside.guard import Destination, Lookup, Origins, read, refused, resolve
from pabal.outside.lines import Lines
from pabal.outside.lookup import Lookups
from pabal.outside.pin import Pinned

MOST_BODY = 64 * 1024
MOST_CONNECTIONS = 256
MOST_IDLE = 64
IDLE = timedelta(seconds=15)  # most servers keep a silent connection longer; one they closed first costs an Unknown
OURS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"pabal/{__version__}"}
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""What a header may be called, and say."""

FAULTS = (OSError, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)


@dataclass(frozen=True, slots=True)
class Answered:
    """A status came back. `whole`: so did all of the body, within the time and the size we give it."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not one byte of the request left: sending it again cannot make two."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was on its way and nothing came back: it may have arrived."""

    why: str


Exchange = Answered | NotSent | Unknown


class Outside:
    """The hub's way to other people's servers. Keeps connections, follows nothing, waits for nobody."""

    def __init__(
        self,
        origins: Origins,
        *,
        idle: timedelta = IDLE,
        lookup: Lookup | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origins = origins
        self._lookups = Lookups()
        self._lookup = lookup = lookup or self._lookups.ask
        network = network or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())  # it is one once imported
        tls = tls or trusted()
        # Two sets: a connection opened because the operator allows it never carries what goes to the world.
        self._lines = {
            allowed: Lines(
                Pinned(network, lookup, allowed=allowed), tls, idle=idle, most=MOST_CONNECTIONS, most_idle=MOST_IDLE
            )
            for allowed in (False, True)
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._lookups.close()
        for lines in self._lines.values():
            await lines.close()

    async def check(self, url: str) -> Destination:
        """Say where a URL leads, as of now; Invalid when we would not go there or nobody knows where it is."""
        destination = read(url, self.origins)
        try:
            await resolve(destination.host, destination.port, self._lookup, allowed=destination.allowed)
        except OSError:
            raise refused("has a host that does not resolve") from None
        return destination

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, within: timedelta) -> Exchange:
        """Send once; `within` is for all of it, from the lookup to the answer's last byte."""
        course = Course(MOST_BODY)
        try:
            where = read(url, self.origins)
            request = written(where, {"host": where.authority, **OURS, **headers}, body)
            async with asyncio.timeout(within.total_seconds()):
                await self._lines[where.allowed].exchange(where, request, course, within)
        except Invalid as error:
            return NotSent(str(error))
        except httpcore2.LocalProtocolError:
            return NotSent("the request's headers are not HTTP")
        except FAULTS as fault:
            why = told(fault, within)
            return answer(course) or (Unknown(why) if course.sent else NotSent(why))
        return answer(course) or Unknown("the connection ended without an answer")


def written(where: Destination, headers: Mapping[str, str], body: bytes) -> bytes:
    """The request as it goes on the wire; raises LocalProtocolError where a header would be more than one."""
    if not all(NAME.fullmatch(name) and VALUE.fullmatch(value) for name, value in headers.items()):
        raise httpcore2.LocalProtocolError
    lines = [f"POST {where.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body


def answer(course: Course) -> Answered | None:
    if course.status is None:
        return None
    return Answered(course.status, course.headers, bytes(course.body[:MOST_BODY]), course.whole)


@cache
def trusted() -> ssl.SSLContext:
    """Whose certificates we believe: read once, because it takes longer than all the rest of opening a hub."""
    return httpcore2.default_ssl_context()


def told(fault: Exception, within: timedelta) -> str:
    """The reason in a few words, without the address."""
    match fault:
        case TimeoutError() | httpcore2.TimeoutException():
            return f"nothing came back within {within.total_seconds():g} s"
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
