"""What the retention costs on a table that is larger than PostgreSQL's cache.

python -m bench.purge [--events 1500000]

Deletes a third of the events as the chore does, after a checkpoint, so that the first change of each page is logged
with the whole page, and vacuums the table. Costs are the CPU time of the one backend and the bytes of WAL, per deleted
event.
"""

import argparse
import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.ground import connected, durable
from pabal.core.ids import new_id
from pabal.db.tx import Tx
from pabal.events.consume.retention import EventRetention

DAYS, KEPT_DAYS = 30, 20
PAYLOAD = msgspec.json.encode({"text": "x" * 180}).decode()
INSERT_FINISHED = """
insert into public.event_queue
    (id, event_type, source_service, target_service, payload, status, processed_at, created_at)
select i, 'order.paid', 'minu_find', 'minu_build', $3::jsonb, 'completed', t, t
from unnest($1::uuid[], $2::timestamptz[]) as f (i, t)
"""
SIZE = """
select pg_total_relation_size('public.event_queue'), setting::bigint * 8192
from pg_settings where name = 'shared_buffers'
"""
INSERT_BATCH, DELETE_BATCH = 10_000, 1_000


async def measure(url: str, events: int) -> None:
    async with connected(url) as connection:
        owner: Any = connection
        await insert_finished(owner, events)
        await owner.execute("vacuum (freeze, analyze) public.event_queue")
        await owner.execute("checkpoint")
        [[size, cache]] = await owner.fetch(SIZE)
        print(f"{events:,} events, {size >> 20:,} MB with indexes; shared_buffers {cache >> 20} MB")
        retention = EventRetention(KEPT_DAYS)
        deleted = 0
        cpu, wal = cpu_microseconds(owner), await wal_bytes(owner)
        while count := await retention.delete_batch(Tx(owner), DELETE_BATCH):
            deleted += count
        report("delete", deleted, cpu_microseconds(owner) - cpu, await wal_bytes(owner) - wal)
        cpu, wal = cpu_microseconds(owner), await wal_bytes(owner)
        await owner.execute("vacuum (parallel 0) public.event_queue")
        report("vacuum", deleted, cpu_microseconds(owner) - cpu, await wal_bytes(owner) - wal)


async def insert_finished(owner: Any, events: int) -> None:
    """Events of the last `DAYS` days, the oldest first."""
    start, step = datetime.now(UTC) - timedelta(days=DAYS), timedelta(days=DAYS) / events
    for first in range(0, events, INSERT_BATCH):
        times = [start + step * number for number in range(first, min(first + INSERT_BATCH, events))]
        await owner.execute(INSERT_FINISHED, [new_id() for _ in times], times, PAYLOAD)


def report(name: str, deleted: int, cpu: float, wal: int) -> None:
    print(f"{name}: {deleted:,} events, {cpu / deleted:.2f} µs and {wal / deleted:.0f} bytes of WAL each")


def cpu_microseconds(connection: Any) -> float:
    return int(Path(f"/proc/{connection.get_server_pid()}/schedstat").read_text().split()[0]) / 1e3


async def wal_bytes(connection: Any) -> int:
    return int(await connection.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_500_000)
    with durable() as server:
        asyncio.run(measure(server.owner_url, parser.parse_args().events))


if __name__ == "__main__":
    main()
