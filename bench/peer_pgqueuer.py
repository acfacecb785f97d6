"""pgqueuer at its best settings found, in its own environment. Prints one JSON object.

python peer_pgqueuer.py URL drain ROWS | wake TIMES
"""

import asyncio
import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

PAYLOAD = json.dumps({"text": "x" * 180}).encode()


async def main(url: str, what: str, number: int) -> None:
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    queries = Queries(AsyncpgDriver(connection))
    if not await connection.fetchval("select to_regclass('pgqueuer')"):
        await queries.install()
    await connection.execute("truncate pgqueuer, pgqueuer_log")
    pool = await asyncpg.create_pool(url, min_size=4, max_size=16, server_settings={"jit": "off"})
    hub = PgQueuer(AsyncpgPoolDriver(pool))
    print(json.dumps(await (drain if what == "drain" else wake)(hub, queries, connection, number)))


async def drain(hub: PgQueuer, queries: Queries, connection: asyncpg.Connection, rows: int) -> dict[str, float]:
    for _ in range(0, rows, 1000):
        await queries.enqueue(["job"] * 1000, [PAYLOAD] * 1000, [0] * 1000)
    await connection.execute("vacuum analyze pgqueuer")
    handled = 0

    @hub.entrypoint("job")
    async def job(_job: object) -> None:
        nonlocal handled
        handled += 1
        if handled == rows:
            hub.shutdown.set()

    began = time.perf_counter()
    await hub.run(batch_size=2000)
    return {"rate": rows / (time.perf_counter() - began)}


async def wake(hub: PgQueuer, queries: Queries, _connection: asyncpg.Connection, times: int) -> dict[str, float]:
    began = 0.0
    took: list[float] = []
    came = asyncio.Event()

    @hub.entrypoint("job")
    async def job(_job: object) -> None:
        took.append(time.perf_counter() - began)
        came.set()

    running = asyncio.create_task(hub.run())
    await asyncio.sleep(1)
    for _ in range(times):
        await asyncio.sleep(0.02)
        came.clear()
        began = time.perf_counter()
        await queries.enqueue("job", PAYLOAD)
        await came.wait()
    hub.shutdown.set()
    await running
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
