"""A separate hub process that is killed after it claimed the answer to a webhook, before it writes the response."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from starlette.types import Receive, Scope, Send

from pabal.api.kakao_webhook import HeldAnswerResponse
from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.server import serve_hub
from support.webhook import WEBHOOK_SECRET


async def die(self: HeldAnswerResponse, scope: Scope, receive: Receive, send: Send) -> None:
    del self, scope, receive, send
    os.kill(os.getpid(), signal.SIGKILL)


async def main(main_url: str, direct_url: str, folder: str) -> None:
    configure_logging("error", "json")
    HeldAnswerResponse.__call__ = die
    settings = Settings(_env_file=None, data_dir=Path(folder), webhook_secret=WEBHOOK_SECRET)  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(main_url, direct_url)) as hub, serve_hub(hub) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
