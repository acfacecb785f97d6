"""The engine against the seed's own table, and against pgqueuer."""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import uvloop

from bench.contestants import PGQUEUER
from bench.ground import connected, durable, interleaved, paced, show
from pabal.core.ids import new_id
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.embedded import ServerAddress
from pabal.db.pool import ConnectOptions, Database
from pabal.db.queries import parse_queries
from pabal.db.tx import Tx
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.queue.batcher import Batcher
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import ScheduledClaim, Worker, WorkerConfig

BATCH = 500
WAKES = 800
HERE = Path(__file__).parent
SERVICE = "minu_build"
HOLD = timedelta(seconds=30)
PAYLOAD = {"text": "x" * 180}

[PUT] = parse_queries("""
-- name: put
insert into public.event_queue (id, event_type, source_service, target_service, payload)
select i, 'order.paid', 'minu_find', 'minu_build', p
from unnest(:ids::uuid[], :payloads::jsonb[]) as d (i, p)
""")


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


# The seed's table as documented, and the obvious polling loop over it.

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


async def seed_drain(owner: Any, others: Sequence[Any], rows: int) -> float:
    await owner.execute("truncate seed.event_queue cascade")
    await fill(owner, "seed.event_queue", rows)
    await owner.execute("vacuum analyze seed.event_queue")

    async def loop(connection: Any) -> None:
        while claimed := await connection.fetch(SEED_CLAIM, BATCH):
            await connection.execute(SEED_SETTLE, [row["id"] for row in claimed])

    return await timed(rows, [loop(each) for each in others])


async def lane_drain(owner: Any, db: Database, rows: int, loops: int) -> float:
    await clear(owner)
    await fill(owner, "public.event_queue", rows)
    await owner.execute("vacuum analyze public.event_queue, pabal.event_due, pabal.event_leases")

    async def loop() -> None:
        while True:
            async with db.autocommit() as tx:
                claimed = await LANE.claim(tx, BATCH, HOLD, "bench", EventClaimFilter(SERVICE))
                if not claimed:
                    return
                await LANE.settle(tx, [Settlement(item, DONE) for item in claimed])

    return await timed(rows, [loop() for _ in range(loops)])


async def timed(rows: int, work: Sequence[Awaitable[None]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*work)
    return rows / (time.perf_counter() - began)


async def clear(owner: Any) -> None:
    await owner.execute("truncate public.event_queue, pabal.event_due, pabal.event_leases, pabal.event_order cascade")


# Putting in


async def gathered(owner: Any, db: Database, callers: int, seconds: float) -> float:
    """What `POST /v1/queue/events` does, without HTTP: the product's publish, with its checks and its result."""
    await clear(owner)
    draft = EventDraft("minu_find", "order.paid", msgspec.json.encode(PAYLOAD), SERVICE)
    gatherer: Batcher[EventDraft, PublishResult] = Batcher(db, publish_events)
    return (await paced([lambda: gatherer.put(draft)] * callers, seconds)).rate


async def one_by_one(owner: Any, url: str, callers: int, seconds: float) -> float:
    """Each caller has its own connection and commits every insert into the specification's table.

    That is the upper bound without batching, because our own table does more for an insert.
    """
    await owner.execute((HERE / "seed_event_queue.sql").read_text())
    await owner.execute("grant usage on schema seed to public; grant insert on seed.event_queue to public")
    databases = [Database(ConnectOptions(url, pool_size=1)) for _ in range(callers)]
    for each in databases:
        await each.open()
    free = [*databases]

    async def put() -> None:
        mine = free.pop()
        async with mine.autocommit() as tx:
            await tx.run(SEED_PUT, ids=[new_id()], payloads=[PAYLOAD])
        free.append(mine)

    try:
        return (await paced([put] * callers, seconds)).rate
    finally:
        for each in databases:
            await each.close()


# The worker


async def schedule() -> Sequence[ScheduledClaim[EventClaimFilter]]:
    return [ScheduledClaim(EventClaimFilter(SERVICE))]


async def worker_drain(owner: Any, db: Database, bell: Doorbell, rows: int) -> float:
    await clear(owner)
    await fill(owner, "public.event_queue", rows)
    await owner.execute("vacuum analyze public.event_queue, pabal.event_due, pabal.event_leases")
    handled = 0
    finished = asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        nonlocal handled
        handled += 1
        if handled == rows:
            finished.set()
        return DONE

    worker = Worker("bench", LANE, db, bell, handle, schedule, WorkerConfig(concurrency=2 * BATCH, hold=HOLD))
    began = time.perf_counter()
    running = asyncio.create_task(worker.run())
    await finished.wait()
    worker.stop()
    await running  # until the last of them is settled
    return rows / (time.perf_counter() - began)


async def wake_ups(owner: Any, db: Database, bell: Doorbell, times: int) -> list[float]:
    """From the moment before the put to the first line of the handler, one at a time, the worker asleep."""
    await clear(owner)
    began = 0.0
    durations: list[float] = []
    handled = asyncio.Event()

    async def handle(_event: ClaimedEvent) -> Outcome:
        durations.append(time.perf_counter() - began)
        handled.set()
        return DONE

    async def put(tx: Tx, drafts: Sequence[UUID]) -> Sequence[UUID | Exception]:
        await tx.run(PUT, ids=[*drafts], payloads=[PAYLOAD] * len(drafts))
        tx.notify(LANE.channel)
        return drafts

    gatherer: Batcher[UUID, UUID] = Batcher(db, put)
    worker = Worker("bench", LANE, db, bell, handle, schedule, WorkerConfig(concurrency=100))
    running = asyncio.create_task(worker.run())
    for _ in range(times):
        await asyncio.sleep(0.02)  # it has settled and sleeps
        handled.clear()
        began = time.perf_counter()
        await gatherer.put(new_id())
        await handled.wait()
    worker.stop()
    await running
    return sorted(durations)


async def measure(endpoint: ServerAddress, rows: int, rounds: int) -> None:
    db = Database(ConnectOptions(endpoint.hub_url))
    await db.open()
    bell = Doorbell(db, ConnectOptions(endpoint.owner_url, pooler=False))
    await bell.open()
    db.on_commit = bell.broadcast
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(connected(endpoint.owner_url))
        await owner.execute((HERE / "seed_event_queue.sql").read_text())

        others = [await stack.enter_async_context(connected(endpoint.owner_url)) for _ in range(2)]
        drains = await interleaved(
            {
                "seed 1": lambda: seed_drain(owner, others[:1], rows),
                "lane 1": lambda: lane_drain(owner, db, rows, 1),
                "seed 2": lambda: seed_drain(owner, others, rows),
                "lane 2": lambda: lane_drain(owner, db, rows, 2),
            },
            rounds,
        )
        show(
            f"Raw lane: claim + settle, batches of {BATCH}, {rows:,} rows",
            ["", "rows/s", "ratio"],
            [
                ["the seed's nine-index table, one loop", drains["seed 1"], 1.0],
                ["event lane, one loop", drains["lane 1"], drains["lane 1"] / drains["seed 1"]],
                ["the seed's nine-index table, two loops", drains["seed 2"], 1.0],
                ["event lane, two loops", drains["lane 2"], drains["lane 2"] / drains["seed 2"]],
            ],
        )

        puts = await interleaved(
            {
                "one": lambda: one_by_one(owner, endpoint.hub_url, 64, 2),
                "gathered": lambda: gathered(owner, db, 64, 2),
                "256": lambda: gathered(owner, db, 256, 2),
            },
            max(1, rounds - 2),
        )
        show(
            "Putting single events, 64 callers",
            ["", "events/s", "ratio"],
            [
                ["one insert per commit into the specification's table, 64 connections", puts["one"], 1.0],
                ["gathered", puts["gathered"], puts["gathered"] / puts["one"]],
                ["gathered, 256 callers", puts["256"], puts["256"] / puts["one"]],
            ],
        )

        await PGQUEUER.install(endpoint)

        async def theirs() -> float:
            await PGQUEUER.empty(endpoint)
            await PGQUEUER.run_command(endpoint, "fill", rows)
            await PGQUEUER.tidy(endpoint)
            return (await PGQUEUER.run_command(endpoint, "drain", rows, 60))["rate"]

        workers = await interleaved({"pgqueuer": theirs, "pabal": lambda: worker_drain(owner, db, bell, rows)}, rounds)
        show(
            f"Worker with no-op async handlers, {rows:,} rows",
            ["", "rows/s", "ratio"],
            [
                ["pgqueuer", workers["pgqueuer"], 1.0],
                ["pabal", workers["pabal"], workers["pabal"] / workers["pgqueuer"]],
            ],
        )

        results: dict[str, list[tuple[float, float]]] = {"pgqueuer": [], "pabal": []}
        for _ in range(max(1, rounds - 2)):  # a p99 of few is the noise of one: many samples, in turn
            theirs_now = await PGQUEUER.run_command(endpoint, "wake", WAKES)
            results["pgqueuer"].append((theirs_now["p50"], theirs_now["p99"]))
            ours = await wake_ups(owner, db, bell, WAKES)
            results["pabal"].append((ours[len(ours) // 2], ours[int(len(ours) * 0.99)]))
        show(
            "Idle wake-up, put → handler",
            ["", "p50 ms", "p99 ms"],
            [
                [name, *(statistics.median(column) * 1000 for column in zip(*pairs, strict=True))]
                for name, pairs in results.items()
            ],
        )

        async with connected(endpoint.owner_url) as idler:
            await idler.execute("begin isolation level repeatable read; select count(*) from public.event_queue")
            held = await interleaved(await held_open(owner, db, rows), max(1, rounds - 2))
        show(
            "Raw lane while another transaction stays open (nothing can be vacuumed)",
            ["", "rows/s", "ratio"],
            [
                ["the seed's nine-index table", held["seed"], 1.0],
                ["event lane", held["lane"], held["lane"] / held["seed"]],
            ],
        )
    await bell.close()
    await db.close()


async def held_open(owner: Any, db: Database, rows: int) -> dict[str, Callable[[], Awaitable[float]]]:
    """The same loops without emptying the tables in between: nothing that died can be taken back."""

    async def seed() -> float:
        await fill(owner, "seed.event_queue", rows)
        began, done = time.perf_counter(), 0
        while claimed := await owner.fetch(SEED_CLAIM, BATCH):
            await owner.execute(SEED_SETTLE, [row["id"] for row in claimed])
            done += len(claimed)
        return done / (time.perf_counter() - began)

    async def lane() -> float:
        await fill(owner, "public.event_queue", rows)
        began, done = time.perf_counter(), 0
        while True:
            async with db.autocommit() as tx:
                claimed = await LANE.claim(tx, BATCH, HOLD, "bench", EventClaimFilter(SERVICE))
                if not claimed:
                    return done / (time.perf_counter() - began)
                done += len(await LANE.settle(tx, [Settlement(item, DONE) for item in claimed]))

    return {"seed": seed, "lane": lane}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with durable() as endpoint, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(endpoint, args.rows, args.rounds))


if __name__ == "__main__":
    main()
