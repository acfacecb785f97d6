"""The product's own paths: SDK, pull, push, broadcast, many subscriptions and services, keyed events, a steady rate.

Each row has the CPU time of the client, of the hub and of PostgreSQL and the bytes of WAL per event: on a shared
machine, rates are noise. The rows of a group run in turn, and the results are medians of the rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvloop

from bench.contestants import PABAL, ROOT
from bench.ground import connected, durable
from bench.meter import metered, postmaster_pid, tree_memory
from bench.peers.stage import BATCH, PAYLOAD
from bench.receiver import CountingReceiver, counting_receiver
from bench.report import DOCUMENT, Table, print_table, write_tables
from bench.shop import SERVICE
from bench.web import BY, ONE, Serving, serving
from pabal.core.ids import new_id
from pabal.db.embedded import ServerAddress
from pabal.events.publish.publish import EventDraft, publish_event_batch
from pabal.events.subscriptions import webhook_secret_location
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.keys.envelope import encrypt_envelope
from pabal.settings import Settings
from pabal.tokens.services import add_service

COLUMNS = ["events/s", "p50 ms", "p99 ms", "µs client", "µs hub", "µs PostgreSQL", "WAL bytes"]
RECEIVER, CONSUMER = "bench_sdk", "bench_consumer"
BODY = msgspec.json.encode(PAYLOAD)
ADD_SERVICES = """
insert into public.services (name) select 'many_' || n from generate_series(1, $1::integer) n on conflict do nothing
"""
SUBSCRIBE = """
insert into pabal.subscriptions (service_name, mode, event_types)
select 'many_' || n, 'pull', $2::text[] from generate_series(1, $1::integer) n
"""
ADD_SERVICE = "insert into public.services (name) values ($1) on conflict do nothing"
SUBSCRIBE_ONE = "insert into pabal.subscriptions (service_name, mode, event_types) values ($1, $2, $3)"
UNSUBSCRIBE = "delete from pabal.subscriptions"


@dataclass(frozen=True, slots=True)
class PathSize:
    """How long each row runs, and with how many events."""

    seconds: float = 4.0
    steady_seconds: float = 30.0
    rows: int = 20_000
    many: int = 10_000


PATIENCE = 60.0
"""Seconds after which a row that waits for pushes gives up."""
QUICK = PathSize(seconds=1.0, steady_seconds=2.0, rows=2_000, many=300)
Row = Sequence[object]


@dataclass(frozen=True, slots=True)
class Course:
    """The database, the hub and the processes of a group."""

    endpoint: ServerAddress
    owner: Any
    hub: Hub
    served: Serving
    secrets: dict[str, str]
    size: PathSize

    async def clear(self) -> None:
        await self.owner.execute(f"truncate {PABAL}, pabal.event_fan_outs cascade")

    async def fill(self, target: str | None, rows: int, *, keyed: bool = False) -> None:
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            drafts = [
                EventDraft("minu_find", "order.paid", BODY, target, idempotency_key=new_id().hex if keyed else None)
                for _ in range(count)
            ]
            for result in await publish_event_batch(self.hub.db, drafts):
                if isinstance(result, Exception):
                    raise result


async def run_program(*command: str, request: bytes = b"") -> dict[str, float]:
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await running.communicate(request)
    if running.returncode:
        raise SystemExit(f"failed: {' '.join(command[:1])}")
    return json.loads(output.splitlines()[-1])


async def sdk_row(course: Course, what: str, service: str, callers: int, name: str) -> Row:
    request = msgspec.json.encode({"service": service, "secret": course.secrets[service], "target": SERVICE})
    url = f"http://127.0.0.1:{course.served.port}"
    async with metered(course.owner, course.served.pid) as cost:
        results = await run_program("bench.sdk", what, url, str(callers), str(course.size.seconds), request=request)
    hub, postgres, wal = cost.per(results["events"])
    client = results["used"] / results["events"] * 1e6
    return [name, results["rate"], results["p50"] * 1000, results["p99"] * 1000, client, hub, postgres, wal]


async def publish_rows(course: Course) -> list[Row]:
    rows: list[Row] = []
    for what, callers, name in (
        ("publish", 1, "SDK `publish`, 1 task"),
        ("publish", 64, "SDK `publish`, 64 tasks"),
        ("threads", 64, "SDK `publish`, 64 threads"),
    ):
        await course.clear()
        rows.append(await sdk_row(course, what, RECEIVER, callers, name))
    return rows


async def pull_rows(course: Course) -> list[Row]:
    rows: list[Row] = []
    for consumers in (1, 4, 16):
        await course.clear()
        await course.fill(CONSUMER, course.size.rows * 2)
        name = f"pull over HTTP, {consumers} consumer{'s' if consumers > 1 else ''}, 100 events per claim"
        rows.append(await sdk_row(course, "pull", CONSUMER, consumers, name))
    return rows


async def put_row(course: Course, name: str, put: Callable[[], Awaitable[int]]) -> Row:
    """In this process: its CPU time is the client's."""
    async with metered(course.owner) as cost:
        began, used = time.perf_counter(), time.process_time()
        events = await put()
        spent, used = time.perf_counter() - began, time.process_time() - used
    _, postgres, wal = cost.per(events)
    return [name, events / spent, "", "", used / events * 1e6, "", postgres, wal]


async def keyed_rows(course: Course) -> list[Row]:
    async def put(*, keyed: bool) -> int:
        await course.fill(SERVICE, course.size.rows, keyed=keyed)
        return course.size.rows

    await course.clear()
    plain = await put_row(course, "batches of 1,000, without keys", lambda: put(keyed=False))
    await course.clear()
    return [plain, await put_row(course, "batches of 1,000, with idempotency keys", lambda: put(keyed=True))]


async def subscription_rows(course: Course) -> list[Row]:
    """Publish beside services that subscribe to other types: to one target, to one subscriber, and with a rule."""
    rows: list[Row] = []
    size = course.size

    async def put(target: str | None) -> int:
        await course.fill(target, size.rows)
        return size.rows

    for name, target, extra in (
        ("to one target", SERVICE, ()),
        ("to one subscriber, found by type", None, (("own_1", "pull"),)),
        ("to one target, and a rule that matches another type", SERVICE, (("hub", "rule"),)),
    ):
        for count in (0, size.many // 10, size.many):
            await course.clear()
            await course.owner.execute(ADD_SERVICES, count)
            await course.owner.execute(SUBSCRIBE, count, ["cart.*"])
            for service, mode in extra:
                await course.owner.execute(ADD_SERVICE, service)
                await course.owner.execute(SUBSCRIBE_ONE, service, mode, ["order.*"] if mode == "pull" else ["cart.*"])
            await course.owner.execute("analyze")
            title = f"{name}, beside {count:,} other subscriptions"
            rows.append(await put_row(course, title, lambda target=target: put(target)))
            await course.clear()
            await course.owner.execute(UNSUBSCRIBE)
    return rows


async def broadcast_rows(course: Course) -> list[Row]:
    """From the publish to the last delivery, which `pabal work` makes if there are many; per delivery."""
    many = course.size.many
    async with working(course) as worker:
        await broadcast_row(course, worker, many, 1)  # the worker has started
        return [
            await broadcast_row(course, worker, count, max(1, min(200, course.size.rows // count)))
            for count in (1, 100, many)
        ]


async def broadcast_row(course: Course, worker: int, count: int, rounds: int) -> Row:
    await course.clear()
    await course.owner.execute(ADD_SERVICES, count)
    await course.owner.execute(SUBSCRIBE, count, ["order.*"])
    await course.owner.execute("analyze")
    durations: list[float] = []
    async with metered(course.owner, worker) as cost:
        used = time.process_time()
        for _ in range(rounds):
            began = time.perf_counter()
            await course.fill(None, 1)
            await wait_for_fan_out(course)
            durations.append(time.perf_counter() - began)
        used = time.process_time() - used
    await course.clear()
    await course.owner.execute(UNSUBSCRIBE)
    deliveries, spent = rounds * count, sum(durations)
    durations.sort()
    p50, p99 = (durations[int(rounds * part)] * 1000 for part in (0.5, 0.99))
    name = f"broadcast to {count:,}, per delivery"
    return [name, deliveries / spent, p50, p99, used / deliveries * 1e6, *cost.per(deliveries)]


async def wait_for_fan_out(course: Course) -> None:
    async with asyncio.timeout(PATIENCE):
        while await course.owner.fetchval("select exists (select from pabal.event_fan_outs)"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def steady_rows(course: Course) -> list[Row]:
    """A publisher and `pabal work`, each in its process; from the time an event is due to the start of its handler."""
    return [await steady_row(course, rate) for rate in (2_000, 5_000, 10_000)]


async def steady_row(course: Course, rate: int) -> Row:
    await course.clear()
    events = int(rate * course.size.steady_seconds)
    consumer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.steady", course.endpoint.hub_url),
        *(str(events), str(course.size.steady_seconds + 20)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert consumer.stdout is not None
    await consumer.stdout.readline()
    async with metered(course.owner) as cost:
        began, used = time.perf_counter(), time.process_time()
        await publish_steadily(course.hub, rate, events)
        elapsed, used = time.perf_counter() - began, time.process_time() - used
        output = await consumer.stdout.read()
    await consumer.wait()
    results = json.loads(output.splitlines()[-1])
    _, postgres, wal = cost.per(events)
    client = (used + results["used"]) / events * 1e6
    name = f"{rate:,}/s for {course.size.steady_seconds:.0f} s"
    if results["events"] < events:
        name += f" (not sustained: {events - results['events']:,} were not handled 20 s later)"
    return [name, events / elapsed, results["p50"] * 1000, results["p99"] * 1000, client, "", postgres, wal]


async def publish_steadily(hub: Hub, rate: int, events: int) -> None:
    """Publish each event at its time, not after the one before.

    The event carries the time at which it was due, so that a publisher that is late makes it older.
    """
    began, began_at, sent = time.perf_counter(), time.time(), 0
    pending: set[asyncio.Future[Any]] = set()
    while sent < events:
        due = min(events, int((time.perf_counter() - began) * rate) + 1)
        for number in range(sent, due):
            payload = msgspec.json.encode({"at": began_at + number / rate})
            future = hub.publisher.enqueue(EventDraft("minu_find", "steady.tick", payload, SERVICE))
            pending.add(future)
            future.add_done_callback(pending.discard)
        sent = due
        await asyncio.sleep(0.001)
    await asyncio.gather(*pending)


async def memory_rows(course: Course) -> list[Row]:
    """Idle, and in the middle of 256 connections that publish over HTTP while `pabal work` handles the events."""
    await course.clear()
    processes = await postmaster_pid(course.owner), course.served.pid
    async with working(course, "--app", "bench.shop:timed_hub") as worker:
        await asyncio.sleep(course.size.seconds)
        rows: list[Row] = [["idle", *(tree_memory(pid) for pid in (*processes, worker))]]
        driving = asyncio.create_task(course.served.driven(course.owner, ONE, 256, course.size.seconds * 4))
        await asyncio.sleep(course.size.seconds * 3)
        rows.append(["256 connections publish", *(tree_memory(pid) for pid in (*processes, worker))])
        await driving
    await course.clear()
    return rows


@asynccontextmanager
async def working(course: Course, *arguments: str) -> AsyncGenerator[int]:
    """A `pabal work` process."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pabal", "work", *arguments),
        cwd=ROOT,
        env={**os.environ, "PABAL_DATABASE_URL": course.endpoint.hub_url},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield worker.pid
    finally:
        worker.terminate()
        await worker.wait()


async def push_rows(course: Course) -> list[Row]:
    """Push to a receiver that answers at once: many events of one service, then one each of many services."""
    events, many = course.size.rows // 4, course.size.many
    async with working(course) as worker:
        await push_row(course, worker, 1, 10, "until the worker has started")
        return [
            await push_row(course, worker, 1, events, "push to a fast receiver"),
            await push_row(course, worker, 10, events, "push for 10 services"),
            await push_row(course, worker, many, many, f"push for {many:,} services, one event each"),
        ]


async def wait_for_pushes(course: Course, receiver: CountingReceiver) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await receiver.all_received.wait()
    except TimeoutError:
        failures = await course.owner.fetch("select status, last_error, count(*) from event_queue group by 1, 2")
        raise SystemExit(f"not all events were pushed: {failures}") from None


async def push_row(course: Course, worker: int, services: int, events: int, name: str) -> Row:
    await course.clear()
    async with counting_receiver(events) as receiver:
        await course.owner.execute(ADD_SERVICES, services)
        ids = [new_id() for _ in range(services)]
        await course.owner.execute(
            "insert into pabal.subscriptions (id, service_name, mode, event_types, url, secret) "
            "select id, 'many_' || n, 'push', '{order.*}', $3, secret "
            "from unnest($1::uuid[], $2::text[]) with ordinality as s (id, secret, n)",
            ids,
            [encrypt_envelope(course.hub.key_ring, "whsec_" + "a" * 32, webhook_secret_location(row)) for row in ids],
            receiver.url,
        )
        async with metered(course.owner, worker) as cost:
            began = time.perf_counter()
            for start in range(0, events, BATCH):
                await publish_event_batch(
                    course.hub.db,
                    [
                        EventDraft("minu_find", "order.paid", BODY, f"many_{number % services + 1}")
                        for number in range(start, min(start + BATCH, events))
                    ],
                )
            await wait_for_pushes(course, receiver)
            spent = time.perf_counter() - began
        hub, postgres, wal = cost.per(events)
    await course.clear()
    await course.owner.execute(UNSUBSCRIBE)
    return [name, events / spent, "", "", "", hub, postgres, wal]


PATHS: dict[str, Callable[[Course], Awaitable[list[Row]]]] = {
    "publish": publish_rows,
    "pull": pull_rows,
    "push": push_rows,
    "broadcast": broadcast_rows,
    "subscriptions": subscription_rows,
    "keyed": keyed_rows,
    "steady": steady_rows,
    "memory": memory_rows,
}
TITLES = {
    "publish": "Python client",
    "pull": "pulling over HTTP",
    "push": "pushing to webhooks",
    "broadcast": "broadcast; the latency is that of all deliveries of an event",
    "subscriptions": "publishing in batches of 1,000",
    "keyed": "publishing with keys",
    "steady": "steady rate, a publisher and `pabal work` in two processes",
    "memory": "memory in MB (shared pages counted once)",
}


async def measure(endpoint: ServerAddress, size: PathSize, rounds: int, name: str) -> Table:
    settings = Settings(_env_file=None, log_level="error")  # pyright: ignore[reportCallIssue]
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(connected(endpoint.owner_url))
        hub = await stack.enter_async_context(open_hub(settings, DatabaseUrls(endpoint.hub_url, None)))
        secrets: dict[str, str] = {}
        for service in (RECEIVER, CONSUMER):
            async with hub.transaction() as tx:
                _, secrets[service] = await add_service(tx, service, ["write"], BY)
        served = await stack.enter_async_context(serving(endpoint))
        course = Course(endpoint, owner, hub, served, secrets, size)
        results = [await PATHS[name](course) for _ in range(rounds)]
    columns = ["PostgreSQL", "`pabal serve`", "`pabal work`"] if name == "memory" else COLUMNS
    return Table(TITLES[name], columns, [middle_row(rows) for rows in zip(*results, strict=True)])


def middle_row(rows: Sequence[Row]) -> Row:
    """The median of each column over the rounds."""
    return [
        statistics.median(float(str(value)) for value in values) if isinstance(values[0], float) else values[-1]
        for values in zip(*rows, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the numbers are meaningless")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[*PATHS], nargs="+", default=[*PATHS], help="the groups of rows to run")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {DOCUMENT.name}")
    args = parser.parse_args()
    size, rounds = (QUICK, 1) if args.quick else (PathSize(), args.rounds)
    os.environ["PABAL_CALLBACK_ALLOW"] = "http://127.0.0.1"  # the receiver of pushes
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
            os.environ["PABAL_DATA_DIR"] = folder  # every process of ours signs and seals with the same keys
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                table = runner.run(measure(endpoint, size, rounds, name))
        print_table(table)
        if args.write:
            write_tables([table], f"paths {name}")


if __name__ == "__main__":
    main()
