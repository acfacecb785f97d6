"""The order in which sign-ins are checked.

Hashing a password is slow and a few checks use all of the processor, so strangers who guess must not keep an operator
waiting: each address comes before the second sign-in of any other, and those that failed lately come last.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count

from pabal.core.errors import RateLimited

CONCURRENT_CHECKS = 2
"""As many as there are threads for passwords."""
MAX_WAITING_SIGN_INS = 100
RETRY_AFTER = timedelta(seconds=10)

SignInRank = tuple[bool, int, int]
"""Whether the address failed lately, how many sign-ins it has in the queue, and the age: the newest comes first."""


class SignInQueue:
    """Lets a few sign-ins be checked at once; the others wait in the order of their rank."""

    def __init__(self) -> None:
        self._free = CONCURRENT_CHECKS
        self._by_address = Counter[str]()
        self._numbers = count(0, -1)
        self._waiting: list[tuple[SignInRank, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, address: str, *, has_failed: bool) -> AsyncGenerator[None]:
        """Wait until the sign-in may be checked. Raises RateLimited if too many with a better rank wait."""
        rank = (has_failed, self._by_address[address], next(self._numbers))
        self._by_address[address] += 1
        try:
            await self._wait(rank)
            try:
                yield
            finally:
                self._start_next()
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    async def _wait(self, rank: SignInRank) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (rank, turn))
        if len(self._waiting) > MAX_WAITING_SIGN_INS:
            self._refuse_last()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._start_next()  # it was our turn already
            raise

    def _refuse_last(self) -> None:
        last = max(self._waiting)
        self._waiting.remove(last)
        heapify(self._waiting)
        if not last[1].done():
            last[1].set_exception(RateLimited("sign-ins at once", RETRY_AFTER))

    def _start_next(self) -> None:
        while self._waiting:
            _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
