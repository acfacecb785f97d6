"""Benchmark of events, from publish to settle, against other queues on the same PostgreSQL."""

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from bench.contestants import CONTESTANTS, ROOT, Contestant
from bench.engine import one_by_one
from bench.ground import connected, durable, middle
from bench.meter import metered
from bench.plot import Bars, draw_chart
from bench.report import Table, print_table, write_tables
from bench.web import MANY, ONE, Driven, Serving, serving
from pabal.db.embedded import ServerAddress

DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "benchmarks-events.svg"
SINGLE_INSERTS = "one insert per commit into the specification's table, 64 connections, no HTTP"
FRESH, AGED = "fresh", "aged"
DRAIN, PUBLISH, TRANSACT = "drain", "publish", "transact"
GROUPS = (DRAIN, PUBLISH, TRANSACT)
CREATE_ORDERS = "create table if not exists public.bench_orders (id bigserial primary key, item text not null)"
ALLOW_PUBLISHER = """
grant insert on public.bench_orders to pabal_publisher;
grant usage on sequence public.bench_orders_id_seq to pabal_publisher;
do $$ begin create role bench_shop in role pabal_publisher; exception when duplicate_object then null; end $$;
grant bench_shop to pabal_hub;
insert into pabal.service_sql_roles (role_name, service_name) values ('bench_shop', 'minu_find') on conflict do nothing
"""
"""A publisher's own role: it may publish as one service and do nothing else."""


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a run."""

    rows: int = 20_000
    finished: int = 1_000_000
    rounds: int = 5
    within: float = 8.0
    """Seconds per drain; a slower contestant is measured by what it did until then."""
    driven: float = 4.0
    connections: int = 64
    """Connections that publish in transactions of their own."""


QUICK = Size(rows=1_000, finished=10_000, rounds=1, within=0.5, driven=0.5, connections=8)
COST_COLUMNS = ["µs client", "µs PostgreSQL", "WAL bytes"]
"""CPU time and WAL per job: on a shared machine, rates are noise."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a contestant: jobs per second, what a job costs, and what else it reports."""

    rate: float
    client: float
    postgres: float
    wal: float
    reported: dict[str, float]


def middle_costs(runs: Sequence[Run]) -> list[float]:
    return [
        middle([run.client for run in runs]),
        middle([run.postgres for run in runs]),
        middle([run.wal for run in runs]),
    ]


def middle_rate(runs: Sequence[Run]) -> float:
    return middle([run.rate for run in runs])


@dataclass(slots=True)
class Results:
    """The results of all rounds, by measure and contestant."""

    put: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    transacted: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    driven: dict[tuple[str, int], list[Driven]] = field(default_factory=lambda: defaultdict(list))
    commits: list[float] = field(default_factory=list[float])
    serving: float = 0.0

    def drain_rate(self, name: str, when: str) -> float:
        return middle_rate(self.drained[name, when])


async def measure(endpoint: ServerAddress, size: Size, groups: Sequence[str]) -> Results:
    """Run all contestants of a group in turns, so that a disturbance affects every one of them."""
    results = Results()
    contestants = [contestant for contestant in CONTESTANTS if contestant.here]
    await asyncio.gather(*(contestant.install(endpoint) for contestant in contestants))
    if DRAIN in groups:
        await drain_fresh(endpoint, contestants, size, results)
    async with serving(endpoint) as hub:
        if PUBLISH in groups:
            await publish(endpoint, hub, size, results)
        if TRANSACT in groups:
            await transact(endpoint, contestants, size, results)
        results.serving = hub.memory()
    if DRAIN in groups:
        await drain_aged(endpoint, contestants, size, results)
    return results


async def drain_fresh(endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size, results: Results) -> None:
    for _ in range(size.rounds):
        for contestant in contestants:
            await contestant.empty(endpoint)
            await one_drain(endpoint, contestant, size, results, FRESH)


async def drain_aged(endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size, results: Results) -> None:
    for contestant in {contestant.database: contestant for contestant in contestants}.values():
        await contestant.empty(endpoint)
        await contestant.age(endpoint, size.finished)
    for _ in range(size.rounds):
        for contestant in contestants:
            await one_drain(endpoint, contestant, size, results, AGED)


async def one_drain(endpoint: ServerAddress, contestant: Contestant, size: Size, results: Results, when: str) -> None:
    filled = await one_run(endpoint, contestant, "fill", size.rows)
    await contestant.tidy(endpoint)
    if when == FRESH:
        results.put[contestant.database].append(filled)
    results.drained[contestant.name, when].append(await one_run(endpoint, contestant, "drain", size.rows, size.within))


async def one_run(endpoint: ServerAddress, contestant: Contestant, command: str, *numbers: float) -> Run:
    async with connected(endpoint.owner_url) as owner, metered(owner) as cost:
        reported = await contestant.run_command(endpoint, command, *numbers)
    _, postgres, wal = cost.per(reported["jobs"])
    return Run(reported["rate"], reported["cpu"] / reported["jobs"] * 1e6, postgres, wal, reported)


async def transact(endpoint: ServerAddress, contestants: Sequence[Contestant], size: Size, results: Results) -> None:
    """Insert a row of the caller and a job in each transaction. A hub is running, as in production, but no worker."""
    transacting = [contestant for contestant in contestants if contestant.transacts]
    for contestant in transacting:
        async with connected(contestant.owner_url(endpoint)) as owner:
            await owner.execute(CREATE_ORDERS)
            if contestant.ours:
                await owner.execute(ALLOW_PUBLISHER)
    for _ in range(size.rounds):
        for contestant in transacting:
            await contestant.empty(endpoint)
            await contestant.tidy(endpoint)
            run = await one_run(endpoint, contestant, "transact", size.connections, size.driven)
            results.transacted[contestant.name].append(run)


async def publish(endpoint: ServerAddress, hub: Serving, size: Size, results: Results) -> None:
    async with connected(endpoint.owner_url) as owner:
        for _ in range(size.rounds):
            results.commits.append(await one_by_one(owner, endpoint.hub_url, 64, size.driven))
            for path, connections in ((ONE, 1), (ONE, 64), (ONE, 256), (MANY, 2)):
                results.driven[path, connections].append(await hub.driven(path, connections, size.driven))


def tables(results: Results, size: Size) -> list[Table]:
    here = [contestant for contestant in CONTESTANTS if contestant.here]
    report_tables: list[Table] = []
    if results.driven:
        report_tables.append(over_http(results))
    if results.put:
        report_tables.append(in_batches(results, here))
    if results.transacted:
        report_tables.append(in_transactions(results, size))
    if results.drained:
        report_tables += [draining(results, here, size), descriptions(here)]
    return report_tables


def over_http(results: Results) -> Table:
    commits = middle(results.commits)
    rows: list[Sequence[object]] = [[SINGLE_INSERTS, commits, 1.0, "", "", "", ""]]
    for (path, connections), runs in results.driven.items():
        rate = middle([run.rate for run in runs])
        callers = f"{connections} connection{'s' if connections > 1 else ''}"
        rows.append(
            [
                f"`POST {path}`, {callers}{', 1,000 events each' if path == MANY else ''}",
                rate,
                rate / commits,
                middle([run.p50 for run in runs]) * 1000,
                middle([run.p99 for run in runs]) * 1000,
                middle([run.hub for run in runs]),
                middle([run.driver for run in runs]),
            ]
        )
    return Table(
        "publishing over HTTP, one `pabal serve`",
        ["events/s", "ratio", "p50 ms", "p99 ms", "cores: hub", "cores: driver"],
        rows,
    )


def in_batches(results: Results, here: Sequence[Contestant]) -> Table:
    ours = middle_rate(results.put["pabal"])
    names = {contestant.database: contestant.name if not contestant.ours else "pabal" for contestant in here}
    return Table(
        "putting in batches of 1,000, in process, one after the other",
        ["jobs/s", "pabal against it", *COST_COLUMNS],
        [
            [names[database], middle_rate(runs), ours / middle_rate(runs), *middle_costs(runs)]
            for database, runs in sorted(results.put.items(), key=lambda pair: -middle_rate(pair[1]))
        ],
    )


def in_transactions(results: Results, size: Size) -> Table:
    ours = next(contestant.name for contestant in CONTESTANTS if contestant.ours)
    return Table(
        f"publishing in the caller's transaction, {size.connections} connections",
        ["transactions/s", "pabal against it", "p50 ms", "p99 ms", *COST_COLUMNS],
        [
            [
                "pabal" if name == ours else name,
                middle_rate(runs),
                middle_rate(results.transacted[ours]) / middle_rate(runs),
                middle([run.reported["p50"] for run in runs]) * 1000,
                middle([run.reported["p99"] for run in runs]) * 1000,
                *middle_costs(runs),
            ]
            for name, runs in sorted(results.transacted.items(), key=lambda pair: -middle_rate(pair[1]))
        ],
    )


def draining(results: Results, here: Sequence[Contestant], size: Size) -> Table:
    rows: list[Sequence[object]] = []
    for contestant in sorted(
        here, key=lambda contestant: (not contestant.handles, -results.drain_rate(contestant.name, FRESH))
    ):
        ours = next(other.name for other in CONTESTANTS if other.ours and other.handles == contestant.handles)
        rates = [middle_rate(results.drained[contestant.name, when]) for when in (FRESH, AGED)]
        against = [
            middle_rate(results.drained[ours, when]) / rate for when, rate in zip((FRESH, AGED), rates, strict=True)
        ]
        past = rates[1] if contestant.aged else f"{rates[1]:,.0f} (keeps none)"
        kind = "handlers" if contestant.handles else "no handlers"
        runs = results.drained[contestant.name, FRESH]
        memory = max(run.reported["memory"] for run in (*runs, *results.drained[contestant.name, AGED]))
        rows.append([f"{contestant.name}, {kind}", rates[0], against[0], *middle_costs(runs), past, against[1], memory])
    return Table(
        f"draining {size.rows:,}",
        [
            *("jobs/s", "pabal against it", *COST_COLUMNS),
            *(f"with {size.finished:,} finished", "pabal against it", "peak MB"),
        ],
        rows,
    )


def descriptions(here: Sequence[Contestant]) -> Table:
    return Table("who", ["what it does with a job"], [[contestant.name, contestant.says] for contestant in here])


def bars(results: Results, size: Size) -> Bars:
    here = [contestant for contestant in CONTESTANTS if contestant.here]
    return Bars(
        f"Draining {size.rows:,} jobs, jobs per second",
        (f"{size.rows:,} waiting", f"and {size.finished:,} finished rows in the table"),
        [
            (
                contestant.name,
                "with handlers" if contestant.handles else "fetch loop",
                (results.drain_rate(contestant.name, FRESH), results.drain_rate(contestant.name, AGED)),
                contestant.ours,
            )
            for contestant in sorted(
                here,
                key=lambda contestant: (not contestant.handles, -results.drain_rate(contestant.name, FRESH)),
            )
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the numbers are meaningless")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=[*GROUPS], help="the groups of measures to run")
    parser.add_argument("--write", action="store_true", help=f"write into {DOCUMENT.name} and draw {PLOT.name}")
    args = parser.parse_args()
    if args.write and {*args.only} != {*GROUPS}:
        parser.error("--write needs all groups")
    size = QUICK if args.quick else Size(rounds=args.rounds) if args.rounds else Size()
    with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
        os.environ["PABAL_DATA_DIR"] = folder  # every process of ours signs and seals with the same keys
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(measure(endpoint, size, args.only))
    report_tables = tables(results, size)
    for table in report_tables:
        print_table(table)
    print(f"pabal serve held {results.serving:.0f} MB at most")
    if args.write:
        write_tables(report_tables, DOCUMENT, "events", f"![How fast each queue drains]({PLOT.name})")
        PLOT.write_text(draw_chart(bars(results, size)), encoding="utf-8")


if __name__ == "__main__":
    main()
