"""Lookups: a road's own way to the system's resolver.

A nameserver that never answers keeps a thread for half a minute. The loop has four of them for all: with somebody's
silent names in those nobody would find Kakao.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from httpcore2 import SOCKET_OPTION, AsyncNetworkBackend, AsyncNetworkStream, ConnectError, ConnectTimeout

from pabal.outside.ssrf import HostLookup, resolve_host

RESOLVER_THREADS = 16


class SystemResolver:
    """Asks the system's resolver, so many at a time; the others wait here and are in nobody else's way."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="lookup")

    async def resolve(self, host: str, port: int) -> list[str]:
        look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        return [str(where[0]) for *_, where in found]

    def close(self) -> None:
        """Look nothing more up. What is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


MAX_ADDRESSES = 3


class PinnedNetworkBackend(AsyncNetworkBackend):
    """One lookup, one decision, one connection: a resolver that changes its mind is not asked again.

    The pool hands in the name and gets a connection to a checked address; Host, SNI and the certificate stay with the
    name. A kept connection is used again without a new lookup: whoever is at its other end was checked when it was
    opened, and no later answer of the resolver moves that end.
    """

    def __init__(self, network: AsyncNetworkBackend, lookup: HostLookup, *, allowed: bool) -> None:
        self._network = network
        self._lookup = lookup
        self._allowed = allowed

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        addresses = (await resolve_host(host, port, self._lookup, allowed=self._allowed))[:MAX_ADDRESSES]
        share = None if timeout is None else timeout / len(addresses)  # a silent address leaves time for the next
        *others, last = map(str, addresses)
        for address in others:
            with suppress(ConnectError, ConnectTimeout):
                return CancelSafeStream(
                    await self._network.connect_tcp(address, port, share, local_address, socket_options)
                )
        return CancelSafeStream(await self._network.connect_tcp(last, port, share, local_address, socket_options))


class CancelSafeStream(AsyncNetworkStream):
    """An open connection. One whose handshake is called off closes; the library would leave it open until collected."""

    def __init__(self, stream: AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
