"""Guarded HTTP: one POST, and exactly what became of it.

This stands on httpcore2, the engine below httpx2: redirects, cookies, proxies and decompression are not switched off
here, they do not exist. What has to be right is the line between *never sent* and *perhaps arrived*.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Self, cast

import httpcore2

from pabal import __version__
from pabal.core.errors import Invalid
from pabal.outside.guard import Destination, Lookup, Origins, ask, read, refused, resolve
from pabal.outside.pin import Pinned

MOST_BODY = 64 * 1024
MOST_CONNECTIONS = 256
MOST_IDLE = 64
IDLE = timedelta(seconds=15)  # most servers keep a silent connection longer; one they closed first costs an Unknown
OURS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"pabal/{__version__}"}
SENDING = "http11.send_request_headers.started"

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
        lookup: Lookup = ask,
        network: httpcore2.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origins = origins
        self._lookup = lookup
        network = network or cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())  # it is one once imported
        tls = tls or trusted()
        # Two pools: a connection opened because the operator allows it never carries what goes to the world.
        self._pools = {
            allowed: httpcore2.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=MOST_CONNECTIONS,
                max_keepalive_connections=MOST_IDLE,
                keepalive_expiry=idle.total_seconds(),
                network_backend=Pinned(network, lookup, allowed=allowed),
            )
            for allowed in (False, True)
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

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
        course = Course()
        try:
            destination = read(url, self.origins)
            async with asyncio.timeout(within.total_seconds()):
                await self._converse(destination, body, headers, within, course)
        except Invalid as error:
            return NotSent(str(error))
        except httpcore2.LocalProtocolError:  # found while the first byte was being made
            return NotSent("the request's headers are not HTTP")
        except FAULTS as fault:
            why = told(fault, within)
            return course.answer() or (Unknown(why) if course.sent else NotSent(why))
        return course.answer() or Unknown("the connection ended without an answer")

    async def _converse(
        self, where: Destination, body: bytes, headers: Mapping[str, str], within: timedelta, course: "Course"
    ) -> None:
        async with self._pools[where.allowed].stream(
            "POST",
            httpcore2.URL(
                scheme=where.scheme.encode(), host=where.host.encode(), port=where.port, target=where.target.encode()
            ),
            headers=[*{"host": where.authority, **OURS, **headers}.items()],
            content=body,
            extensions={"timeout": {"connect": within.total_seconds()}, "trace": course.trace},
        ) as response:
            course.status = response.status
            course.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            async with aclosing(response.aiter_stream()) as chunks:
                async for chunk in chunks:
                    course.body += chunk
                    if len(course.body) > MOST_BODY:
                        return  # leaving before the end drops the connection, and with it whatever else was coming
                    await asyncio.sleep(0)  # a body of ten thousand crumbs arrives at once; others have their turn
            course.whole = True


class Course:
    """How far an exchange has come, for whoever has to say so when it breaks off."""

    def __init__(self) -> None:
        self.sent = False
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.body = bytearray()
        self.whole = False

    async def trace(self, step: str, _facts: Mapping[str, Any]) -> None:
        self.sent = self.sent or step == SENDING

    def answer(self) -> Answered | None:
        if self.status is None:
            return None
        return Answered(self.status, self.headers, bytes(self.body[:MOST_BODY]), self.whole)


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
