"""Apps for `pabal work --app bench.shop:NAME`, each with one handler.

`hub` only counts, with the best concurrency that `tune.py` found; `default_hub` is the same with the default
concurrency; `timed_hub` prints how old an event is that carries a time.
"""

from bench.peers.stage import Tally, report_age, settings
from pabal_client import App, Event

SERVICE = "minu_build"
CONCURRENCY = settings(concurrency=1000)["concurrency"]

hub, default_hub, timed_hub = App(SERVICE), App(SERVICE), App(SERVICE)
tally = Tally(rows=0, seconds=0)


@hub.on("order.*", concurrency=CONCURRENCY)
async def handle(_event: Event) -> None:
    tally.one()


@default_hub.on("order.*")
async def handle_by_default(_event: Event) -> None:
    tally.one()


@timed_hub.on("order.*")
async def report(event: Event) -> None:
    report_age(event.payload)
