"""Benchmark of events, from publish to settle, against other queues on the same PostgreSQL."""

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import uvloop

from bench.contestants import EVERYBODY, ROOT, Contestant
from bench.engine import one_by_one
from bench.ground import connected, durable, middle
from bench.plot import Bars, drawn
from bench.report import Table, shown, written
from bench.web import MANY, ONE, Driven, serving
from pabal.db.embedded import ServerAddress

DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "benchmarks-events.svg"
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
    taking_part = [each for each in EVERYBODY if each.here]
    await asyncio.gather(*(each.install(endpoint) for each in taking_part))
    for _ in range(size.rounds):
        for each in taking_part:
            await each.empty(endpoint)
            await one_drain(endpoint, each, size, seen, FRESH)
    await publish(endpoint, size, seen)
    for each in {each.database: each for each in taking_part}.values():
        await each.empty(endpoint)
        await each.age(endpoint, size.finished)
    for _ in range(size.rounds):
        for each in taking_part:
            await one_drain(endpoint, each, size, seen, AGED)
    return seen


async def one_drain(endpoint: ServerAddress, who: Contestant, size: Size, seen: Seen, when: str) -> None:
    filled = await who.told(endpoint, "fill", size.rows)
    await who.tidy(endpoint)
    drained = await who.told(endpoint, "drain", size.rows, size.within)
    if when == FRESH:
        seen.put[who.database].append(filled["rate"])
    seen.drained[who.name, when].append(drained["rate"])
    seen.memory[who.name].append(drained["memory"])


async def publish(endpoint: ServerAddress, size: Size, seen: Seen) -> None:
    async with serving(endpoint) as hub, connected(endpoint.owner_url) as owner:
        for _ in range(size.rounds):
            seen.commits.append(await one_by_one(owner, endpoint.hub_url, 64, size.driven))
            for path, connections in ((ONE, 1), (ONE, 64), (ONE, 256), (MANY, 2)):
                seen.driven[path, connections].append(await hub.driven(path, connections, size.driven))
        seen.serving = hub.memory()


def tables(seen: Seen, size: Size) -> list[Table]:
    here = [each for each in EVERYBODY if each.here]
    return [over_http(seen), in_batches(seen, here), draining(seen, here, size), said_of(here)]


def over_http(seen: Seen) -> Table:
    commits = middle(seen.commits)
    rows: list[Sequence[object]] = [["one insert per commit, 64 connections, no HTTP", commits, 1.0, "", "", "", ""]]
    for (path, connections), found in seen.driven.items():
        rate = middle([each.rate for each in found])
        callers = f"{connections} connection{'s' if connections > 1 else ''}"
        rows.append(
            [
                f"`POST {path}`, {callers}{', 1,000 events each' if path == MANY else ''}",
                rate,
                rate / commits,
                middle([each.p50 for each in found]) * 1000,
                middle([each.p99 for each in found]) * 1000,
                middle([each.hub for each in found]),
                middle([each.driver for each in found]),
            ]
        )
    return Table(
        "publishing over HTTP, one `pabal serve`",
        ["events/s", "ratio", "p50 ms", "p99 ms", "cores: hub", "cores: driver"],
        rows,
    )


def in_batches(seen: Seen, here: Sequence[Contestant]) -> Table:
    ours = middle(seen.put["pabal"])
    rates = {each.database: middle(seen.put[each.database]) for each in here}
    names = {each.database: each.name if not each.ours else "pabal" for each in here}
    return Table(
        "putting in batches of 1,000, in process, one after the other",
        ["jobs/s", "pabal against it"],
        [[names[who], rate, ours / rate] for who, rate in sorted(rates.items(), key=lambda each: -each[1])],
    )


def draining(seen: Seen, here: Sequence[Contestant], size: Size) -> Table:
    rows: list[Sequence[object]] = []
    for each in sorted(here, key=lambda each: (not each.handles, -middle(seen.drained[each.name, FRESH]))):
        ours = next(other.name for other in EVERYBODY if other.ours and other.handles == each.handles)
        rates = [middle(seen.drained[each.name, when]) for when in (FRESH, AGED)]
        against = [middle(seen.drained[ours, when]) / rate for when, rate in zip((FRESH, AGED), rates, strict=True)]
        past = rates[1] if each.aged else f"{rates[1]:,.0f} (keeps none)"
        kind = "handlers" if each.handles else "no handlers"
        rows.append([f"{each.name}, {kind}", rates[0], against[0], past, against[1], max(seen.memory[each.name])])
    return Table(
        f"draining {size.rows:,}",
        ["jobs/s", "pabal against it", f"with {size.finished:,} finished", "pabal against it", "peak MB"],
        rows,
    )


def said_of(here: Sequence[Contestant]) -> Table:
    return Table("who", ["what it does with a job"], [[each.name, each.says] for each in here])


def bars(seen: Seen, size: Size) -> Bars:
    here = [each for each in EVERYBODY if each.here]
    return Bars(
        f"Draining {size.rows:,} jobs, jobs per second",
        (f"{size.rows:,} waiting", f"and {size.finished:,} finished rows in the table"),
        [
            (
                each.name,
                "with handlers" if each.handles else "fetch loop",
                (middle(seen.drained[each.name, FRESH]), middle(seen.drained[each.name, AGED])),
                each.ours,
            )
            for each in sorted(here, key=lambda each: (not each.handles, -middle(seen.drained[each.name, FRESH])))
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the numbers mean nothing")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", action="store_true", help=f"write into {DOCUMENT.name} and draw {PLOT.name}")
    said = parser.parse_args()
    size = QUICK if said.quick else Size(rounds=said.rounds) if said.rounds else Size()
    with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
        os.environ["PABAL_DATA_DIR"] = folder  # every process of ours signs and seals with the same keys
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(measure(endpoint, size))
    found = tables(seen, size)
    for table in found:
        shown(table)
    print(f"pabal serve held {seen.serving:.0f} MB at most")
    if said.write:
        written(found, DOCUMENT, "events", f"![How fast everybody drains]({PLOT.name})")
        PLOT.write_text(drawn(bars(seen, size)), encoding="utf-8")


if __name__ == "__main__":
    main()
