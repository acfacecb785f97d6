"""Discord's rate limits, shared by all processes.

Discord limits each route and the bot as a whole. What its responses say is stored in `pabal.limits`, so one worker's
429 pauses all of them. A notification that would wait long goes back to the lane without spending an attempt, so a
channel that does not respond occupies only a few slots.
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
CALL_RATE = RateLimit("discord calls", 40, timedelta(seconds=1))
"""Discord allows a bot 50 calls a second. The other ten are for emergencies, which skip this limit."""
MAX_WAIT = timedelta(seconds=2)
"""The longest a claimed notification waits for its route or its call."""
ROUTE_RETRY_RATE = RateLimit("discord retries", 5, timedelta(seconds=1))
"""Requeued notifications of one route come back at this rate; all at once, most would be requeued again."""
MAX_ROUTE_RETRY_DELAY = timedelta(hours=1)
MAX_WAITING_PER_ROUTE = 10
"""Claimed notifications that may wait for one route."""
LIMIT_NAME = "discord"
ALL_ROUTES = "all routes"


class DiscordRateLimit:
    """Grants the calls of one process. Calls on one route run one after the other, as Discord counts them.

    Emergencies skip the route's lock: they are few, and a call that hangs must not delay them.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._routes: dict[str, tuple[asyncio.Lock, int]] = {}
        """Per route: its lock, and how many hold it or wait for it."""
        self._all_routes_paused = False
        """Whether Discord refused all calls when we last checked."""

    async def is_rate_limited(self) -> bool:
        """Whether Discord refuses all calls now."""
        if self._all_routes_paused:
            async with self._db.autocommit() as tx:
                self._all_routes_paused = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES]) > timedelta()
        return self._all_routes_paused

    async def pause_route(self, tx: Tx, route: str, duration: timedelta) -> None:
        """Pause one route, or `ALL_ROUTES`, in every process."""
        self._all_routes_paused = self._all_routes_paused or route == ALL_ROUTES
        await limits.block_rate_limit(tx, LIMIT_NAME, route, duration)

    @asynccontextmanager
    async def acquire(self, route: str, *, urgent: bool) -> AsyncGenerator[Snooze | None]:
        """Yield None when the call may be made now, or the Snooze to settle with."""
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
        """Return a Snooze while the route or the bot is paused, each one delayed a little more than the last."""
        async with self._db.autocommit() as tx:
            pause = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES, route])
            if not pause:
                return None
            self._all_routes_paused = await limits.blocked_for(tx, LIMIT_NAME, [ALL_ROUTES]) > timedelta()
            spread = timedelta() if urgent or self._all_routes_paused else await reserve_route_retry(tx, route)
        return Snooze("rate limited by Discord", pause + spread)

    async def _wait_for_rate(self, route: str) -> Snooze | None:
        """Wait for a slot in `CALL_RATE`, or return a Snooze when the next slot is too far away."""
        async with self._db.autocommit() as tx:
            try:
                wait = await limits.reserve_rate_limit(tx, CALL_RATE, "all", MAX_WAIT)
            except RateLimited as error:
                return Snooze("too many calls to Discord are waiting", error.retry_after)
        if not wait:
            return None
        await asyncio.sleep(wait.total_seconds())
        return await self._pause_outcome(route)  # another worker may have been rate limited meanwhile

    async def _requeue_outcome(self, route: str) -> Snooze:
        async with self._db.autocommit() as tx:
            return Snooze(
                "too many messages are waiting for the same channel",
                REQUEUE_DELAY + await reserve_route_retry(tx, route),
            )


async def acquire_in_time(lock: asyncio.Lock) -> bool:
    """Acquire the lock within `MAX_WAIT`. Return False on timeout."""
    try:
        async with asyncio.timeout(MAX_WAIT.total_seconds()):
            return await lock.acquire()
    except TimeoutError:
        return False


async def reserve_route_retry(tx: Tx, route: str) -> timedelta:
    """Reserve the next retry on a route. Return how far away it is."""
    try:
        return await limits.reserve_rate_limit(tx, ROUTE_RETRY_RATE, route, MAX_ROUTE_RETRY_DELAY)
    except RateLimited as error:
        return error.retry_after
