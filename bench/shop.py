"""An app for `pabal work --app bench.shop:hub`: one handler, which only counts."""

from bench.peers.stage import Tally, settings
from pabal_client import App, Event

SERVICE = "minu_build"
HANDS = settings(hands=1000)["hands"]

hub = App(SERVICE)
tally = Tally(rows=0, seconds=0)


@hub.on("order.*", concurrency=HANDS)
async def handle(_event: Event) -> None:
    tally.one()
