"""The engine in this process: the raw lane, single publishes, a bare worker, each against the specification's table.

Processes of the product, such as `pabal work`, are measured by `events.py` and `paths.py`.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.contestants import PGQUEUER
from bench.ground import connected, durable, paced
from bench.meter import COST_COLUMNS, Run, measured_here, middle_costs, middle_rate
from bench.report import DOCUMENT, Table, print_table, write_tables
from pabal.core.ids import new_id
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.embedded import ServerAddress
from pabal.db.pool import ConnectOptions, Database
from pabal.db.queries import parse_queries
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.queue.batcher import Batcher
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import ScheduledClaim, Worker, WorkerConfig

BATCH = 500
HERE = Path(__file__).parent
SERVICE = "minu_build"
HOLD = timedelta(seconds=30)
PAYLOAD = {"text": "x" * 180}

[SEED_PUT] = parse_queries("""
-- name: put_into_specification
insert into seed.event_queue (id, event_type, source_service, target_service, payload)
select i, 'order.paid', 'minu_find', 'minu_build', p
from unnest(:ids::uuid[], :payloads::jsonb[]) as d (i, p)
""")


async def fill(connection: Any, table: str, rows: int) -> None:
    for start in range(0, rows, 1000):
        ids = [new_id() for _ in range(min(1000, rows - start))]
        await connection.execute(
            f"insert into {table} (id, event_type, source_service, target_service, payload) "
            "select i, 'order.paid', 'minu_find', 'minu_build', $2::jsonb from unnest($1::uuid[]) i",
            ids,
            json.dumps(PAYLOAD),
        )


SEED_CLAIM = """
update seed.event_queue
set status = 'processing', processing_started_at = now(), processor_id = 'worker'
where id in (
    select id from seed.event_queue
    where status = 'pending' and (next_retry_at is null or next_retry_at <= now()) and target_service = 'minu_build'
    order by priority, created_at
    limit $1
    for update skip locked
)
returning id, event_type, source_service, target_service, payload, priority, retry_count, max_retries, created_at
"""
SEED_SETTLE = "update seed.event_queue set status = 'completed', processed_at = now() where id = any($1)"


async def seed_loop(connection: Any) -> int:
    """Claim and settle as the specification's own SQL does, until nothing is left."""
    done = 0
    while claimed := await connection.fetch(SEED_CLAIM, BATCH):
        await connection.execute(SEED_SETTLE, [row["id"] for row in claimed])
        done += len(claimed)
    return done


async def lane_loop(db: Database) -> int:
    done = 0
    while True:
        async with db.autocommit() as tx:
            claimed = await LANE.claim(tx, BATCH, HOLD, "bench", EventClaimFilter(SERVICE))
            if not claimed:
                return done
            done += len(await LANE.settle(tx, [Settlement(item, DONE) for item in claimed]))


async def all_of(loops: Sequence[Awaitable[int]]) -> int:
    return sum(await asyncio.gather(*loops))


async def seed_drain(owner: Any, others: Sequence[Any], rows: int) -> Run:
    await owner.execute("truncate seed.event_queue cascade")
    await fill(owner, "seed.event_queue", rows)
    await owner.execute("vacuum analyze seed.event_queue")
    return await measured_here(owner, lambda: all_of([seed_loop(connection) for connection in others]))


async def lane_drain(owner: Any, db: Database, rows: int, loops: int) -> Run:
    await fill_lane(owner, rows)
    return await measured_here(owner, lambda: all_of([lane_loop(db) for _ in range(loops)]))


async def fill_lane(owner: Any, rows: int) -> None:
    await clear(owner)
    await fill(owner, "public.event_queue", rows)
    await owner.execute("vacuum analyze public.event_queue, pabal.event_due, pabal.event_leases")


async def timed(rows: int, work: Sequence[Awaitable[object]]) -> float:
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*work)
    return rows / (asyncio.get_running_loop().time() - began)


async def clear(owner: Any) -> None:
    await owner.execute("truncate public.event_queue, pabal.event_due, pabal.event_leases, pabal.event_order cascade")


async def gathered(owner: Any, db: Database, callers: int, seconds: float) -> Run:
    """What `POST /v1/queue/events` does, without HTTP: the product's publish, with its checks and its result."""
    await clear(owner)
    draft = EventDraft("minu_find", "order.paid", msgspec.json.encode(PAYLOAD), SERVICE)
    gatherer: Batcher[EventDraft, PublishResult] = Batcher(db, publish_events)

    async def publish() -> float:
        result = await paced([lambda: gatherer.put(draft)] * callers, seconds)
        return result.count

    return await measured_here(owner, publish)


async def one_by_one(owner: Any, url: str, callers: int, seconds: float) -> float:
    return (await one_by_one_run(owner, url, callers, seconds)).rate


async def one_by_one_run(owner: Any, url: str, callers: int, seconds: float) -> Run:
    """Each caller has its own connection and commits every insert into the specification's table.

    That is the upper bound without batching, because our own table does more for an insert.
    """
    await owner.execute((HERE / "seed_event_queue.sql").read_text())
    await owner.execute("grant usage on schema seed to public; grant insert on seed.event_queue to public")
    databases = [Database(ConnectOptions(url, pool_size=1)) for _ in range(callers)]
    for database in databases:
        await database.open()
    free = [*databases]

    async def put() -> None:
        mine = free.pop()
        async with mine.autocommit() as tx:
            await tx.run(SEED_PUT, ids=[new_id()], payloads=[PAYLOAD])
        free.append(mine)

    async def put_all() -> float:
        return (await paced([put] * callers, seconds)).count

    try:
        await asyncio.gather(*(put() for _ in databases))  # connects
        return await measured_here(owner, put_all)
    finally:
        for database in databases:
            await database.close()


async def schedule() -> Sequence[ScheduledClaim[EventClaimFilter]]:
    return [ScheduledClaim(EventClaimFilter(SERVICE))]


async def worker_drain(owner: Any, db: Database, bell: Doorbell, rows: int) -> Run:
    """A `Worker` of the engine alone: no chores, no heartbeat of a process, no handler of an app."""
    await fill_lane(owner, rows)
    handled = 0
    finished = asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        nonlocal handled
        handled += 1
        if handled == rows:
            finished.set()
        return DONE

    async def run() -> float:
        worker = Worker("bench", LANE, db, bell, handle, schedule, WorkerConfig(concurrency=2 * BATCH, hold=HOLD))
        running = asyncio.create_task(worker.run())
        await finished.wait()
        worker.stop()
        await running  # until the last of them is settled
        return rows

    return await measured_here(owner, run)


@dataclass(frozen=True, slots=True)
class Bench:
    """The open database, and the sizes of a run."""

    endpoint: ServerAddress
    owner: Any
    others: Sequence[Any]
    db: Database
    bell: Doorbell
    rows: int
    rounds: int
    seconds: float

    async def interleave(self, runs: Mapping[str, Callable[[], Awaitable[Run]]]) -> dict[str, list[Run]]:
        results: dict[str, list[Run]] = {name: [] for name in runs}
        for _ in range(self.rounds):
            for name, run in runs.items():
                results[name].append(await run())
        return results


def compare(title: str, results: Mapping[str, Sequence[Run]], baselines: Sequence[str]) -> Table:
    """Each row against the last baseline above it."""
    rows: list[Sequence[object]] = []
    against = 1.0
    for name, runs in results.items():
        rate = middle_rate(runs)
        against = rate if name in baselines else against
        rows.append([name, rate, rate / against, *middle_costs(runs)])
    return Table(title, ["events/s", "ratio", *COST_COLUMNS], rows)


SEED_TABLE = "the specification's nine-index table"


async def lane_table(bench: Bench) -> Table:
    owner, db, rows = bench.owner, bench.db, bench.rows
    results = await bench.interleave(
        {
            f"{SEED_TABLE}, one loop": lambda: seed_drain(owner, bench.others[:1], rows),
            "event lane, one loop": lambda: lane_drain(owner, db, rows, 1),
            f"{SEED_TABLE}, two loops": lambda: seed_drain(owner, bench.others, rows),
            "event lane, two loops": lambda: lane_drain(owner, db, rows, 2),
        }
    )
    baselines = [f"{SEED_TABLE}, one loop", f"{SEED_TABLE}, two loops"]
    return compare(f"raw lane: claim and settle, batches of {BATCH}, {rows:,} rows", results, baselines)


async def put_table(bench: Bench) -> Table:
    owner, db, seconds = bench.owner, bench.db, bench.seconds
    one = "one insert per commit into the specification's table, 64 connections"
    results = await bench.interleave(
        {
            one: lambda: one_by_one_run(owner, bench.endpoint.hub_url, 64, seconds),
            "the hub's publish, gathered, 64 callers": lambda: gathered(owner, db, 64, seconds),
            "the hub's publish, gathered, 256 callers": lambda: gathered(owner, db, 256, seconds),
        }
    )
    return compare("publishing single events, in process", results, [one])


async def worker_table(bench: Bench) -> Table:
    await PGQUEUER.install(bench.endpoint)

    async def pgqueuer() -> Run:
        await PGQUEUER.empty(bench.endpoint)
        await PGQUEUER.run_command(bench.endpoint, "fill", bench.rows)
        await PGQUEUER.tidy(bench.endpoint)
        return await PGQUEUER.run_measured(bench.endpoint, "drain", bench.rows, 60)

    runs: dict[str, Callable[[], Awaitable[Run]]] = {
        "pgqueuer 1.6, batches of 1,000": pgqueuer,
        f"a bare `Worker` of the engine, concurrency {2 * BATCH:,} (not `pabal work`)": lambda: worker_drain(
            bench.owner, bench.db, bench.bell, bench.rows
        ),
    }
    return compare(f"worker with no-op async handlers, {bench.rows:,} rows", await bench.interleave(runs), [*runs][:1])


async def held_table(bench: Bench) -> Table:
    """The same loops beside an old snapshot, without emptying the tables: no dead row can be removed."""

    async def seed() -> Run:
        await fill(bench.owner, "seed.event_queue", bench.rows)
        return await measured_here(bench.owner, lambda: seed_loop(bench.others[0]))

    async def lane() -> Run:
        await fill(bench.owner, "public.event_queue", bench.rows)
        return await measured_here(bench.owner, lambda: lane_loop(bench.db))

    await clear(bench.owner)
    await bench.owner.execute("truncate seed.event_queue")
    async with connected(bench.endpoint.owner_url) as idler:
        await idler.execute("begin isolation level repeatable read; select count(*) from public.event_queue")
        results = await bench.interleave({SEED_TABLE: seed, "event lane": lane})
    return compare(f"raw lane while another transaction stays open, {bench.rows:,} rows a round", results, [SEED_TABLE])


GROUPS: dict[str, Callable[[Bench], Awaitable[Table]]] = {
    "lane": lane_table,
    "put": put_table,
    "worker": worker_table,
    "held": held_table,
}


async def measure(endpoint: ServerAddress, rows: int, rounds: int, seconds: float, group: str) -> Table:
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(Database(ConnectOptions(endpoint.hub_url)))
        bell = Doorbell(db, ConnectOptions(endpoint.owner_url, pooler=False))
        await bell.open()
        stack.push_async_callback(bell.close)
        db.on_commit = bell.broadcast
        owner = await stack.enter_async_context(connected(endpoint.owner_url))
        await owner.execute((HERE / "seed_event_queue.sql").read_text())
        others = [await stack.enter_async_context(connected(endpoint.owner_url)) for _ in range(2)]
        return await GROUPS[group](Bench(endpoint, owner, others, db, bell, rows, rounds, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the numbers are meaningless")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*GROUPS], nargs="+", default=[*GROUPS], help="the groups of measures to run")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {DOCUMENT.name}")
    args = parser.parse_args()
    rows, rounds, seconds = (1_000, 1, 0.3) if args.quick else (args.rows, args.rounds, 2.0)
    for group in args.only:
        with durable() as endpoint, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            table = runner.run(measure(endpoint, rows, rounds, seconds, group))
        print_table(table)
        if args.write:
            write_tables([table], f"engine {group}")


if __name__ == "__main__":
    main()
