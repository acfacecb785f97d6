"""A dispatch worker in its own process, to be killed by a test."""

import asyncio
import sys
from pathlib import Path

from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.dispatch import build_dispatch_worker
from support.fake_discord import TOKEN


async def main(main_url: str, direct_url: str, folder: str, discord_api_url: str) -> None:
    configure_logging("warning", "json")
    settings = {"data_dir": Path(folder), "discord_token": TOKEN, "discord_api_url": discord_api_url}
    async with open_hub(Settings(_env_file=None, **settings), DatabaseUrls(main_url, direct_url)) as hub:  # pyright: ignore[reportCallIssue, reportArgumentType]
        await build_dispatch_worker(hub).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
