"""An errand: a command that goes to the hub's database, does one thing there and comes back."""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pabal.cli.migrate import require_current_schema
from pabal.cli.roads import attach_or_start_target, require_data_dir
from pabal.core import log
from pabal.db.tx import Tx
from pabal.settings import load_settings
from pabal.wiring import Hub, open_hub

ResultT = TypeVar("ResultT")


def with_hub(
    action: Callable[[Hub], Awaitable[ResultT]], *, data_dir: Path | None, database_url: str | None
) -> ResultT:
    """Open the hub of the settings, running or not, for one deed; what it rings is heard by those that run."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    log.configure_logging(settings.log_level, settings.log_format)
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
