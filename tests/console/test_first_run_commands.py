"""The commands of the first page, typed as they are shown, make its ticks."""

import asyncio
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from pabal.console.first_run import FirstCard, FirstStep, read_first_cards
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from relay.skills import send_message
from support.api_examples import parse_curl
from support.clusters import Connection
from support.dispatch import build_dispatch_worker
from support.fake_kakao import FakeKakao, run_fake_kakao
from support.notifications import register_builtin_templates
from support.pabal_process import pabal
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

DISABLE = "update public.services set is_active = false, disabled_at = now() where name <> 'hub'"
SECRET = re.compile(r"^client_secret +(\S+)$", re.MULTILINE)
CODE = re.compile(r"/pair (\S+)")


@dataclass(slots=True)
class Newcomer:
    """Types the commands of the page, with what the hub has printed in place of their placeholders."""

    hub: Hub
    web: httpx2.AsyncClient
    kakao: FakeKakao
    folder: Path
    variables: dict[str, str]
    values: dict[str, str] = field(default_factory=dict[str, str])
    """What stands for SECRET, ACCESS_TOKEN, RECEIPT and CODE."""
    bots: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    async def type_step(self, step: FirstStep) -> None:
        for command in step.commands:
            await self.type_command(re.sub(r"\b[A-Z_]{4,}\b", lambda word: self.values.get(word[0], word[0]), command))

    async def type_command(self, command: str) -> None:
        program, *arguments = shlex.split(command)
        match program:
            case "pabal":
                result = await asyncio.to_thread(self.run_pabal, arguments)
                if secret := SECRET.search(result.stdout):
                    self.values["SECRET"] = secret[1]
            case "curl":
                await self.send(command)
            case "python":
                self.values["CODE"] = await self.start_bot(arguments)
            case _ if command.startswith("http"):  # entered in Kakao's skill settings, which then calls it
                assert command.startswith(str(self.web.base_url))
                await self.chat("anything")
            case _:
                await self.chat(command)

    def run_pabal(self, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
        return pabal(*arguments, folder=self.folder, code=0, **self.variables)

    async def send(self, command: str) -> None:
        response = await self.web.send(self.web.build_request(**await parse_curl(command, {})))
        assert response.status_code == 200, response.text
        body = response.json()
        if "access_token" in body:
            self.values["ACCESS_TOKEN"] = body["access_token"]
        if "events" in body:
            [event] = body["events"]
            self.values["RECEIPT"] = event["receipt"]

    async def start_bot(self, arguments: list[str]) -> str:
        bot = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=self.folder, stdout=asyncio.subprocess.PIPE
        )
        self.bots.append(bot)
        assert bot.stdout
        async with asyncio.timeout(30):
            printed = (await bot.stdout.readline()).decode()
        code = CODE.search(printed)
        assert code, printed
        return code[1]

    async def chat(self, text: str) -> None:
        await send_message(self.web, text, "mina", callbackUrl=self.kakao.url(text))
        if self.values.get("CODE") and not text.startswith("/"):
            await wait_until(lambda: bool(self.kakao.texts(text)))


@asynccontextmanager
async def newcomer_at(settings: Settings, database_urls: DatabaseUrls, folder: Path) -> AsyncGenerator[Newcomer]:
    variables = {
        "PABAL_DATABASE_URL": database_urls.main,
        "PABAL_DATABASE_DIRECT_URL": database_urls.direct or "",
        "PABAL_LOG_LEVEL": "warning",
    }
    async with (
        run_fake_kakao() as kakao,
        open_hub(settings, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as web,
    ):
        await register_builtin_templates(hub)
        newcomer = Newcomer(hub, web, kakao, folder, variables)
        worker = build_dispatch_worker(hub)
        running = asyncio.create_task(worker.run())
        try:
            yield newcomer
        finally:
            worker.stop()
            await running
            for bot in newcomer.bots:
                bot.send_signal(signal.SIGTERM)
                await bot.wait()


async def test_each_command_brings_its_tick(
    settings: Settings, database_urls: DatabaseUrls, owner: Connection, tmp_path: Path
) -> None:
    await owner.execute(DISABLE)
    data = settings.model_copy(update={"data_dir": tmp_path / "data", "callback_allow": ["http://127.0.0.1"]})
    async with newcomer_at(data, database_urls, tmp_path) as newcomer:
        address = str(newcomer.web.base_url).rstrip("/")

        async def read_cards() -> list[FirstCard]:
            async with newcomer.hub.autocommit() as tx:
                return await read_first_cards(tx, address)

        async def list_ticked() -> list[str]:
            return [step.name for card in await read_cards() for step in card.steps if step.is_done]

        assert await list_ticked() == []
        for step in [step for card in await read_cards() for step in card.steps]:
            await newcomer.type_step(step)

            async def is_ticked(name: str = step.name) -> bool:
                return name in await list_ticked()

            await wait_until(is_ticked)
