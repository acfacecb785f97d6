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
from pabal.core.errors import TooMany
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.queue.outcome import Snooze

AWAY = timedelta(seconds=1)
PACE = Limit("discord pace", 40, timedelta(seconds=1))
"""Discord takes fifty calls a second from a bot; what is left over is for emergencies, which do not wait."""
NEAR = timedelta(seconds=2)
"""How far ahead a place is worth waiting for with the request in hand."""
LINE = Limit("discord line", 5, timedelta(seconds=1))
"""How those come back to a route who were turned away there: one after the other, or each would be turned away as often
as there are others."""
LONGEST_LINE = timedelta(hours=1)
MOST_WAITING = 10
"""Requests that wait for their turn on one route; the others are not waited for in a hand."""
WHAT = "discord"
EVERYWHERE = "everywhere"


class Turns:
    """The turns of one process. Calls on one route are made one after the other, as Discord counts them.

    An emergency stands in no line: there are few of them, and a message that hangs must not be in their way.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._routes: dict[str, tuple[asyncio.Lock, int]] = {}
        self._hushed = False
        """Whether Discord wanted nothing more at all when we last heard of it."""

    async def is_quiet(self) -> bool:
        """Whether Discord wants nothing at all from us now."""
        if self._hushed:
            async with self._db.autocommit() as tx:
                self._hushed = await limits.held(tx, WHAT, [EVERYWHERE]) > timedelta()
        return self._hushed

    async def hold(self, tx: Tx, route: str, span: timedelta) -> None:
        """Let nobody speak on a route, or everywhere, for so long."""
        self._hushed = self._hushed or route == EVERYWHERE
        await limits.hold(tx, WHAT, route, span)

    @asynccontextmanager
    async def take(self, route: str, *, urgent: bool) -> AsyncGenerator[Snooze | None]:
        """A turn on a route; or, for whoever gets none in time, when to come back."""
        if urgent:
            yield await self._held(route, urgent=True)
            return
        lock, waiting = self._routes.get(route) or (asyncio.Lock(), 0)
        self._routes[route] = lock, waiting + 1
        try:
            if waiting > MOST_WAITING or not await taken(lock):
                yield await self._turned_away(route)
                return
            try:
                yield await self._held(route) or await self._paced(route)
            finally:
                lock.release()
        finally:
            lock, waiting = self._routes.pop(route)
            if waiting > 1:
                self._routes[route] = lock, waiting - 1

    async def _held(self, route: str, *, urgent: bool = False) -> Snooze | None:
        """What Discord said about this route and about everything; those it turns away come back one by one."""
        async with self._db.autocommit() as tx:
            held = await limits.held(tx, WHAT, [EVERYWHERE, route])
            if not held:
                return None
            self._hushed = await limits.held(tx, WHAT, [EVERYWHERE]) > timedelta()
            line = timedelta() if urgent or self._hushed else await place_in_line(tx, route)
        return Snooze("Discord wants us to wait", held + line)

    async def _paced(self, route: str) -> Snooze | None:
        """Wait for a near place among all our calls; a far one is waited for in the lane."""
        async with self._db.autocommit() as tx:
            try:
                ahead = await limits.reserve(tx, PACE, "all", NEAR)
            except TooMany as full:
                return Snooze("too many are waiting for Discord", full.retry_after)
        if not ahead:
            return None
        await asyncio.sleep(ahead.total_seconds())
        return await self._held(route)  # somebody may have been told to wait meanwhile

    async def _turned_away(self, route: str) -> Snooze:
        async with self._db.autocommit() as tx:
            return Snooze("others are waiting for the same place", AWAY + await place_in_line(tx, route))


async def taken(lock: asyncio.Lock) -> bool:
    """Whether the lock was ours soon enough."""
    try:
        async with asyncio.timeout(NEAR.total_seconds()):
            return await lock.acquire()
    except TimeoutError:
        return False


async def place_in_line(tx: Tx, route: str) -> timedelta:
    """How long after the others somebody may come back to a route."""
    try:
        return await limits.reserve(tx, LINE, route, LONGEST_LINE)
    except TooMany as full:
        return full.retry_after
