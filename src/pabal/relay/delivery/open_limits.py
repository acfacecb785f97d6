"""Limits on opening streams, in memory: a client that opens and drops streams in a loop costs no database work."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from time import monotonic
from weakref import WeakValueDictionary

from pabal.core.errors import RateLimited, Unauthenticated
from pabal.limits import rate_limit_address

MAX_REMEMBERED_KEYS = 20_000
"""Keys of each kind in memory; the one that was used least recently is forgotten first."""
CONCURRENT_OPENS = 4
"""Streams of one process that are being opened at once, each with a database connection."""
REFUSAL_DELAY = 1.0
"""Seconds before a refusal is sent. A client that retries at once would keep the process busy with refusals."""


class LocalRateLimit:
    """`burst` calls of a key at once, then one per `interval` (GCRA), in this process."""

    def __init__(self, name: str, burst: int, interval: float) -> None:
        self._name = name
        self._interval = interval
        self._tolerance = (burst - 1) * interval
        self._full_at: dict[str, float] = {}
        """For each key, when all of its calls are available again."""

    def check(self, key: str) -> None:
        """Raise RateLimited if the key has no call left."""
        if (wait := self._full_at.get(key, 0.0) - monotonic() - self._tolerance) > 0:
            raise RateLimited(self._name, timedelta(seconds=max(wait, 1.0)))

    def count(self, key: str) -> None:
        """Count a call."""
        full_at = max(self._full_at.pop(key, 0.0), monotonic()) + self._interval
        self._full_at[key] = full_at  # now the last one
        if len(self._full_at) > MAX_REMEMBERED_KEYS:
            del self._full_at[next(iter(self._full_at))]


class StreamOpenLimits:
    """Who may open a stream now.

    Failures are counted by address, but a token that was valid before is not refused for the failures of others behind
    the same proxy.
    """

    def __init__(self) -> None:
        self._per_token = LocalRateLimit("streams opened with this token", burst=30, interval=1.0)
        # Clients behind a proxy that is not trusted share its address and reconnect at once. 100 a second is a third of
        # what a busy process can open. Few tokens are stopped earlier: an address gets ten sessions in five minutes.
        self._per_address = LocalRateLimit("streams opened from this address", burst=5000, interval=0.01)
        self._failures = LocalRateLimit("invalid tokens from this address", burst=50, interval=1.0)
        self._valid_tokens: dict[str, None] = {}
        self._token_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(CONCURRENT_OPENS)

    @asynccontextmanager
    async def opening(self, token_hash: str, address: str) -> AsyncGenerator[None]:
        """Count an opening and wait for its turn; raises RateLimited. One token opens one stream at a time."""
        network = rate_limit_address(address)
        try:
            self._admit(token_hash, network)
        except RateLimited:
            await asyncio.sleep(REFUSAL_DELAY)
            raise
        lock = self._token_locks.setdefault(token_hash, asyncio.Lock())
        try:
            async with lock, self._slots:
                yield
        except Unauthenticated:
            self._valid_tokens.pop(token_hash, None)
            self._failures.count(network)
            raise
        self._remember_valid(token_hash)

    def _admit(self, token_hash: str, network: str) -> None:
        for limit, key in ((self._per_token, token_hash), (self._per_address, network)):
            limit.check(key)
            limit.count(key)
        if token_hash not in self._valid_tokens:
            self._failures.check(network)

    def _remember_valid(self, token_hash: str) -> None:
        self._valid_tokens.pop(token_hash, None)
        self._valid_tokens[token_hash] = None
        if len(self._valid_tokens) > MAX_REMEMBERED_KEYS:
            del self._valid_tokens[next(iter(self._valid_tokens))]
