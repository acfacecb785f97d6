"""Find the best settings of each contestant of `bench.events`, one setting at a time.

python -m bench.tune [NAME ...]   prints the results; copy the best by hand into `peers/` and `ours.py`
"""

import argparse
import asyncio
import os
import tempfile

import uvloop

from bench.contestants import CONTESTANTS, Contestant
from bench.ground import durable, middle
from bench.report import Table, print_table
from pabal.db.embedded import ServerAddress

ROWS = 20_000
ROUNDS = 3
WITHIN = 8.0
CANDIDATES: dict[str, dict[str, list[int]]] = {
    "work": {"concurrency": [500, 1000, 2000, 4000]},
    "pgqueuer": {"batch_size": [500, 1000, 2000, 4000], "connections": [4, 16, 32]},
    "awa": {
        "loops": [1, 2, 4, 8],
        "batch_size": [100, 500, 1000, 2000],
        "concurrency": [200, 1000, 2000, 5000, 10000],
        "connections": [8, 16, 32],
        "poll": [1, 10, 50],
    },
    "chancy": {"concurrency": [100, 300, 1000, 3000], "connections": [4, 16]},
    "procrastinate": {"concurrency": [5, 10, 20, 40]},
    "graphile": {
        "concurrency": [4, 10, 24, 50, 100],
        "batch_size": [100, 500, 1000, 2000, 4000],
        "completion_delay": [0, 5, 50, 250],
    },
    "pgboss": {"loops": [1, 2, 3, 4, 6, 8], "batch_size": [250, 500, 1000, 2000, 4000, 8000]},
    "pgmq": {"loops": [1, 2, 3, 4], "batch_size": [500, 1000, 2000, 4000, 8000]},
    "lane": {"loops": [1, 2, 3, 4], "batch_size": [250, 500, 1000, 2000, 4000]},
}
"""The values to try, by the database of a contestant (`work` and `lane` are ours), in this order."""


def values_to_try(contestant: Contestant) -> dict[str, list[int]]:
    return CANDIDATES.get(contestant.name.removeprefix("pabal ") if contestant.ours else contestant.database, {})


async def drain_rate(endpoint: ServerAddress, contestant: Contestant, settings: dict[str, int]) -> float:
    await contestant.empty(endpoint)
    await contestant.run_command(endpoint, "fill", ROWS)
    await contestant.tidy(endpoint)
    return (await contestant.run_command(endpoint, "drain", ROWS, WITHIN, **settings))["rate"]


async def find_best(endpoint: ServerAddress, contestant: Contestant) -> tuple[Table, dict[str, int]]:
    """Vary one setting at a time and keep its best value; the values of a setting run in turn."""
    best: dict[str, int] = {}
    rows: list[list[object]] = []
    for name, values in values_to_try(contestant).items():
        results: dict[int, list[float]] = {value: [] for value in values}
        for _ in range(ROUNDS):
            for value in values:
                results[value].append(await drain_rate(endpoint, contestant, {**best, name: value}))
        rates = {value: middle(rates_of_value) for value, rates_of_value in results.items()}
        for value, rate in rates.items():
            rows.append([f"{name} {value}", rate, f"{min(results[value]):,.0f} to {max(results[value]):,.0f}"])
        best[name] = max(rates, key=lambda value: rates[value])
    return Table(contestant.name, ["jobs/s", "of its rounds"], rows), best


async def tune(endpoint: ServerAddress, names: list[str]) -> None:
    for contestant in CONTESTANTS:
        if (
            contestant.here
            and values_to_try(contestant)
            and (not names or any(name in contestant.name for name in names))
        ):
            await contestant.install(endpoint)
            table, best = await find_best(endpoint, contestant)
            print_table(table)
            print(f"best of {contestant.name}: {best}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only contestants whose name contains this")
    with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
        os.environ["PABAL_DATA_DIR"] = folder
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(tune(endpoint, parser.parse_args().names))


if __name__ == "__main__":
    main()
