"""A worker in its own process that inserts a toast and never commits, to be killed by a test."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls, open_hub
from pabal.notifications.lane import LANE
from pabal.notifications.templates.render import RenderedText
from pabal.notifications.toasts.inbox import add_toast
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE
from pabal.settings import Settings


async def main(main_url: str, direct_url: str, folder: str) -> None:
    configure_logging("warning", "json")  # to standard error; standard output has only the line below
    settings = Settings(_env_file=None, data_dir=Path(folder))  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(main_url, direct_url)) as hub:
        async with hub.autocommit() as tx:
            [claimed] = await LANE.claim(tx, 1, timedelta(minutes=1), "victim")
        async with hub.transaction() as tx:
            await LANE.settle(tx, [Settlement(claimed, DONE)])
            assert await add_toast(tx, claimed, RenderedText("Hello", "there"))
            sys.stdout.write("arrived\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
