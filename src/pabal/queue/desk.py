"""The desk: where the callers of one process wait for rows, long polls and streams alike.

One statement claims for all of them: two thousand waiting accounts are one look at the table, not two thousand, and a
ring that names its topic is a look for those who wait for it. Waiting holds no connection. What was claimed for
somebody who has gone meanwhile is given back at once.

Somebody who waits once is a caller; somebody who stays, as a stream does, has a seat.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
EVERYBODY = frozenset({""})
GiveBack = Callable[[Tx, Sequence[Found]], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Caller(Generic[Found]):
    """Somebody who waits once, and for how many."""

    places: int
    answer: "asyncio.Future[list[Found]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False

    @property
    def free(self) -> int:
        return 0 if self.answer.done() else self.places

    def give(self, rows: list[Found]) -> None:
        self.answer.set_result(rows)


@dataclass(slots=True, eq=False)
class Seat(Generic[Found]):
    """Somebody who stays. `free` is how many more it takes, and goes down with what it is given."""

    free: int
    take: Callable[[list[Found]], None]

    def give(self, rows: list[Found]) -> None:
        self.free -= len(rows)
        self.take(rows)


def nobody_in_particular(_key: object) -> str:
    """The topic of a desk whose rings name none."""
    return ""


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
        topic: Callable[[Key], str] | None = None,
        floor: timedelta = FLOOR,
    ) -> None:
        self._db = db
        self._ear = doorbell.hear(bell)
        self._claim_for = claim_for
        self._give_back = give_back
        self._topic: Callable[[Key], str] = topic or nobody_in_particular
        self._floor = floor
        self._waiting: dict[Key, list[Caller[Found] | Seat[Found]]] = {}
        self._topics: dict[str, dict[Key, None]] = {}
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

    def sit(self, key: Key, seat: Seat[Found]) -> None:
        """Stay: what is due now comes soon, and then whatever comes."""
        self._enter(key, seat)
        self.look(key)

    def look(self, key: Key) -> None:
        """Look for this key soon: somebody has more places than before."""
        self._ear.nudge(self._topic(key))

    def rise(self, key: Key, seat: Seat[Found], unused: Sequence[Found]) -> None:
        """Leave a seat, and give back what was not used."""
        self._remove(key, seat)
        self._send_back(unused)

    async def close(self) -> None:
        """Send every caller home with nothing, and finish what is being given back."""
        for callers in self._waiting.values():
            for caller in callers:
                if isinstance(caller, Caller) and not caller.answer.done():
                    caller.answer.set_result([])
        await asyncio.gather(*self._errands, return_exceptions=True)

    def _enter(self, key: Key, caller: Caller[Found] | Seat[Found]) -> None:
        self._waiting.setdefault(key, []).append(caller)
        self._topics.setdefault(self._topic(key), {})[key] = None
        if self._clerk is None or self._clerk.done():
            self._clerk = asyncio.create_task(self._serve(), name="desk")

    def _remove(self, key: Key, caller: Caller[Found] | Seat[Found]) -> None:
        callers = self._waiting.get(key, [])
        if caller in callers:
            callers.remove(caller)
            if not callers:
                del self._waiting[key]
                topic = self._topic(key)
                del self._topics[topic][key]
                if not self._topics[topic]:
                    del self._topics[topic]
        if not self._waiting:
            self._ear.nudge()  # the clerk goes home when nobody waits

    def _leave(self, key: Key, caller: Caller[Found]) -> None:
        self._remove(key, caller)
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
                rang = await self._ear.rings(self._floor * random.uniform(0.8, 1.2))  # noqa: S311 spreads many processes
                places = self._places(self._ear.topics() if rang else EVERYBODY)
                if not places:
                    continue
                try:
                    found = await self._claim(places)
                except PabalError as error:
                    log.warning("desk waits", why=str(error))
                    continue
                except Exception:  # whoever waits here would wait for ever
                    log.exception("desk waits")
                    continue
                for key, rows in found.items():
                    try:
                        self._hand_out(key, [*rows])
                    except Exception:  # one that cannot take what it is given keeps nothing from the others
                        log.exception("desk failed", rows=len(rows))

    def _places(self, topics: AbstractSet[str]) -> dict[Key, int]:
        """How many each takes, of those it rang for."""
        keys = self._waiting if "" in topics else [key for topic in topics for key in self._topics.get(topic, ())]
        return {key: free for key in keys if (free := sum(each.free for each in self._waiting[key]))}

    def _hand_out(self, key: Key, rows: list[Found]) -> None:
        for caller in self._waiting.get(key, ()):
            if rows and (free := caller.free):
                caller.give(rows[:free])
                del rows[:free]
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
