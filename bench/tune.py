"""Which settings suit each contestant of `bench.events` best: one setting after the other, around the best so far.

python -m bench.tune [NAME ...]   prints what was tried; the best is written by hand into `peers/` and `ours.py`
"""

import argparse
import asyncio
import os
import tempfile

import uvloop

from bench.contestants import EVERYBODY, Contestant
from bench.ground import durable, middle
from bench.report import Table, shown
from pabal.db.embedded import ServerAddress

ROWS = 20_000
ROUNDS = 3
WITHIN = 8.0
TRIED: dict[str, dict[str, list[int]]] = {
    "work": {"hands": [500, 1000, 2000, 4000]},
    "pgqueuer": {"taken": [500, 1000, 2000, 4000], "connections": [4, 16, 32]},
    "awa": {
        "loops": [1, 2, 4, 8],
        "taken": [100, 500, 1000, 2000],
        "hands": [200, 1000, 2000, 5000, 10000],
        "connections": [8, 16, 32],
        "poll": [1, 10, 50],
    },
    "chancy": {"hands": [100, 300, 1000, 3000], "connections": [4, 16]},
    "procrastinate": {"hands": [5, 10, 20, 40]},
    "graphile": {"hands": [4, 10, 24, 50, 100], "taken": [100, 500, 1000, 2000, 4000], "gather": [0, 5, 50, 250]},
    "pgboss": {"loops": [1, 2, 3, 4, 6, 8], "taken": [250, 500, 1000, 2000, 4000, 8000]},
    "lane": {"loops": [1, 2, 3, 4], "taken": [250, 500, 1000, 2000, 4000]},
}
"""What is tried, by the database of a contestant (`work` and `lane` are ours), in this order."""


def tried_of(who: Contestant) -> dict[str, list[int]]:
    return TRIED.get(who.name.removeprefix("pabal ") if who.ours else who.database, {})


async def once(endpoint: ServerAddress, who: Contestant, settings: dict[str, int]) -> float:
    await who.empty(endpoint)
    await who.told(endpoint, "fill", ROWS)
    await who.tidy(endpoint)
    return (await who.told(endpoint, "drain", ROWS, WITHIN, **settings))["rate"]


async def best_of(endpoint: ServerAddress, who: Contestant) -> tuple[Table, dict[str, int]]:
    """Turn one screw at a time and leave it where it was best; every setting is tried in turn with its neighbours."""
    best: dict[str, int] = {}
    rows: list[list[object]] = []
    for name, values in tried_of(who).items():
        seen: dict[int, list[float]] = {value: [] for value in values}
        for _ in range(ROUNDS):
            for value in values:
                seen[value].append(await once(endpoint, who, {**best, name: value}))
        rates = {value: middle(found) for value, found in seen.items()}
        rows += [
            [f"{name} {value}", rate, f"{min(seen[value]):,.0f} to {max(seen[value]):,.0f}"]
            for value, rate in rates.items()
        ]
        best[name] = max(rates, key=lambda value: rates[value])
    return Table(who.name, ["jobs/s", "of its rounds"], rows), best


async def tune(endpoint: ServerAddress, names: list[str]) -> None:
    for who in EVERYBODY:
        if who.here and tried_of(who) and (not names or any(name in who.name for name in names)):
            await who.install(endpoint)
            table, best = await best_of(endpoint, who)
            shown(table)
            print(f"best of {who.name}: {best}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name has this in it")
    with tempfile.TemporaryDirectory(prefix="pabal-bench-") as folder, durable() as endpoint:
        os.environ["PABAL_DATA_DIR"] = folder
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(tune(endpoint, parser.parse_args().names))


if __name__ == "__main__":
    main()
