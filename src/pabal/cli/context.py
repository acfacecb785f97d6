"""An errand: a command that goes to the hub's database, does one thing there and comes back."""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pabal.cli.migrate import require_current_schema
from pabal.cli.output import print_error, stderr_console
from pabal.cli.target import attach_or_start_target, require_data_dir
from pabal.core.errors import Unavailable
from pabal.core.log import configure_logging
from pabal.db.channels import Channel
from pabal.db.doorbell import POLL_INTERVAL
from pabal.db.tx import Tx
from pabal.hub import Hub, open_hub
from pabal.settings import load_settings

ResultT = TypeVar("ResultT")


def with_hub(
    action: Callable[[Hub], Awaitable[ResultT]], *, data_dir: Path | None, database_url: str | None
) -> ResultT:
    """Open the hub of the settings, running or not, for one deed; what it rings is heard by those that run."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    configure_logging(settings.log_level, settings.log_format)
    require_data_dir(settings)

    async def go() -> ResultT:
        await require_current_schema(ground)
        async with open_hub(settings, ground.urls) as hub:
            return await action(hub)

    with attach_or_start_target(settings) as ground:
        return asyncio.run(go())


def with_transaction(
    action: Callable[[Tx], Awaitable[ResultT]], data_dir: Path | None, database_url: str | None
) -> ResultT:
    """An errand that is one transaction, all of it or nothing."""

    async def do(hub: Hub) -> ResultT:
        async with hub.transaction() as tx:
            return await action(tx)

    return with_hub(do, data_dir=data_dir, database_url=database_url)


def cli_actor() -> str:
    """Who does it, for the audit log: the person at this terminal."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return f"cli:{os.getuid()}"


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
            stderr_console.print(f"following {noun}; Ctrl-C ends it")
            while True:
                await ear.wait(POLL_INTERVAL)
                try:
                    async with hub.autocommit() as tx:
                        sightings = await follower.poll(tx)
                except Unavailable as error:
                    print_error(str(error))
                    await asyncio.sleep(POLL_INTERVAL.total_seconds())
                    continue
                for sighting in sightings:
                    print_change(sighting)

    with_hub(listen, data_dir=data_dir, database_url=database_url)
