"""An app for `pabal work --app bench.shop:hub`: one handler, which only counts."""

from bench.peers.stage import Tally, settings
from pabal_client import App, Event

SERVICE = "minu_build"
CONCURRENCY = settings(concurrency=1000)["concurrency"]

hub = App(SERVICE)
tally = Tally(rows=0, seconds=0)


@hub.on("order.*", concurrency=CONCURRENCY)
async def handle(_event: Event) -> None:
    tally.one()
