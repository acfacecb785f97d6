"""DNS: a resolver with threads of its own, and connections pinned to the checked address.

A nameserver that never responds blocks a thread for half a minute. The event loop has only a few threads for lookups;
shared, the silent names of one receiver would block the lookups for all others, Kakao included.
"""

import asyncio
import errno
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
MAX_THREAD_WAIT = 0.5
"""Seconds to wait for a thread: less than the shortest timeout of a push, so that the receiver is not blamed."""
MAX_ADDRESSES = 3
"""Try at most this many addresses of a host."""


class SystemResolver:
    """Calls the system's resolver in its own threads, at most RESOLVER_THREADS at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="lookup")
        self._free_threads = asyncio.Semaphore(RESOLVER_THREADS)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Look a host up. Raises OSError with ENOBUFS if silent names of other hosts keep all threads busy."""
        try:
            async with asyncio.timeout(MAX_THREAD_WAIT):
                await self._free_threads.acquire()
        except TimeoutError:
            raise OSError(errno.ENOBUFS, "no lookup thread is free") from None
        lookup = self._threads.submit(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        lookup.add_done_callback(partial(self._release_thread, asyncio.get_running_loop()))
        infos = await asyncio.wrap_future(lookup)
        return [str(address[0]) for *_, address in infos]

    def _release_thread(self, loop: asyncio.AbstractEventLoop, _: object) -> None:
        """Called in the thread when the lookup ends, which may be long after its caller gave up."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._free_threads.release)

    def close(self) -> None:
        """Start no more lookups. Running ones end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class PinnedNetworkBackend(AsyncNetworkBackend):
    """Resolves a host once, checks the addresses, and connects to one of them: no second lookup can differ (rebinding).

    Host header, SNI and certificate still use the name. A kept connection is reused without a new lookup: its peer was
    checked when it was opened, and no later DNS response changes the peer.
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
        share = None if timeout is None else timeout / len(addresses)  # leaves time for the next address
        *others, last = map(str, addresses)
        for address in others:
            with suppress(ConnectError, ConnectTimeout):
                return CancelSafeStream(
                    await self._network.connect_tcp(address, port, share, local_address, socket_options)
                )
        return CancelSafeStream(await self._network.connect_tcp(last, port, share, local_address, socket_options))


class CancelSafeStream(AsyncNetworkStream):
    """Closes the connection if its TLS handshake fails or is cancelled; the library leaves it open."""

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
