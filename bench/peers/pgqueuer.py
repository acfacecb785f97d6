"""pgqueuer: jobs leave their table when they end, and its log records how."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job

from bench.peers.stage import (
    INSERT_ORDER,
    PAYLOAD,
    Tally,
    commit_repeatedly,
    enter,
    put_all,
    put_on_demand,
    report_age,
    settings,
    timed_payload,
)

RUN = settings(batch_size=1000, connections=16)
SETTINGS = {"jit": "off"}
BODY = json.dumps(PAYLOAD, separators=(",", ":")).encode()


class Pgqueuer:
    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        connection = await asyncpg.connect(url, server_settings=SETTINGS)
        queries = Queries(AsyncpgDriver(connection))
        result = await put_all(lambda count: queries.enqueue(["job"] * count, [BODY] * count, [0] * count), rows)
        await connection.close()
        return result

    async def transact(self, url: str, connections: int, seconds: float) -> dict[str, float]:
        async def connect() -> Callable[[], Awaitable[object]]:
            connection = await asyncpg.connect(url, server_settings=SETTINGS)
            queries = Queries(AsyncpgDriver(connection))

            async def commit() -> None:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER)
                    await queries.enqueue("job", BODY)

            return commit

        return await commit_repeatedly([await connect() for _ in range(connections)], seconds)

    async def drain(self, url: str, tally: Tally) -> None:
        pool = await asyncpg.create_pool(url, min_size=4, max_size=RUN["connections"], server_settings=SETTINGS)
        hub = PgQueuer(AsyncpgPoolDriver(pool))

        @hub.entrypoint("job")
        async def job(_job: object) -> None:
            tally.one()

        async def stop() -> None:
            await tally.over()
            hub.shutdown.set()

        hub.qm.queries.dequeue = tally.begin_with(hub.qm.queries.dequeue)
        async with asyncio.TaskGroup() as group:
            group.create_task(stop())
            await hub.run(batch_size=RUN["batch_size"])
        tally.end()

    async def publish(self, url: str) -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url, server_settings=SETTINGS)))
        await put_on_demand(lambda: queries.enqueue("job", json.dumps(timed_payload()).encode()))

    async def consume(self, url: str) -> None:
        pool = await asyncpg.create_pool(url, min_size=4, max_size=RUN["connections"], server_settings=SETTINGS)
        hub = PgQueuer(AsyncpgPoolDriver(pool))

        @hub.entrypoint("job")
        async def job(job: Job) -> None:
            report_age(json.loads(job.payload or b"{}"))

        await hub.run()


if __name__ == "__main__":
    enter(Pgqueuer())
