"""Follow a lane: tell what comes and what becomes of it, until Ctrl-C."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pabal.cli import screen
from pabal.cli.errand import errand
from pabal.core.errors import Unavailable
from pabal.db.bells import Bell
from pabal.db.doorbell import FLOOR
from pabal.db.tx import Tx
from pabal.wiring import Hub


class Tail(Protocol):
    """What one follower has seen so far."""

    async def begin(self, tx: Tx) -> None: ...
    async def look(self, tx: Tx) -> Sequence[Any]: ...


def follow(
    what: str, seen: Tail, bell: Bell, tell: Callable[[Any], None], *, data_dir: Path | None, database_url: str | None
) -> None:
    """Look whenever the bell rings, and at the latest every second; a database that is away is waited for."""

    async def listen(hub: Hub) -> None:
        with hub.doorbell.hear(bell) as ear:
            async with hub.autocommit() as tx:
                await seen.begin(tx)
            screen.err.print(f"following {what}; Ctrl-C ends it")
            while True:
                await ear.within(FLOOR)
                try:
                    async with hub.autocommit() as tx:
                        sightings = await seen.look(tx)
                except Unavailable as error:
                    screen.complain(str(error))
                    await asyncio.sleep(FLOOR.total_seconds())
                    continue
                for sighting in sightings:
                    tell(sighting)

    errand(listen, data_dir=data_dir, database_url=database_url)
