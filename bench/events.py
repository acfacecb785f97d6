"""Benchmark of events, from publish to settle, against other queues on the same PostgreSQL."""

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from bench.contestants import CONTESTANTS, PABAL_LANE, PABAL_TUNED, ROOT, Contestant
from bench.engine import one_by_one_run
from bench.ground import connected, durable, middle
from bench.meter import COST_COLUMNS, Run, middle_costs, middle_rate
from bench.plot import Bar, draw_chart
from bench.report import DOCUMENT, Table, print_table, write_tables
from bench.wakeups import courses, measure_wakeups, running_pair
from bench.web import MANY, ONE, Driven, serving
from pabal.db.embedded import ServerAddress

PLOT = ROOT / "docs" / "benchmarks-events.svg"
SINGLE_INSERTS = "one insert per commit into the specification's table, 64 connections, no HTTP"
FRESH, AGED = "fresh", "aged"
NO_WORKER, WITH_WORKER = "no worker", "its worker running"
DRAIN, AGED_HANDLERS, AGED_LANES = "drain", "aged-handlers", "aged-lanes"
PUBLISH, TRANSACT, WAKE = "publish", "transact", "wake"
GROUPS = (DRAIN, AGED_HANDLERS, AGED_LANES, PUBLISH, TRANSACT, WAKE)


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a run."""

    rows: int = 20_000
    finished: int = 1_000_000
    rounds: int = 3
    within: float = 8.0
    """Seconds per drain; a slower contestant is measured by what it did until then."""
    driven: float = 4.0
    connections: int = 64
    """Connections that publish in transactions of their own."""
    wakes: int = 300


QUICK = Size(rows=1_000, finished=10_000, rounds=1, within=0.5, driven=0.5, connections=8, wakes=20)


@dataclass(slots=True)
class Results:
    """The results of all rounds, by measure and contestant."""

    put: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    transacted: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    driven: dict[str, list[Driven]] = field(default_factory=lambda: defaultdict(list))
    commits: list[Run] = field(default_factory=list[Run])

    def drain_rate(self, name: str, when: str) -> float:
        return middle_rate(self.drained[name, when])


async def measure(endpoint: ServerAddress, size: Size, group: str) -> list[Table]:
    """Run all contestants of a group in turns, so that a disturbance affects every one of them."""
    results = Results()
    here = [contestant for contestant in CONTESTANTS if contestant.here]
    await asyncio.gather(*(one.install(endpoint) for one in {one.database: one for one in here}.values()))
    match group:
        case "drain":
            await drain(endpoint, here, size, results, FRESH)
            return [in_batches(results, here), draining(results, here, size, FRESH), descriptions(here)]
        case "aged-handlers" | "aged-lanes":
            handles = group == AGED_HANDLERS
            contestants = [one for one in here if one.keeps and one.handles == handles]
            await age(endpoint, contestants, size)
            await drain(endpoint, contestants, size, results, AGED)
            return [draining(results, contestants, size, AGED)]
        case "publish":
            await publish(endpoint, size, results)
            return [over_http(results)]
        case "transact":
            await transact(endpoint, [one for one in here if one.transacts], size, results)
            return [in_transactions(results, size)]
        case _:
            return [await measure_wakeups(endpoint, size.rounds, size.wakes)]


async def drain(
    endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size, results: Results, when: str
) -> None:
    for _ in range(size.rounds):
        for contestant in contestants:
            if when == FRESH:
                await contestant.empty(endpoint)
            filled = await contestant.run_measured(endpoint, "fill", size.rows)
            await contestant.tidy(endpoint)
            results.put[contestant.database].append(filled)
            run = await contestant.run_measured(endpoint, "drain", size.rows, size.within)
            results.drained[contestant.name, when].append(run)


async def age(endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size) -> None:
    for contestant in {contestant.database: contestant for contestant in contestants}.values():
        await contestant.empty(endpoint)
        await contestant.age(endpoint, size.finished)


async def transact(endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size, results: Results) -> None:
    """Insert a row of the caller and a job in each transaction, without a worker and beside one.

    A hub is running, as in production.
    """
    pairs = {course.contestant.name: course for course in courses()}
    for contestant in contestants:
        await contestant.allow_transactions(endpoint)
    async with serving(endpoint):
        for _ in range(size.rounds):
            for contestant in contestants:
                await contestant.empty(endpoint)
                await contestant.tidy(endpoint)
                run = await contestant.run_measured(endpoint, "transact", size.connections, size.driven)
                results.transacted[contestant.name, NO_WORKER].append(run)
                if contestant.name not in pairs:
                    continue
                await contestant.empty(endpoint)
                async with running_pair(endpoint, pairs[contestant.name]):
                    run = await contestant.run_measured(endpoint, "transact", size.connections, size.driven)
                results.transacted[contestant.name, WITH_WORKER].append(run)


async def publish(endpoint: ServerAddress, size: Size, results: Results) -> None:
    async with connected(endpoint.owner_url) as owner:
        async with serving(endpoint) as hub:
            for _ in range(size.rounds):
                results.commits.append(await one_by_one_run(owner, endpoint.hub_url, 64, size.driven))
                for path, connections in ((ONE, 1), (ONE, 64), (ONE, 256), (MANY, 2)):
                    name = f"`POST {path}`, {connections} connection{'s' if connections > 1 else ''}"
                    name += ", 1,000 events each" if path == MANY else ""
                    results.driven[name].append(await hub.driven(owner, path, connections, size.driven))
        for _ in range(size.rounds):
            for processes in (1, 2):
                async with serving(endpoint, processes) as hub:
                    await hub.driven(owner, ONE, 64, size.driven / 4)  # the children have started
                    for connections in (64, 256):
                        name = f"`--processes {processes}`: `POST {ONE}`, {connections} connections"
                        results.driven[name].append(await hub.driven(owner, ONE, connections, size.driven))


def over_http(results: Results) -> Table:
    commits = middle_rate(results.commits)
    client, postgres, wal = middle_costs(results.commits)
    rows: list[Sequence[object]] = [[SINGLE_INSERTS, commits, 1.0, "", "", "", client, postgres, wal]]
    for name, runs in results.driven.items():
        rate = middle([run.rate for run in runs])
        rows.append(
            [
                name,
                rate,
                rate / commits,
                middle([run.p50 for run in runs]) * 1000,
                middle([run.p99 for run in runs]) * 1000,
                middle([run.hub for run in runs]),
                middle([run.driver for run in runs]),
                middle([run.postgres for run in runs]),
                middle([run.wal for run in runs]),
            ]
        )
    return Table(
        "publishing over HTTP, `pabal serve`",
        ["events/s", "ratio", "p50 ms", "p99 ms", "µs hub", "µs client", "µs PostgreSQL", "WAL bytes"],
        rows,
    )


def in_batches(results: Results, here: Sequence[Contestant]) -> Table:
    ours = middle_rate(results.put["pabal"])
    names = {one.database: "pabal" if one.ours else one.name.partition(",")[0] for one in here}
    return Table(
        "putting in batches of 1,000, in process, one after the other",
        ["jobs/s", "pabal against it", *COST_COLUMNS],
        [
            [names[database], middle_rate(runs), ours / middle_rate(runs), *middle_costs(runs)]
            for database, runs in sorted(results.put.items(), key=lambda pair: -middle_rate(pair[1]))
        ],
    )


def in_transactions(results: Results, size: Size) -> Table:
    rows: list[Sequence[object]] = []
    for beside in (NO_WORKER, WITH_WORKER):
        ours = middle_rate(results.transacted[PABAL_TUNED, beside])
        runs_of = {name: runs for (name, at), runs in results.transacted.items() if at == beside}
        for name, runs in sorted(runs_of.items(), key=lambda pair: -middle_rate(pair[1])):
            title = "pabal" if name == PABAL_TUNED else name.partition(",")[0]
            percentiles = [middle([run.reported[part] for run in runs]) * 1000 for part in ("p50", "p99")]
            rate = middle_rate(runs)
            rows.append([f"{title}, {beside}", rate, ours / rate, *percentiles, *middle_costs(runs)])
    return Table(
        f"publishing in the caller's transaction, {size.connections} connections",
        ["transactions/s", "pabal against it", "p50 ms", "p99 ms", *COST_COLUMNS],
        rows,
    )


def draining(results: Results, contestants: Sequence[Contestant], size: Size, when: str) -> Table:
    rows: list[Sequence[object]] = []
    for contestant in by_rate(results, contestants, when):
        ours = results.drain_rate(PABAL_TUNED if contestant.handles else PABAL_LANE, when)
        runs = results.drained[contestant.name, when]
        rate, (client, postgres, wal) = middle_rate(runs), middle_costs(runs)
        memory = max(run.reported["memory"] for run in runs)
        name = f"{contestant.name}, {'handlers' if contestant.handles else 'no handlers'}"
        rows.append([name, rate, ours / rate, client, postgres, client + postgres, wal, memory])
    title = f"draining {size.rows:,}"
    if when == AGED:
        title += f" beside {size.finished:,} finished"
    return Table(
        title,
        ["jobs/s", "pabal against it", "µs client", "µs PostgreSQL", "µs in sum", "WAL bytes", "peak MB"],
        rows,
    )


def by_rate(results: Results, contestants: Sequence[Contestant], when: str) -> list[Contestant]:
    return sorted(contestants, key=lambda one: (not one.handles, -results.drain_rate(one.name, when)))


def descriptions(here: Sequence[Contestant]) -> Table:
    return Table("who", ["what it does with a job"], [[contestant.name, contestant.says] for contestant in here])


def draw_drains(table: Table, size: Size) -> str:
    """The chart of a table of `draining`."""
    bars: list[Bar] = []
    for row in table.rows:
        name, _, kind = str(row[0]).rpartition(", ")
        bars.append(
            (name, "with handlers" if kind == "handlers" else "fetch loop", float(str(row[1])), "pabal" in name)
        )
    return draw_chart(f"Draining {size.rows:,} jobs, jobs per second", bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the numbers are meaningless")
    parser.add_argument("--rounds", type=int, default=Size().rounds)
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=[*GROUPS], help="the groups of measures to run")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {DOCUMENT.name}")
    args = parser.parse_args()
    size = QUICK if args.quick else Size(rounds=args.rounds)
    for group in args.only:
        with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
            os.environ["PABAL_DATA_DIR"] = folder  # every process of ours signs and seals with the same keys
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                tables = runner.run(measure(endpoint, size, group))
        for table in tables:
            print_table(table)
        if args.write:
            write_group(group, tables, size)


def write_group(group: str, tables: Sequence[Table], size: Size) -> None:
    if group == DRAIN:
        PLOT.write_text(draw_drains(tables[1], size), encoding="utf-8")
        write_tables(tables, f"events {group}", f"![Drain rate of each contestant]({PLOT.name})")
    else:
        write_tables(tables, f"events {group}")


if __name__ == "__main__":
    main()
