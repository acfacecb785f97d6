"""Would partitions pay? The event lane's statements on the event table as it is, and on partitioned forms of it.

python -m bench.partitions [--partitions 1 7 30 120] [--rounds 20] [--finished 60000]

All databases get the same events, spread over their days. Costs are the CPU time of the one backend that runs the
statements; the smallest of all rounds is shown, because other load on the machine only adds to it.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from bench.ground import durable
from bench.partitioned_table import (
    DAY_MS,
    STORAGE,
    claim_by_function,
    claim_in_range,
    first_id,
    partition_table,
    settle_in_range,
    today,
)
from pabal.core.ids import new_id
from pabal.db.connect import PLANNER_SETTINGS
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE
from pabal.events.consume.retention import EventRetention
from pabal.events.events import Q as EVENTS
from pabal.events.publish.publish import Q as PUBLISH

SERVICE = "minu_build"
PAYLOAD = msgspec.json.encode({"text": "x" * 180}).decode()
BATCH = 500
BATCHES = 2
SINGLES = 60
DAYS = 30
"""Days of events in the table that is not partitioned."""
AS_IS, IN_RANGE, BY_FUNCTION = "as they are", "with the range of ids", "with a function"
PLAIN_INSERT = """
insert into public.event_queue (id, event_type, source_service, target_service, payload) values ($1, $2, $3, $4, $5)
"""
FINISHED_EVENTS = """
insert into public.event_queue
    (id, event_type, source_service, target_service, payload, status, processed_at, created_at)
select i, 'order.paid', 'minu_find', $3, $4::jsonb, 'completed', to_timestamp(t / 1000), to_timestamp(t / 1000)
from unnest($1::uuid[], $2::float8[]) as f (i, t)
"""
FORGET_PARTITION = """
update public.dead_letter_queue set event_id = null where event_id >= '{low}' and event_id < '{high}';
update public.event_queue set parent_id = null where parent_id >= '{low}' and parent_id < '{high}';
delete from pabal.event_keys
where created_at <= pabal.event_key_cutoff() and event_id >= '{low}' and event_id < '{high}';
alter table public.event_queue detach partition pabal.event_queue_{day};
drop table pabal.event_queue_{day};
"""


def cpu_microseconds(connection: Any) -> float:
    return int(Path(f"/proc/{connection.get_server_pid()}/schedstat").read_text().split()[0]) / 1e3


async def wal_bytes(connection: Any) -> int:
    return int(await connection.fetchval("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


@dataclass
class Contender:
    """One database, and the form of the statements that run on it."""

    table: str
    form: str
    connection: Any
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wal: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    locks: int = 0

    @property
    def name(self) -> str:
        return self.table if self.form == AS_IS else f"{self.table}, {self.form}"

    async def prepare(self) -> None:
        claim, settle = LANE.q.claim, LANE.q.settle_done
        forms = {AS_IS: claim.sql, IN_RANGE: claim_in_range(claim), BY_FUNCTION: claim_by_function(claim)[0]}
        self._put = await self.connection.prepare(PUBLISH.insert_events.sql)
        self._claim = await self.connection.prepare(forms[self.form])
        self._settle = await self.connection.prepare(settle.sql if self.form == AS_IS else settle_in_range(settle))

    async def measure(self, name: str, events: int, work: Callable[[], Awaitable[Any]], times: int = 1) -> list[Any]:
        """Run the work so many times, and note its cost per event."""
        wal, cpu = await wal_bytes(self.connection), cpu_microseconds(self.connection)
        results = [await work() for _ in range(times)]
        self.cpu[name].append((cpu_microseconds(self.connection) - cpu) / events / times)
        self.wal[name].append((await wal_bytes(self.connection) - wal) / events / times)
        return results

    async def put(self, count: int) -> None:
        draft = {
            "sources": "minu_find",
            "event_types": "order.paid",
            "targets": SERVICE,
            "payloads": PAYLOAD,
            "priorities": 5,
            "max_retries": 3,
        }
        arguments: dict[str, object] = {name: [draft.get(name)] * count for name in PUBLISH.insert_events.parameters}
        arguments |= {"ids": [new_id() for _ in range(count)], "notify_channel": None, "notification": None}
        await self._put.fetch(*PUBLISH.insert_events.bind(arguments))

    async def claim(self, limit: int) -> tuple[UUID, list[UUID]]:
        lease = new_id()
        arguments: dict[str, object] = {
            "lease": lease,
            "hold": timedelta(minutes=5),
            "holder": "bench",
            "services": [SERVICE],
            "patterns": [None],
            "except_patterns": [None],
            "programs": [None],
            "limits": [limit],
            "oldest_quotas": [max(limit // 8, 1)],
            "limit": limit,
            "max_bytes": 8 << 20,
        }
        rows = await self._claim.fetch(*LANE.q.claim.bind(arguments))
        assert len(rows) == limit
        return lease, [row["id"] for row in rows]

    async def settle(self, lease: UUID, ids: list[UUID]) -> None:
        bounds = () if self.form == AS_IS else (min(ids), max(ids))
        rows = await self._settle.fetch(*LANE.q.settle_done.bind({"ids": ids, "lease": lease}), *bounds)
        assert len(rows) == len(ids)

    async def insert(self) -> None:
        await self.connection.execute(PLAIN_INSERT, new_id(), "order.paid", "minu_find", SERVICE, PAYLOAD)

    async def list_page(self) -> None:
        query = EVENTS.scan_newest_events
        arguments: dict[str, object] = {**dict.fromkeys(query.parameters), "scan_limit": 50, "limit": 50}
        assert len(await self.connection.fetch(query.sql, *query.bind(arguments))) == 50

    async def run(self) -> None:
        """One round of all measures. Every claimed event is settled."""
        for size, times in ((1, SINGLES), (BATCH, BATCHES)):
            await self.measure(f"put {size}", size, lambda size=size: self.put(size), times)
            claims = await self.measure(f"claim {size}", size, lambda size=size: self.claim(size), times)
            leases = iter(claims)
            await self.measure(f"settle {size}", size, lambda leases=leases: self.settle(*next(leases)), times)
        await self.measure("insert 1", 1, self.insert, SINGLES)
        await self.measure("list 50", 1, self.list_page, 20)
        async with self.connection.transaction():
            claimed = await self.claim(SINGLES)
            self.locks = await self.connection.fetchval("select count(*) from pg_locks where pid = pg_backend_pid()")
            await self.settle(*claimed)


async def age(owner: Any, rows: int, days: int) -> None:
    """Insert finished events, evenly over the days."""
    begin = (today() - days + 1) * DAY_MS
    step = (time.time() * 1000 - begin) / rows
    times = [begin + step * number for number in range(rows)]
    low_bits = (1 << 80) - 1
    for start in range(0, rows, 10_000):
        part = times[start : start + 10_000]
        ids = [UUID(int=int(at) << 80 | new_id().int & low_bits) for at in part]
        await owner.execute(FINISHED_EVENTS, ids, part, SERVICE, PAYLOAD)


async def compare(owner_url: str, hub_url: str, counts: list[int], finished: int, rounds: int) -> list[Contender]:
    """`counts`: numbers of partitions; 0 is the table as it is. The database of the URLs is the template."""
    server, _, template = owner_url.rpartition("/")
    owner = await asyncpg.connect(f"{server}/postgres")
    for count in counts:
        await owner.execute(f"create database hub_{count} template {template}")
    await owner.close()
    contenders: list[Contender] = []
    async with AsyncExitStack() as stack:
        for count in counts:
            owner = await asyncpg.connect(f"{server}/hub_{count}")
            stack.push_async_callback(owner.close)
            if count:
                await partition_table(owner, count)
            else:
                await owner.execute(f"alter table public.event_queue set ({STORAGE})")
            await owner.execute(claim_by_function(LANE.q.claim)[1])
            await age(owner, finished, count or DAYS)
            await owner.execute("vacuum analyze")
            for form in (AS_IS, IN_RANGE, BY_FUNCTION) if count else (AS_IS, BY_FUNCTION):
                connection = await asyncpg.connect(
                    f"{hub_url.rpartition('/')[0]}/hub_{count}",
                    server_settings={**PLANNER_SETTINGS, "application_name": "pabal"},
                )
                stack.push_async_callback(connection.close)
                table = f"{count} partitions" if count else "one table"
                contender = Contender(table, form, connection)
                await contender.prepare()
                contenders.append(contender)
        for number in range(rounds + 1):
            for contender in contenders:
                await contender.run()
                if number == 0:  # in the first round, statements are planned
                    contender.cpu.clear()
                    contender.wal.clear()
        for count in counts:
            owner = await asyncpg.connect(f"{server}/hub_{count}")
            stack.push_async_callback(owner.close)
            print(await retire(owner, count))
    return contenders


async def retire(owner: Any, count: int) -> str:
    """What it costs to remove the oldest events: those of a day from the table, or a partition."""
    contender = Contender(f"{count} partitions" if count else "one table", AS_IS, owner)
    if count:
        day = today() - count + 1
        low, high = day_range(day)
        rows = await owner.fetchval("select count(*) from public.event_queue where id >= $1 and id < $2", low, high)
        drop = FORGET_PARTITION.format(low=low, high=high, day=day)
        await contender.measure("drop", rows, lambda: owner.execute(drop))
    else:
        purge = EventRetention(DAYS - 2).delete_batch
        rows = await owner.fetchval(
            "select count(*) from public.event_queue where processed_at < now() - make_interval(days => $1)", DAYS - 2
        )
        await contender.measure("delete", rows, lambda: purge(Tx(owner), rows))
        await contender.measure("vacuum", rows, lambda: owner.execute("vacuum (parallel 0) public.event_queue"))
    costs = [f"{name} {contender.cpu[name][0]:.2f} µs and {contender.wal[name][0]:.0f} B" for name in contender.cpu]
    return f"{contender.table}, each of {rows} events: {', '.join(costs)}"


def day_range(day: int) -> tuple[UUID, UUID]:
    return first_id(day), first_id(day + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 7, 30, 120])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--finished", type=int, default=60_000)
    arguments = parser.parse_args()
    with durable() as server:
        contenders = asyncio.run(
            compare(server.owner_url, server.hub_url, [0, *arguments.partitions], arguments.finished, arguments.rounds)
        )
    measures = list(contenders[0].cpu)
    print(f"| µs of CPU per event | {' | '.join(measures)} | locks of a claim |")
    print("|---" * (len(measures) + 2) + "|")
    for contender in contenders:
        cells = [f"{min(contender.cpu[measure]):.1f}" for measure in measures]
        print(f"| {contender.name} | {' | '.join(cells)} | {contender.locks} |")
    wal = [f"{name} {min(values):.0f}" for name, values in contenders[0].wal.items()]
    print(f"WAL bytes per event, the same in all forms: {', '.join(wal)}")


if __name__ == "__main__":
    main()
