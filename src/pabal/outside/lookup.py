"""Lookups: a road's own way to the system's resolver.

A nameserver that never answers keeps a thread for half a minute. The loop has four of them for all: with somebody's
silent names in those nobody would find Kakao.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
