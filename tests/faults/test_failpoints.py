"""Every suspension of the paths that carry a promise: the hub is stopped there, and the promise holds.

Each path also loses the answer to each of its statements, and one stop in ten is repeated in a process of its own.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from faults.failing_process import EXIT_CODE
from faults.failpoints import driving_tasks, open_victim
from faults.paths import PATHS, PromisedPath, Stage, Subject, run_acknowledged
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from support.answer_loss import losing_answers
from support.clusters import open_connection
from support.fake_kakao import run_fake_kakao
from support.pabal_process import environment
from support.receiver import run_receiver
from support.relay_rows import Chat

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FAILING_PROCESS = Path(__file__).with_name("failing_process.py")
MAX_FAILPOINTS = 200
PROCESS_EVERY, PROCESS_OFFSET = 10, 3
"""Which stops are repeated in a process: numbers 3, 13, 23 and so on."""
Travel = Callable[[timedelta], Awaitable[None]]


@dataclass(slots=True)
class Sweep:
    """One path through all its failpoints."""

    path: PromisedPath
    stage: Stage
    settings: Settings
    urls: DatabaseUrls
    runs: list[tuple[str, Subject, Any]] = field(default_factory=list[tuple[str, Subject, Any]])

    async def prepare(self) -> Subject:
        return await self.path.prepare(self.stage, len(self.runs))

    async def add(self, label: str, subject: Subject, acknowledged: Any) -> None:
        if acknowledged is None:
            acknowledged = await self.path.retry(self.stage, subject)
        self.runs.append((label, subject, acknowledged))

    async def stop_at(self, number: int) -> bool:
        """Stop a hub at this suspension of the path; returns whether the path makes so many."""
        subject = await self.prepare()
        async with open_victim(self.settings, self.urls) as (victim, hub):
            victim.stop_at = number
            acting = await victim.run(self.path.act(hub, subject))
            has_stopped = victim.stopped.is_set()
            await self.add(f"suspension {number}", subject, await run_acknowledged(acting))
        return has_stopped

    async def exit_at(self, number: int) -> None:
        """Let a process of its own exit at this suspension."""
        subject = await self.prepare()
        task = {
            "path": self.path.name,
            "stop_at": number,
            "subject": subject,
            "urls": [self.urls.main, self.urls.direct],
            "folder": str(self.settings.data_dir),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            FAILING_PROCESS,
            json.dumps(task),
            stdout=asyncio.subprocess.PIPE,
            env=environment(PYTHONPATH=str(Path(__file__).parents[1])),
        )
        output, _ = await process.communicate()
        assert process.returncode == EXIT_CODE, output
        await self.add(f"exit {number}", subject, None)

    async def judge(self) -> dict[str, str]:
        """Let the leases end and the other hub go on; returns the broken promises by failpoint."""
        await self.stage.travel(timedelta(minutes=1))
        await self.path.recover(self.stage, [subject for _, subject, _ in self.runs])
        verdicts = {label: await self.path.judge(self.stage, subject, ack) for label, subject, ack in self.runs}
        return {label: fault for label, fault in verdicts.items() if fault}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={"callback_allow": ["http://127.0.0.1"], "webhook_per_conversation": 0, "webhook_per_channel": 0}
    )


@asynccontextmanager
async def open_sweep(
    path: PromisedPath, settings: Settings, urls: DatabaseUrls, travel: Travel
) -> AsyncGenerator[Sweep]:
    assert urls.direct
    async with (
        run_fake_kakao() as kakao,
        run_receiver() as receiver,
        open_connection(urls.direct) as db,
        open_hub(settings, urls) as hub,
    ):
        stage = Stage(hub, db, kakao, receiver, await Chat(db).owner(), travel)
        await path.set_up(stage)
        yield Sweep(path, stage, settings, urls)


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> PromisedPath:
    return request.param


async def test_a_hub_that_stops_at_any_suspension_breaks_no_promise(
    path: PromisedPath, settings: Settings, database_urls: DatabaseUrls, travel: Travel
) -> None:
    with driving_tasks():
        async with open_sweep(path, settings, database_urls, travel) as sweep:
            suspensions = 0
            while await sweep.stop_at(suspensions):
                suspensions += 1
            for number in range(PROCESS_OFFSET, suspensions, PROCESS_EVERY):
                await sweep.exit_at(number)

            assert await sweep.judge() == {}
            assert 1 < suspensions < MAX_FAILPOINTS
            print(f"{path.name}: {suspensions} suspensions")  # noqa: T201


async def test_a_lost_answer_to_any_statement_breaks_no_promise(
    path: PromisedPath, settings: Settings, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with (
        open_sweep(path, settings, database_urls, travel) as sweep,
        losing_answers(database_urls.main) as (proxy, url),
        open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub,
    ):
        misses = 0
        for number in range(MAX_FAILPOINTS):
            subject = await sweep.prepare()
            async with hub.db.autocommit():
                pass
            lost = proxy.lost
            proxy.lose_answer_number(number)
            acting = asyncio.create_task(path.act(hub, subject))
            await asyncio.wait([acting])
            proxy.lose_answer_number(None)
            misses = misses + 1 if proxy.lost == lost else 0
            await sweep.add(f"answer {number}", subject, await run_acknowledged(acting))
            if misses == 2:  # one may be due to a statement of the hub's background tasks
                break

        assert await sweep.judge() == {}
        assert 2 < len(sweep.runs) < MAX_FAILPOINTS


def test_every_path_has_a_name_of_its_own() -> None:
    assert len({path.name for path in PATHS}) == len(PATHS)
