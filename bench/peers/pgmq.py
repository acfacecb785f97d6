"""pgmq: SQL functions over a table per queue; a message that was read is invisible for a time. No handlers.

Its install script is the one in its Python package. `PEER_SETTINGS` says whether finished messages are archived
(`keep` 1, rows stay as in the other queues that keep them) or deleted (0).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

import asyncpg
from pgmq.install import get_embedded_install_sql

from bench.peers.stage import INSERT_ORDER, PAYLOAD, Tally, commit_repeatedly, enter, put_all, settings

RUN = settings(batch_size=4000, loops=2, keep=1)
SETTINGS = {"jit": "off"}
BODY = json.dumps(PAYLOAD, separators=(",", ":"))
INVISIBLE = 30
SEND = "select pgmq.send('job', $1::jsonb)"
SEND_BATCH = "select pgmq.send_batch('job', $1::jsonb[])"
READ = "select msg_id, message from pgmq.read('job', $1, $2)"
FINISH = f"select pgmq.{'archive' if RUN['keep'] else 'delete'}('job', $1::bigint[])"


class Pgmq:
    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        if not await connection.fetchval("select to_regnamespace('pgmq') is not null"):
            await connection.execute(get_embedded_install_sql())
            await connection.execute("select pgmq.create('job')")
        await connection.close()

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        connection = await asyncpg.connect(url, server_settings=SETTINGS)
        result = await put_all(lambda count: connection.fetch(SEND_BATCH, [BODY] * count), rows)
        await connection.close()
        return result

    async def transact(self, url: str, connections: int, seconds: float) -> dict[str, float]:
        async def connect() -> Callable[[], Awaitable[object]]:
            connection = await asyncpg.connect(url, server_settings=SETTINGS)

            async def commit() -> None:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER)
                    await connection.fetchval(SEND, BODY)

            return commit

        return await commit_repeatedly([await connect() for _ in range(connections)], seconds)

    async def drain(self, url: str, tally: Tally) -> None:
        async def loop(connection: asyncpg.Connection) -> None:
            while tally.left and (messages := await connection.fetch(READ, INVISIBLE, RUN["batch_size"])):
                await connection.fetch(FINISH, [message["msg_id"] for message in messages])
                tally.many(len(messages))

        connections = [await asyncpg.connect(url, server_settings=SETTINGS) for _ in range(RUN["loops"])]
        tally.begin()
        await asyncio.gather(*map(loop, connections))
        tally.end()
        for connection in connections:
            await connection.close()


if __name__ == "__main__":
    enter(Pgmq())
