"""Turns: who may speak to Discord when.

Discord counts by route and over everything. What it says about either is kept in the limits all processes share, so one
worker's 429 makes them all wait; what waits for it goes back to the lane, and spends nothing. So does what waits long
for others on the same route: a channel that does not answer keeps only a few hands.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from pabal import limits
from pabal.core.errors import RateLimited
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.queue.outcome import Snooze

REQUEUE_DELAY = timedelta(seconds=1)
CALL_RATE = RateLimit("discord pace", 40, timedelta(seconds=1))
"""Discord takes fifty calls a second from a bot; what is left over is for emergencies, which do not wait."""
MAX_WAIT = timedelta(seconds=2)
"""How far ahead a place is worth waiting for with the request in hand."""
ROUTE_RETRY_RATE = RateLimit("discord line", 5, timedelta(seconds=1))
"""How those come back to a route who were turned away there: one after the other, or each would be turned away as often
as there are others."""
MAX_ROUTE_RETRY_DELAY = timedelta(hours=1)
MAX_WAITING_PER_ROUTE = 10
"""Requests that wait for their turn on one route; the others are not waited for in a hand."""
LIMIT_NAME = "discord"
ALL_ROUTES = "everywhere"


class DiscordRateLimit:
    """The turns of one process. Calls on one route are made one after the other, as Discord counts them.

    An emergency stands in no line: there are few of them, and a message that hangs must not be in their way.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._routes: dict[str, tuple[asyncio.Lock, int]] = {}
        self._all_routes_paused = False
        """Whether Discord wanted nothing more at all when we last heard of it."""

    async def is_rate_limited(self) -> bool:
        """Whether Discord wants nothing at all from us now."""
        if self._all_routes_paused:
            async with self._db.autocommit() as tx:
                self._all_routes_paused = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES]) > timedelta()
        return self._all_routes_paused

    async def pause_route(self, tx: Tx, route: str, duration: timedelta) -> None:
        """Let nobody speak on a route, or everywhere, for so long."""
        self._all_routes_paused = self._all_routes_paused or route == ALL_ROUTES
        await limits.block_rate_limit(tx, LIMIT_NAME, route, duration)

    @asynccontextmanager
    async def acquire(self, route: str, *, urgent: bool) -> AsyncGenerator[Snooze | None]:
        """A turn on a route; or, for whoever gets none in time, when to come back."""
        if urgent:
            yield await self._pause_outcome(route, urgent=True)
            return
        lock, waiting = self._routes.get(route) or (asyncio.Lock(), 0)
        self._routes[route] = lock, waiting + 1
        try:
            if waiting > MAX_WAITING_PER_ROUTE or not await acquire_in_time(lock):
                yield await self._requeue_outcome(route)
                return
            try:
                yield await self._pause_outcome(route) or await self._wait_for_rate(route)
            finally:
                lock.release()
        finally:
            lock, waiting = self._routes.pop(route)
            if waiting > 1:
                self._routes[route] = lock, waiting - 1

    async def _pause_outcome(self, route: str, *, urgent: bool = False) -> Snooze | None:
        """What Discord said about this route and about everything; those it turns away come back one by one."""
        async with self._db.autocommit() as tx:
            held = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES, route])
            if not held:
                return None
            self._all_routes_paused = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES]) > timedelta()
            line = timedelta() if urgent or self._all_routes_paused else await reserve_route_retry(tx, route)
        return Snooze("Discord wants us to wait", held + line)

    async def _wait_for_rate(self, route: str) -> Snooze | None:
        """Wait for a near place among all our calls; a far one is waited for in the lane."""
        async with self._db.autocommit() as tx:
            try:
                ahead = await limits.reserve_rate_limit(tx, CALL_RATE, "all", MAX_WAIT)
            except RateLimited as full:
                return Snooze("too many are waiting for Discord", full.retry_after)
        if not ahead:
            return None
        await asyncio.sleep(ahead.total_seconds())
        return await self._pause_outcome(route)  # somebody may have been told to wait meanwhile

    async def _requeue_outcome(self, route: str) -> Snooze:
        async with self._db.autocommit() as tx:
            return Snooze("others are waiting for the same place", REQUEUE_DELAY + await reserve_route_retry(tx, route))


async def acquire_in_time(lock: asyncio.Lock) -> bool:
    """Whether the lock was ours soon enough."""
    try:
        async with asyncio.timeout(MAX_WAIT.total_seconds()):
            return await lock.acquire()
    except TimeoutError:
        return False


async def reserve_route_retry(tx: Tx, route: str) -> timedelta:
    """How long after the others somebody may come back to a route."""
    try:
        return await limits.reserve_rate_limit(tx, ROUTE_RETRY_RATE, route, MAX_ROUTE_RETRY_DELAY)
    except RateLimited as full:
        return full.retry_after
