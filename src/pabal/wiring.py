"""Builds the hub: the only module that knows everybody."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from pabal import __version__
from pabal.core.metrics import Metrics
from pabal.db.doorbell import Doorbell
from pabal.db.pool import Database, Reach
from pabal.db.tx import Tx
from pabal.queue.census import Census
from pabal.queue.chores import Chores
from pabal.settings import Settings
from pabal.upkeep import chores


@dataclass(frozen=True, slots=True)
class Roads:
    """The ways to the database: one for the work, one past any pooler for LISTEN and migrations."""

    work: str = field(repr=False)
    direct: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hub:
    """A running hub: what doors, commands and workers are given."""

    settings: Settings
    db: Database
    doorbell: Doorbell
    census: Census
    chores: Chores
    metrics: Metrics
    closing: asyncio.Event
    """Set when the hub begins to stop: open streams end themselves."""

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.transaction()

    def autocommit(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.autocommit()


def reach(settings: Settings, url: str, *, pooler: bool | None = None) -> Reach:
    return Reach(
        url,
        size=settings.database_pool_size,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pooler=pooler,
    )


@asynccontextmanager
async def open_hub(settings: Settings, roads: Roads) -> AsyncGenerator[Hub]:
    """Open the database and everything that lives beside it; close it all again, in the other order."""
    db = Database(reach(settings, roads.work, pooler=settings.database_pooler))
    await db.open()
    direct = roads.direct or (None if db.ground.pooler else roads.work)
    doorbell = Doorbell(db, reach(settings, direct, pooler=False) if direct else None)
    db.on_commit = doorbell.ring
    metrics = Metrics(__version__)
    census = Census(db)
    census.show(metrics.meter)
    hub = Hub(settings, db, doorbell, census, Chores(db, chores(settings)), metrics, asyncio.Event())
    try:
        await doorbell.open()
        yield hub
    finally:
        hub.closing.set()
        await doorbell.close()
        await db.close()
        metrics.close()
