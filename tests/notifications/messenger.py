"""A hub's dispatcher in a process of its own: made to be killed."""

import asyncio
import sys
from pathlib import Path

from discord import TOKEN
from dispatching import employ
from pabal.core import log
from pabal.settings import Settings
from pabal.wiring import DatabaseUrls, open_hub


async def main(work: str, direct: str, folder: str, discord_api_url: str) -> None:
    log.configure_logging("warning", "json")
    said = {"data_dir": Path(folder), "discord_token": TOKEN, "discord_api_url": discord_api_url}
    async with open_hub(Settings(_env_file=None, **said), DatabaseUrls(work, direct)) as hub:  # pyright: ignore[reportCallIssue, reportArgumentType]
        await employ(hub).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
