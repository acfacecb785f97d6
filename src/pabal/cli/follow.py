"""Follow a lane: tell what comes and what becomes of it, until Ctrl-C."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pabal.cli import screen
from pabal.cli.errand import with_hub
from pabal.core.errors import Unavailable
from pabal.db.bells import Channel
from pabal.db.doorbell import POLL_INTERVAL
from pabal.db.tx import Tx
from pabal.wiring import Hub


class LaneFollower(Protocol):
    """What one follower has seen so far."""

    async def start(self, tx: Tx) -> None: ...
    async def poll(self, tx: Tx) -> Sequence[Any]: ...


def follow_lane(
    noun: str,
    follower: LaneFollower,
    channel: Channel,
    print_change: Callable[[Any], None],
    *,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Look whenever the bell rings, and at the latest every second; a database that is away is waited for."""

    async def listen(hub: Hub) -> None:
        with hub.doorbell.listen(channel) as ear:
            async with hub.autocommit() as tx:
                await follower.start(tx)
            screen.stderr_console.print(f"following {noun}; Ctrl-C ends it")
            while True:
                await ear.wait(POLL_INTERVAL)
                try:
                    async with hub.autocommit() as tx:
                        sightings = await follower.poll(tx)
                except Unavailable as error:
                    screen.print_error(str(error))
                    await asyncio.sleep(POLL_INTERVAL.total_seconds())
                    continue
                for sighting in sightings:
                    print_change(sighting)

    with_hub(listen, data_dir=data_dir, database_url=database_url)
