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
from bench.plot import Bars, drawn
from bench.report import Table, shown, written
from bench.web import MANY, ONE, Driven, serving
from pabal.db.embedded import ServerAddress

DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "benchmarks-events.svg"
SINGLE_INSERTS = "one insert per commit into the specification's table, 64 connections, no HTTP"
FRESH, AGED = "fresh", "aged"


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a run."""

    rows: int = 20_000
    finished: int = 1_000_000
    rounds: int = 5
    within: float = 8.0
    """Seconds per drain; a slower contestant is measured by what it did until then."""
    driven: float = 4.0


QUICK = Size(rows=1_000, finished=10_000, rounds=1, within=0.5, driven=0.5)


@dataclass(slots=True)
class Seen:
    """The results of all rounds, by measure and contestant."""

    put: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    driven: dict[tuple[str, int], list[Driven]] = field(default_factory=lambda: defaultdict(list))
    commits: list[float] = field(default_factory=list[float])
    serving: float = 0.0


async def measure(endpoint: ServerAddress, size: Size) -> Seen:
    """Run all measures in turns, so that a disturbance affects every contestant."""
    seen = Seen()
    contestants = [contestant for contestant in CONTESTANTS if contestant.here]
    await asyncio.gather(*(contestant.install(endpoint) for contestant in contestants))
    for _ in range(size.rounds):
        for contestant in contestants:
            await contestant.empty(endpoint)
            await one_drain(endpoint, contestant, size, seen, FRESH)
    await publish(endpoint, size, seen)
    for contestant in {contestant.database: contestant for contestant in contestants}.values():
        await contestant.empty(endpoint)
        await contestant.age(endpoint, size.finished)
    for _ in range(size.rounds):
        for contestant in contestants:
            await one_drain(endpoint, contestant, size, seen, AGED)
    return seen


async def one_drain(endpoint: ServerAddress, contestant: Contestant, size: Size, seen: Seen, when: str) -> None:
    filled = await contestant.run_command(endpoint, "fill", size.rows)
    await contestant.tidy(endpoint)
    drained = await contestant.run_command(endpoint, "drain", size.rows, size.within)
    if when == FRESH:
        seen.put[contestant.database].append(filled["rate"])
    seen.drained[contestant.name, when].append(drained["rate"])
    seen.memory[contestant.name].append(drained["memory"])


async def publish(endpoint: ServerAddress, size: Size, seen: Seen) -> None:
    async with serving(endpoint) as hub, connected(endpoint.owner_url) as owner:
        for _ in range(size.rounds):
            seen.commits.append(await one_by_one(owner, endpoint.hub_url, 64, size.driven))
            for path, connections in ((ONE, 1), (ONE, 64), (ONE, 256), (MANY, 2)):
                seen.driven[path, connections].append(await hub.driven(path, connections, size.driven))
        seen.serving = hub.memory()


def tables(seen: Seen, size: Size) -> list[Table]:
    here = [contestant for contestant in CONTESTANTS if contestant.here]
    return [over_http(seen), in_batches(seen, here), draining(seen, here, size), descriptions(here)]


def over_http(seen: Seen) -> Table:
    commits = middle(seen.commits)
    rows: list[Sequence[object]] = [[SINGLE_INSERTS, commits, 1.0, "", "", "", ""]]
    for (path, connections), runs in seen.driven.items():
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


def in_batches(seen: Seen, here: Sequence[Contestant]) -> Table:
    ours = middle(seen.put["pabal"])
    rates = {contestant.database: middle(seen.put[contestant.database]) for contestant in here}
    names = {contestant.database: contestant.name if not contestant.ours else "pabal" for contestant in here}
    return Table(
        "putting in batches of 1,000, in process, one after the other",
        ["jobs/s", "pabal against it"],
        [[names[database], rate, ours / rate] for database, rate in sorted(rates.items(), key=lambda pair: -pair[1])],
    )


def draining(seen: Seen, here: Sequence[Contestant], size: Size) -> Table:
    rows: list[Sequence[object]] = []
    for contestant in sorted(
        here, key=lambda contestant: (not contestant.handles, -middle(seen.drained[contestant.name, FRESH]))
    ):
        ours = next(other.name for other in CONTESTANTS if other.ours and other.handles == contestant.handles)
        rates = [middle(seen.drained[contestant.name, when]) for when in (FRESH, AGED)]
        against = [middle(seen.drained[ours, when]) / rate for when, rate in zip((FRESH, AGED), rates, strict=True)]
        past = rates[1] if contestant.aged else f"{rates[1]:,.0f} (keeps none)"
        kind = "handlers" if contestant.handles else "no handlers"
        rows.append(
            [f"{contestant.name}, {kind}", rates[0], against[0], past, against[1], max(seen.memory[contestant.name])]
        )
    return Table(
        f"draining {size.rows:,}",
        ["jobs/s", "pabal against it", f"with {size.finished:,} finished", "pabal against it", "peak MB"],
        rows,
    )


def descriptions(here: Sequence[Contestant]) -> Table:
    return Table("who", ["what it does with a job"], [[contestant.name, contestant.says] for contestant in here])


def bars(seen: Seen, size: Size) -> Bars:
    here = [contestant for contestant in CONTESTANTS if contestant.here]
    return Bars(
        f"Draining {size.rows:,} jobs, jobs per second",
        (f"{size.rows:,} waiting", f"and {size.finished:,} finished rows in the table"),
        [
            (
                contestant.name,
                "with handlers" if contestant.handles else "fetch loop",
                (middle(seen.drained[contestant.name, FRESH]), middle(seen.drained[contestant.name, AGED])),
                contestant.ours,
            )
            for contestant in sorted(
                here, key=lambda contestant: (not contestant.handles, -middle(seen.drained[contestant.name, FRESH]))
            )
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the numbers are meaningless")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", action="store_true", help=f"write into {DOCUMENT.name} and draw {PLOT.name}")
    args = parser.parse_args()
    size = QUICK if args.quick else Size(rounds=args.rounds) if args.rounds else Size()
    with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
        os.environ["PABAL_DATA_DIR"] = folder  # every process of ours signs and seals with the same keys
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(measure(endpoint, size))
    report_tables = tables(seen, size)
    for table in report_tables:
        shown(table)
    print(f"pabal serve held {seen.serving:.0f} MB at most")
    if args.write:
        written(report_tables, DOCUMENT, "events", f"![How fast each queue drains]({PLOT.name})")
        PLOT.write_text(drawn(bars(seen, size)), encoding="utf-8")


if __name__ == "__main__":
    main()
