"""A terminal beside a hub: commands that run while the hub of the test goes on."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.failed_events import EventQueue, open_event_queue
from support.pabal_process import PROCESS_TIMEOUT, environment, pabal, pabal_json, start_pabal

ZONE = "Asia/Seoul"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where commands run: a narrow window in a time zone far from UTC."""

    event_queue: EventQueue
    folder: Path
    variables: dict[str, str]

    async def run(self, *args: str, code: int = 0, feed: str = "") -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(pabal, *args, folder=self.folder, code=code, feed=feed, **self.variables)

    async def read(self, *args: str, code: int = 0) -> Any:
        return await asyncio.to_thread(pabal_json, *args, folder=self.folder, code=code, **self.variables)

    async def items(self, *args: str, code: int = 0) -> list[Any]:
        """Run a command that prints a list and return its items."""
        document = await self.read(*args, code=code)
        assert document.keys() == {"items", "cursor"}
        return document["items"]

    def start(self, *args: str) -> "subprocess.Popen[str]":
        """Start a command that does not end by itself."""
        return start_pabal(
            *args,
            folder=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(PABAL_DATA_DIR=str(self.folder / "data"), **self.variables),
        )

    @asynccontextmanager
    async def follow(self, noun: str, *args: str) -> AsyncGenerator["subprocess.Popen[str]"]:
        """Run `tail` from the moment it follows until Ctrl-C ends it, without an error."""
        with self.start(noun, "tail", *args) as command:
            try:
                assert command.stderr
                greeting = await asyncio.to_thread(command.stderr.readline)
                assert greeting == f"Following {noun}s. Press Ctrl-C to stop.\n"
                yield command
            finally:
                command.send_signal(signal.SIGINT)
                _, errors = await asyncio.to_thread(command.communicate, timeout=PROCESS_TIMEOUT)
        assert (command.returncode, errors) == (130, "")


async def read_line(command: "subprocess.Popen[str]") -> str:
    assert command.stdout
    async with asyncio.timeout(PROCESS_TIMEOUT):
        return await asyncio.to_thread(command.stdout.readline)


@asynccontextmanager
async def open_terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    settings = Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]
    variables = {
        "PABAL_DATABASE_URL": database_urls.main,
        "PABAL_DATABASE_DIRECT_URL": database_urls.direct or "",
        "PABAL_LOG_LEVEL": "warning",
        "COLUMNS": "40",
        "TZ": ZONE,
    }
    async with open_hub(settings, database_urls) as hub, open_event_queue(hub, database_urls) as deaths:
        yield Terminal(deaths, folder, variables)
