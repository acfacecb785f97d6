"""Builds the hub: the only module that knows everybody."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from pabal import __version__
from pabal.core.errors import Failed
from pabal.core.metrics import Metrics
from pabal.db.bells import Bell
from pabal.db.doorbell import Doorbell
from pabal.db.pool import Database, Reach
from pabal.db.tx import Tx
from pabal.events.handle import Handlers
from pabal.events.lane import LANE, HeldEvent
from pabal.events.publish import Draft, Published, publish
from pabal.events.pull import Waiting, claim_for
from pabal.events.push import Gone, Post, Pusher, Pushes, Send
from pabal.keys import ring
from pabal.keys.file import there
from pabal.keys.ring import Ring
from pabal.keys.traces import used
from pabal.outside import webhook
from pabal.outside.guard import Origins
from pabal.outside.http import Outside
from pabal.queue.census import Census
from pabal.queue.chores import Chores
from pabal.queue.desk import Desk
from pabal.queue.gatherer import Gatherer
from pabal.queue.outcome import Done, Outcome, Retry
from pabal.queue.worker import Pace, Worker
from pabal.settings import Settings
from pabal.tokens.mint import Mint
from pabal.tokens.verify import Verifier
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
    keys: Ring
    mint: Mint
    tokens: Verifier
    publisher: Gatherer[Draft, Published]
    desk: Desk[Waiting, HeldEvent]
    outside: Outside
    pusher: Pusher
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
    async with AsyncExitStack() as stack:
        db = Database(reach(settings, roads.work, pooler=settings.database_pooler))
        stack.push_async_callback(db.close)
        await db.open()
        keys = await keys_of(settings, db)
        direct = roads.direct or (None if db.ground.pooler else roads.work)
        doorbell = Doorbell(db, reach(settings, direct, pooler=False) if direct else None)
        db.on_commit = doorbell.ring
        metrics = Metrics(__version__)
        stack.callback(metrics.close)
        census = Census(db)
        census.show(metrics.meter)
        mint = Mint(keys, settings.issuer, settings.token_audience)
        ear = stack.enter_context(doorbell.hear(Bell.TOKENS))
        outside = await stack.enter_async_context(Outside(Origins.of(settings.callback_allow)))
        hub = Hub(
            settings=settings,
            db=db,
            doorbell=doorbell,
            census=census,
            chores=Chores(db, chores(settings, keys)),
            metrics=metrics,
            keys=keys,
            mint=mint,
            tokens=Verifier(db, mint, ear),
            publisher=Gatherer(db, publish),
            desk=Desk(db, doorbell, Bell.EVENTS, claim_for, LANE.release),
            outside=outside,
            pusher=Pusher(db, doorbell, keys, sender(outside)),
            closing=asyncio.Event(),
        )
        stack.push_async_callback(doorbell.close)
        await doorbell.open()
        stack.push_async_callback(hub.publisher.close)
        stack.push_async_callback(hub.desk.close)
        stack.callback(hub.closing.set)
        yield hub


def workers(hub: Hub, handlers: Handlers | None = None) -> list[Worker[Any]]:
    """Everybody who works in a process that works: each is to be run until it is told to stop."""
    me = f"{socket.gethostname()}-{os.getpid()}"
    pace = Pace(grace=hub.settings.stop_within)
    employed: list[Worker[Any]] = [
        Worker(f"push:{me}", Pushes(), hub.db, hub.doorbell, hub.pusher.handle, hub.pusher.rota, pace)
    ]
    if handlers:
        theirs = Pace(hands=handlers.hands, grace=hub.settings.stop_within, longest=handlers.longest)
        rota = partial(handlers.rota, hub.db)
        employed.append(Worker(f"handlers:{me}", LANE, hub.db, hub.doorbell, handlers.handle, rota, theirs))
    return employed


def sender(outside: Outside) -> Send:
    """How a push goes out: as a signed webhook."""

    async def send(post: Post) -> Outcome | Gone:
        read = await webhook.deliver(
            outside,
            post.url,
            post.secrets,
            message=post.message,
            at=post.at,
            body=post.body,
            within=post.within,
            traceparent=post.traceparent,
        )
        match read:
            case webhook.Gone(why):
                return Gone(why)
            case Done() | Retry():
                return read
            case _:
                assert_never(read)

    return send


async def keys_of(settings: Settings, db: Database) -> Ring:
    """The keys from the settings, or those in the data folder, which a first start makes."""
    if settings.keys:
        return ring.from_setting(settings.keys.get_secret_value())
    kept = settings.data_dir / ring.FILE
    if not there(kept):
        async with db.autocommit() as tx:
            if await used(tx):
                raise Failed(
                    f"this database was written with keys that are not here: bring them to {kept}, or set PABAL_KEYS"
                )
    return ring.from_folder(settings.data_dir)
