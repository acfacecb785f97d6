"""An errand: a command that goes to the hub's database, does one thing there and comes back."""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pabal.cli.migrate import insist
from pabal.cli.roads import at_hand, begun
from pabal.core import log
from pabal.db.tx import Tx
from pabal.settings import read
from pabal.wiring import Hub, open_hub

Got = TypeVar("Got")


def errand(do: Callable[[Hub], Awaitable[Got]], *, data_dir: Path | None, database_url: str | None) -> Got:
    """Open the hub of the settings, running or not, for one deed; what it rings is heard by those that run."""
    settings = read(data_dir=data_dir, database_url=database_url)
    log.configure(settings.log_level, settings.log_format)
    begun(settings)

    async def go() -> Got:
        await insist(ground)
        async with open_hub(settings, ground.roads) as hub:
            return await do(hub)

    with at_hand(settings) as ground:
        return asyncio.run(go())


def in_transaction(verb: Callable[[Tx], Awaitable[Got]], data_dir: Path | None, database_url: str | None) -> Got:
    """An errand that is one transaction, all of it or nothing."""

    async def do(hub: Hub) -> Got:
        async with hub.transaction() as tx:
            return await verb(tx)

    return errand(do, data_dir=data_dir, database_url=database_url)


def actor() -> str:
    """Who does it, for the audit log: the person at this terminal."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return f"cli:{os.getuid()}"
