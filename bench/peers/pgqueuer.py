"""pgqueuer: jobs leave their table when they end, and a line of its log says so."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

from bench.peers.stage import INSERT_ORDER, PAYLOAD, Tally, commit_repeatedly, enter, put_all, settings

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

        tally.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(stop())
            await hub.run(batch_size=RUN["batch_size"])
        tally.end()

    async def wake(self, url: str, times: int) -> list[float]:
        """Put one at a time while the worker sleeps; how long each took until its handler began."""
        pool = await asyncpg.create_pool(url, min_size=4, max_size=RUN["connections"], server_settings=SETTINGS)
        hub = PgQueuer(AsyncpgPoolDriver(pool))
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url, server_settings=SETTINGS)))
        began = 0.0
        durations: list[float] = []
        handled = asyncio.Event()

        @hub.entrypoint("job")
        async def job(_job: object) -> None:
            durations.append(time.perf_counter() - began)
            handled.set()

        running = asyncio.create_task(hub.run())
        await asyncio.sleep(1)
        for _ in range(times):
            await asyncio.sleep(0.02)
            handled.clear()
            began = time.perf_counter()
            await queries.enqueue("job", BODY)
            await handled.wait()
        hub.shutdown.set()
        await running
        return sorted(durations)


if __name__ == "__main__":
    enter(Pgqueuer())
