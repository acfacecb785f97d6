"""Pabal as a contestant: a process that reads a command and prints its result.

python -m bench.ours work|default|lane|sql URL fill ROWS | drain ROWS SECONDS | transact CONNECTIONS SECONDS | publish

`work` drains with what `pabal work` runs, `default` the same with the default concurrency of a handler; `lane` with the
lane alone: two loops of claim and settle, and no handlers. To `publish`, `sql` calls `pabal.publish` in its own
transaction, and the others publish as an HTTP request does.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import msgspec

from bench import shop
from bench.peers.stage import (
    INSERT_ORDER,
    PAYLOAD,
    Tally,
    commit_repeatedly,
    enter,
    put_all,
    put_on_demand,
    settings,
    timed_payload,
)
from pabal.cli import GC_THRESHOLDS
from pabal.cli.events.handlers_app import load_handlers
from pabal.cli.hub.run import run_until_stopped
from pabal.core.log import configure_logging
from pabal.db.pool import ConnectOptions, Database
from pabal.events.consume.lane import LANE, EventClaimFilter
from pabal.events.publish.publish import EventDraft, publish_event_batch
from pabal.hub import DatabaseUrls, open_hub
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE
from pabal.settings import Settings

RUN = settings(batch_size=4000, loops=2)
HOLD = timedelta(seconds=30)
PUBLISH = "select pabal.publish($1, $2, $3, $4)"
PUBLISHED = ("minu_find", "order.paid", msgspec.json.encode(PAYLOAD).decode(), shop.SERVICE)
PUBLISHER_ROLE = {"application_name": "shop", "role": "bench_shop"}
DRAFT = EventDraft("minu_find", "order.paid", msgspec.json.encode(PAYLOAD), shop.SERVICE)


def quiet_settings() -> Settings:
    settings = Settings(_env_file=None, log_level="error")  # pyright: ignore[reportCallIssue]
    configure_logging(settings.log_level, settings.log_format)
    return settings


class Work:
    """All of `pabal work`: workers, heartbeats, chores."""

    def __init__(self, app: str = "bench.shop:hub") -> None:
        self._app = app

    async def install(self, url: str) -> None:
        """Do nothing: the template database is migrated already."""

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        async with Database(ConnectOptions(url)) as db:

            async def put(count: int) -> None:
                refused = [
                    item for item in await publish_event_batch(db, [DRAFT] * count) if isinstance(item, Exception)
                ]
                if refused:
                    raise refused[0]

            return await put_all(put, rows)

    async def transact(self, url: str, connections: int, seconds: float) -> dict[str, float]:
        async def connect() -> Callable[[], Awaitable[object]]:
            connection = await asyncpg.connect(url, server_settings=PUBLISHER_ROLE)

            async def commit() -> None:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER)
                    await connection.fetchval(PUBLISH, *PUBLISHED)

            return commit

        return await commit_repeatedly([await connect() for _ in range(connections)], seconds)

    async def drain(self, url: str, tally: Tally) -> None:
        shop.tally = tally
        handlers = load_handlers(self._app)
        async with open_hub(quiet_settings(), DatabaseUrls(url, None)) as hub:
            async with hub.transaction() as tx:
                await handlers.subscribe_services(tx)
            tally.begin()
            stopping = asyncio.create_task(self._stop(tally))
            await run_until_stopped(hub, None, run_workers=True, handlers=handlers)  # until the last of them is settled
            tally.end()
            await stopping

    async def publish(self, url: str) -> None:
        async with open_hub(quiet_settings(), DatabaseUrls(url, None)) as hub:
            await put_on_demand(
                lambda: hub.publisher.put(msgspec.structs.replace(DRAFT, payload=msgspec.json.encode(timed_payload())))
            )

    async def _stop(self, tally: Tally) -> None:
        await tally.over()
        os.kill(os.getpid(), signal.SIGTERM)


class Lane(Work):
    """The lane alone."""

    async def drain(self, url: str, tally: Tally) -> None:
        async with Database(ConnectOptions(url)) as db:

            async def loop() -> None:
                async with db.autocommit() as tx:
                    while tally.left and (
                        claimed := await LANE.claim(
                            tx, RUN["batch_size"], HOLD, "bench", EventClaimFilter(shop.SERVICE)
                        )
                    ):
                        tally.many(len(await LANE.settle(tx, [Settlement(item, DONE) for item in claimed])))

            tally.begin()
            await asyncio.gather(*(loop() for _ in range(RUN["loops"])))
            tally.end()


class Sql(Work):
    """A publisher that knows only SQL."""

    async def publish(self, url: str) -> None:
        connection = await asyncpg.connect(url, server_settings=PUBLISHER_ROLE)
        source, event_type, _, target = PUBLISHED
        await put_on_demand(
            lambda: connection.fetchval(
                PUBLISH, source, event_type, msgspec.json.encode(timed_payload()).decode(), target
            )
        )


PROGRAMS = {"work": Work(), "default": Work("bench.shop:default_hub"), "lane": Lane(), "sql": Sql()}

if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as the command does
    enter(PROGRAMS[sys.argv.pop(1)])
