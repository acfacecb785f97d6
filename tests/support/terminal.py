"""A terminal beside a hub: commands that are run to their end while the hub of the test goes on."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.failed_events import Deaths, deaths_of
from support.pabal_process import PABAL, environment, listing, pabal

ZONE = "Asia/Seoul"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where commands are run: a narrow window far from UTC."""

    deaths: Deaths
    folder: Path
    said: dict[str, str]

    async def run(self, *words: str, code: int = 0, feed: str = "") -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(pabal, *words, folder=self.folder, code=code, feed=feed, **self.said)

    async def read(self, *words: str, code: int = 0) -> Any:
        return await asyncio.to_thread(listing, *words, folder=self.folder, code=code, **self.said)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Run a command that does not end by itself."""
        return subprocess.Popen(
            [PABAL, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment(PABAL_DATA_DIR=str(self.folder / "data"), **self.said),
        )


@asynccontextmanager
async def terminal_at(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    settings = Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]
    said = {
        "PABAL_DATABASE_URL": database_urls.main,
        "PABAL_DATABASE_DIRECT_URL": database_urls.direct or "",
        "PABAL_LOG_LEVEL": "warning",
        "COLUMNS": "40",
        "TZ": ZONE,
    }
    async with open_hub(settings, database_urls) as hub, deaths_of(hub, database_urls) as deaths:
        yield Terminal(deaths, folder, said)
