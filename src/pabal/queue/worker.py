"""A worker: claims as many rows as it has free hands, works them all at once, settles them in batches.

Three loops that never wait for each other: one claims, one settles, one keeps the leases. Whatever is held stays held
until it is settled or lost, so `hands` bounds everything the worker has in memory.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Generic
from uuid import UUID

from pabal.core.errors import PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.doorbell import FLOOR, Doorbell, Ear
from pabal.db.faults import Contended
from pabal.db.pool import Database
from pabal.queue.lane import Claimed, Item, Lane, Verdict
from pabal.queue.outcome import Done, Outcome, Retry

log = get_logger()

Handle = Callable[[Item], Awaitable[Outcome]]
Whom = dict[str, Any]
"""For whom a claim is, as the lane takes it. `most`, if it is said, is the room they have: no claim asks for more."""
Rota = Callable[[], Awaitable[Sequence[Whom]]]

LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much at once, for how long, how soon."""

    hands: int = 100
    hold: timedelta = timedelta(seconds=30)
    floor: timedelta = FLOOR
    grace: timedelta = timedelta(seconds=10)
    """What running handlers get when the worker stops; the rest is given back."""
    longest: timedelta = timedelta(minutes=15)
    """What one handler may take: a hung one would otherwise be kept alive by our own heartbeat."""


@dataclass(slots=True)
class Hold(Generic[Item]):
    """A row in our hands, and who works it."""

    item: Item
    task: "asyncio.Task[None]"
    since: float
    overdue: bool = False


async def everybody() -> Sequence[Whom]:
    """The rota of a lane whose claims name nobody."""
    return ({},)


@dataclass(slots=True)
class Worker(Generic[Item]):
    """Works one lane until it is told to stop."""

    name: str
    lane: Lane[Item]
    db: Database
    doorbell: Doorbell
    handle: Handle[Item]
    rota: Rota = everybody
    pace: Pace = field(default_factory=Pace)
    _held: dict[UUID, Hold[Item]] = field(init=False, default_factory=dict)
    _ended: list[Verdict] = field(init=False, default_factory=list)
    _work_done: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _hands_free: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _ear: Ear | None = field(init=False, default=None)
    _short: bool = field(init=False, default=False)
    _rounds_settled: int = field(init=False, default=0)

    async def run(self) -> None:
        """Work until `stop`, then finish or give back what is held."""
        try:
            async with asyncio.TaskGroup() as loops:  # a loop that breaks takes the worker with it, loudly
                others = [loops.create_task(self._settles()), loops.create_task(self._keeps())]
                await self._claims()
                await self._finish()
                for loop in others:
                    loop.cancel()
        finally:
            for hold in self._held.values():
                hold.task.cancel()

    def stop(self) -> None:
        self._stopping.set()
        self._hands_free.set()
        if self._ear is not None:
            self._ear.nudge()

    @property
    def holds(self) -> int:
        return len(self._held)

    # Claiming

    async def _claims(self) -> None:
        pause = 0.1
        with self.doorbell.hear(self.lane.bell) as self._ear:
            while not self._stopping.is_set():
                try:
                    more = await self._claim_round()
                except Contended:
                    continue
                except Exception as error:  # noqa: BLE001 a row we cannot even read must not stop the worker
                    log.warning(
                        "claim failed", worker=self.name, lane=self.lane.name, why=f"{type(error).__name__}: {error}"
                    )
                    await self._pause(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                pause = 0.1
                if not more and not self._stopping.is_set():
                    patience = self.pace.floor * random.uniform(0.8, 1.2)  # noqa: S311 spreads the looks of many workers
                    await self._ear.within(patience)

    async def _claim_round(self) -> bool:
        """Give everybody on the rota their share of the free hands. True when there may be more."""
        if self.pace.hands <= len(self._held):
            self._hands_free.clear()
            await self._hands_free.wait()
        more = short = False
        settled = self._rounds_settled
        rota = await self.rota()
        for place, whom in enumerate(rota):
            free = self.pace.hands - len(self._held)
            share = -(-free // (len(rota) - place))
            if share <= 0 or self._stopping.is_set():
                return True
            room = min(share, whom.get("most", share))
            found = await self._claim(room, whom) if room else 0
            more = more or found == share
            short = short or found == room < share
        self._short = short  # somebody's room is full: they are looked at again when anything is settled
        return more or (short and self._rounds_settled != settled)

    async def _claim(self, room: int, whom: Whom) -> int:
        asked = {name: value for name, value in whom.items() if name != "most"}
        async with self.db.autocommit() as tx:
            found = await self.lane.claim(tx, room, self.pace.hold, self.name, **asked)
        for item in found:
            self._drop(item.id)  # claimed again while an earlier claim of ours, long lost, is still at work
            self._held[item.id] = Hold(item, asyncio.create_task(self._work(item)), monotonic())
        return len(found)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):  # noqa: S311 as above
                await self._stopping.wait()

    # Working

    async def _work(self, item: Item) -> None:
        try:
            outcome: Any = await self.handle(item)
            if not isinstance(outcome, Outcome):
                outcome = failed(TypeError(f"a handler gives an outcome, not {type(outcome).__name__}"))
        except asyncio.CancelledError as error:
            hold = self._held.get(item.id)
            me = asyncio.current_task()
            if hold is not None and hold.task is me and hold.overdue:
                outcome = Retry(f"took longer than {self.pace.longest.total_seconds():g} s", code="timeout")
            elif me is None or me.cancelling():  # by us: the row is lost or given back
                raise
            else:  # by something the handler waited for: a failure as any other
                outcome = failed(error)
        except Exception as error:  # noqa: BLE001 a poison row must not stop the worker
            outcome = failed(error)
        self._ended.append(Verdict(item, outcome))
        self._work_done.set()

    # Settling

    async def _settles(self) -> None:
        pause = 0.05
        while True:
            await self._work_done.wait()
            self._work_done.clear()
            batch, self._ended = self._ended, []
            try:
                await self._settle(batch)
            except (Unavailable, Contended) as error:
                log.warning("settle delayed", worker=self.name, rows=len(batch), why=str(error))
                self._ended = batch + self._ended
                self._work_done.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                pause = 0.05

    async def _settle(self, batch: list[Verdict]) -> None:
        """Settle a batch; if the database refuses it, find the row it refuses and leave that one to its lease."""
        alike = all(isinstance(verdict.outcome, Done) for verdict in batch)
        try:
            async with self.db.autocommit() if alike else self.db.transaction() as tx:
                settled = await self.lane.settle(tx, batch)
        except (Contended, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 whatever a handler said that cannot be written must not stop the others
            if len(batch) == 1:
                log.error("settle refused", worker=self.name, row=str(batch[0].item.id), why=str(error))
                self._let_go(batch)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for verdict in batch:
            if verdict.item.id not in settled:
                log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(verdict.item.id))
        self._let_go(batch)

    def _let_go(self, batch: Sequence[Verdict]) -> None:
        for verdict in batch:
            if self._holds(verdict.item):
                del self._held[verdict.item.id]
        self._hands_free.set()
        self._rounds_settled += 1
        if self._short and self._ear is not None:
            self._ear.nudge()

    def _holds(self, item: Claimed) -> bool:
        hold = self._held.get(item.id)
        return hold is not None and hold.item.lease == item.lease

    # Keeping leases

    async def _keeps(self) -> None:
        while True:
            await asyncio.sleep(min(self.pace.hold / 3, self.pace.longest).total_seconds())
            self._end_overdue()
            held = [hold.item for hold in self._held.values()]
            if not held:
                continue
            try:
                async with self.db.autocommit() as tx:
                    lost = await self.lane.extend(tx, held, self.pace.hold)
            except PabalError as error:
                log.warning("heartbeat missed", worker=self.name, rows=len(held), why=str(error))
                continue
            for item in held:
                if item.id in lost and self._holds(item):
                    self._drop(item.id)

    def _end_overdue(self) -> None:
        """Cancel handlers that take too long; each then settles its row as a failed attempt."""
        before = monotonic() - self.pace.longest.total_seconds()
        for hold in self._held.values():
            if hold.since < before and not hold.overdue and not hold.task.done():
                log.warning("handler overdue", worker=self.name, lane=self.lane.name, row=str(hold.item.id))
                hold.overdue = True
                hold.task.cancel()

    def _drop(self, row: UUID) -> None:
        """A row that is no longer ours: its handler is told by being cancelled, and nothing is settled."""
        hold = self._held.pop(row, None)
        if hold is not None:
            log.warning("lease lost", worker=self.name, lane=self.lane.name, row=str(row))
            hold.task.cancel()
            self._hands_free.set()

    # Stopping

    async def _finish(self) -> None:
        running = [hold.task for hold in self._held.values()]
        if running:
            await asyncio.wait(running, timeout=self.pace.grace.total_seconds())
        unfinished = [hold for hold in self._held.values() if not hold.task.done()]
        for hold in unfinished:
            hold.task.cancel()
            del self._held[hold.item.id]
        try:
            if unfinished:
                async with self.db.transaction() as tx:
                    await self.lane.release(tx, [hold.item for hold in unfinished])
            async with asyncio.timeout(self.pace.grace.total_seconds()):
                while self._held:  # what is done is on its way into the table: the settling loop is still at it
                    self._hands_free.clear()
                    await self._hands_free.wait()
        except (PabalError, TimeoutError) as error:
            log.warning("left to their leases", worker=self.name, rows=len(self._held), why=str(error))


def failed(error: BaseException) -> Retry:
    return Retry(
        f"{type(error).__name__}: {error}",
        code=type(error).__name__,
        stack="".join(traceback.format_exception(error)),
    )
