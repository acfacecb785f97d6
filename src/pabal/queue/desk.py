"""The desk: where the callers of one process wait for rows, long polls and streams alike.

One statement claims for all of them: two thousand waiting accounts are one look at the table when the bell rings, not
two thousand. Waiting holds no connection. What was claimed for a caller who has gone meanwhile is given back at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.bells import Bell
from pabal.db.doorbell import FLOOR, Doorbell
from pabal.db.pool import Database
from pabal.db.tx import Tx

log = get_logger()

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

ClaimFor = Callable[[Tx, Mapping[Key, int]], Awaitable[Mapping[Key, Sequence[Found]]]]
"""Claims for several keys in one statement, for each at most as many as it has places."""
GiveBack = Callable[[Tx, Sequence[Found]], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Caller(Generic[Found]):
    """Somebody who waits, and for how many."""

    places: int
    answer: "asyncio.Future[list[Found]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False


class Desk(Generic[Key, Found]):
    """Serves the callers of one lane in one process."""

    def __init__(
        self,
        db: Database,
        doorbell: Doorbell,
        bell: Bell,
        claim_for: "ClaimFor[Key, Found]",
        give_back: "GiveBack[Found]",
        *,
        floor: timedelta = FLOOR,
    ) -> None:
        self._db = db
        self._ear = doorbell.hear(bell)
        self._claim_for = claim_for
        self._give_back = give_back
        self._floor = floor
        self._waiting: dict[Key, list[Caller[Found]]] = {}
        self._clerk: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()

    async def take(self, key: Key, places: int, wait: timedelta) -> list[Found]:
        """Up to `places` rows of `key`: those due now, else the first that come, else none after `wait`."""
        caller: Caller[Found] = Caller(places)
        if wait > timedelta():
            self._enter(key, caller)  # before looking, so that nothing that comes between is missed
        try:
            found = await self._look_once(key, places)
            if found or wait <= timedelta():
                return found
            try:
                async with asyncio.timeout(wait.total_seconds()):
                    await caller.answer
            except TimeoutError:
                if not caller.answer.done() or caller.answer.cancelled():
                    return []
            caller.taken = True
            return caller.answer.result()
        finally:
            self._leave(key, caller)

    async def close(self) -> None:
        """Send everybody home with nothing, and finish what is being given back."""
        for callers in self._waiting.values():
            for caller in callers:
                if not caller.answer.done():
                    caller.answer.set_result([])
        await asyncio.gather(*self._errands, return_exceptions=True)

    def _enter(self, key: Key, caller: Caller[Found]) -> None:
        self._waiting.setdefault(key, []).append(caller)
        if self._clerk is None or self._clerk.done():
            self._clerk = asyncio.create_task(self._serve(), name="desk")

    def _leave(self, key: Key, caller: Caller[Found]) -> None:
        callers = self._waiting.get(key, [])
        if caller in callers:
            callers.remove(caller)
            if not callers:
                del self._waiting[key]
        if not self._waiting:
            self._ear.nudge()  # the clerk goes home when nobody waits
        if caller.answer.done() and not caller.answer.cancelled() and not caller.taken:
            self._send_back(caller.answer.result())

    async def _look_once(self, key: Key, places: int) -> list[Found]:
        looking = asyncio.create_task(self._claim({key: places}))
        try:
            found = await asyncio.shield(looking)
        except asyncio.CancelledError:  # gone, while the database was already claiming for it
            looking.add_done_callback(self._send_back_all)
            raise
        return [*found.get(key, ())]

    async def _serve(self) -> None:
        with self._ear:
            while self._waiting:
                await self._ear.within(self._floor * random.uniform(0.8, 1.2))  # noqa: S311 spreads many processes' looks
                places = {key: sum(each.places for each in callers) for key, callers in self._waiting.items()}
                if not places:
                    return
                try:
                    found = await self._claim(places)
                except PabalError as error:
                    log.warning("desk waits", why=str(error))
                    continue
                for key, rows in found.items():
                    self._hand_out(key, [*rows])

    def _hand_out(self, key: Key, rows: list[Found]) -> None:
        for caller in self._waiting.get(key, ()):
            if rows and not caller.answer.done():
                caller.answer.set_result(rows[: caller.places])
                del rows[: caller.places]
        self._send_back(rows)

    async def _claim(self, places: Mapping[Key, int]) -> Mapping[Key, Sequence[Found]]:
        async with self._db.autocommit() as tx:
            return await self._claim_for(tx, places)

    def _send_back_all(self, looking: "asyncio.Task[Mapping[Key, Sequence[Found]]]") -> None:
        if not looking.cancelled() and looking.exception() is None:
            for rows in looking.result().values():
                self._send_back(rows)

    def _send_back(self, rows: Sequence[Found]) -> None:
        if rows:
            errand = asyncio.create_task(self._return(rows))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _return(self, rows: Sequence[Found]) -> None:
        try:
            async with self._db.transaction() as tx:
                await self._give_back(tx, rows)
        except PabalError as error:
            log.warning("left to their leases", rows=len(rows), why=str(error))
