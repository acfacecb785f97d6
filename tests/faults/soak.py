"""A hub process under load for a long time: `make soak MINUTES=60`.

Bots sleep, roam between connections and crash. Nothing may be lost, answered messages start no second turn, the hub
can say of every message what became of it (`fates.py`), and memory, descriptors, connections and tables may not keep
growing.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import httpx2

from faults.fates import LEFT, count_open_messages, describe_response, judge_fates
from faults.scenarios import Machine, open_machine, open_process_workload
from faults.workload import Workload
from pabal.core.log import configure_logging
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from relay.skills import USE_CALLBACK, send_message
from support.clusters import open_connection
from support.relay_rows import Chat, Owner, skill_response
from support.wait import wait_until
from support.webhook import WEBHOOK_SECRET

USERS = 10
PACE = 0.25
"""Seconds between two acts of one actor of the workload; the users of the bots write once a second."""
SAMPLE_INTERVAL = 10.0
MAX_NAP = 4.0
ALLOWED_GROWTH = {"memory_mb": 40, "descriptors": 60, "connections": 15, "dead_rows": 60_000}
"""How much more the last third may have than the first, at most."""
SAMPLE = """
select (select count(*) from pg_stat_activity where datname = current_database()) as connections,
       (select sum(n_dead_tup)::bigint from pg_stat_user_tables) as dead_rows,
       (select pg_database_size(current_database()) / 1000000) as database_mb,
       (select count(*) from pabal.chores c where c.last_error is not null) as failed_chores
"""


@dataclass(slots=True)
class RestlessBot:
    """A user and their bot, whose connection comes and goes."""

    user: str
    owner: Owner
    numbers: random.Random
    accepted: list[str] = field(default_factory=list[str])
    read: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    results: dict[str, str] = field(default_factory=dict[str, str])
    """What the bot was last told about its reply to each message that it read."""
    second_turns: list[str] = field(default_factory=list[str])

    async def write(self, workload: Workload, number: int) -> None:
        text = f"{self.user}-{number}"
        response = await send_message(workload.web, text, self.user, callbackUrl=workload.kakao.url(text))
        if response == USE_CALLBACK:
            self.accepted.append(text)

    async def live(self, workload: Workload) -> None:
        """One connection: read and answer for a while, then leave in one of three ways."""
        address = str(workload.web.base_url).rstrip("/")
        async with connect_stream(address, self.owner.token) as client:
            stay = self.numbers.uniform(1, 10)
            try:
                async with asyncio.timeout(stay):
                    while await self.take_turn(workload, client):
                        pass
            except TimeoutError:
                pass
            match self.numbers.randrange(3):
                case 0:  # crashes, perhaps with a message that it has read
                    client.disconnect()
                case 1:  # roams: the next connection opens beside this one
                    async with connect_stream(address, self.owner.token) as other, asyncio.timeout(stay):
                        while await self.take_turn(workload, other):
                            pass
                case _:  # sleeps
                    client.disconnect()
                    await asyncio.sleep(self.numbers.uniform(0, MAX_NAP))

    async def take_turn(self, workload: Workload, client: StreamClient) -> bool:
        event = await client.read()
        if event is None:
            return False
        if event.name == "message":
            text = event.data["normalized"]["text"]
            if text in self.answered:
                self.second_turns.append(text)
            self.read.add(text)
            self.results[text] = LEFT
            body = {"messageId": event.data["id"], "response": skill_response(text)}
            response = await workload.web.post("/openclaw/reply", json=body, headers=self.owner.header)
            self.results[text] = describe_response(response)
            if response.is_success:
                self.answered.add(text)
        return True


async def repeat_until(stop_at: float, act: Callable[[int], Awaitable[None]], pause: float) -> None:
    number = 0
    while monotonic() < stop_at:
        number += 1
        try:
            await act(number)
        except (OSError, EOFError, TimeoutError, httpx2.HTTPError, AssertionError):
            await asyncio.sleep(pause)
        await asyncio.sleep(pause)


async def sample(machine: Machine) -> dict[str, int]:
    assert machine.child
    process = Path(f"/proc/{machine.child.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    async with open_connection(machine.server.address.owner_url) as owner:
        row = await owner.fetchrow(SAMPLE)
    assert row
    return {
        "memory_mb": int(status["VmRSS"].split()[0]) // 1000,
        "descriptors": len([*(process / "fd").iterdir()]),
        **{name: int(value or 0) for name, value in row.items()},
    }


def growth(samples: list[dict[str, int]]) -> dict[str, int]:
    """What the last third has on average more than the first, without the first minute's warm-up if there is one."""
    calm = samples[6:] if len(samples) > 24 else samples
    third = max(1, len(calm) // 3)
    return {
        name: sum(row[name] for row in calm[-third:]) // third - sum(row[name] for row in calm[:third]) // third
        for name in ALLOWED_GROWTH
    }


async def soak(minutes: float, seed: int) -> dict[str, object]:
    """Returns what went wrong."""
    async with open_machine(None) as machine:
        settings = Settings(
            _env_file=None,  # pyright: ignore[reportCallIssue]
            data_dir=machine.folder / "data",
            webhook_secret=WEBHOOK_SECRET,
        )
        async with open_process_workload(machine, settings) as workload:
            workload.pace = PACE
            chat = Chat(workload.db)
            bots = [
                RestlessBot(f"u{n}", await chat.owner(answer_mode="callback"), random.Random(seed + n))
                for n in range(USERS)
            ]
            for bot in bots:
                await chat.conversation(bot.owner, bot.user)
            stop_at = monotonic() + 60 * minutes
            samples: list[dict[str, int]] = []
            async with workload.running():
                users = [
                    asyncio.create_task(repeat_until(stop_at, lambda number, bot=bot: bot.write(workload, number), 1.0))
                    for bot in bots
                ]
                clients = [
                    asyncio.create_task(repeat_until(stop_at + 60, lambda _number, bot=bot: bot.live(workload), 0.05))
                    for bot in bots
                ]
                while monotonic() < stop_at:
                    samples.append(await sample(machine))
                    sys.stdout.write(f"{samples[-1]}\n")
                    sys.stdout.flush()
                    await asyncio.sleep(min(SAMPLE_INTERVAL, max(0.0, stop_at - monotonic())))
                await asyncio.gather(*users)
                texts = [text for bot in bots for text in bot.accepted]

                async def is_drained() -> bool:
                    is_read = all({*bot.accepted} <= bot.read for bot in bots)
                    return is_read and await count_open_messages(workload.db, texts) == 0

                with suppress(TimeoutError):  # the oracle reports what is open
                    await wait_until(is_drained, within=90)
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
            verdict = await workload.judge(0.0)
            results = {text: bot.results[text] for bot in bots for text in bot.accepted if text in bot.results}
            fates = await judge_fates(workload.db, workload.kakao, results)
            grown = growth(samples)
            sys.stdout.write(
                f"accepted {verdict.accepted | {'bots': len(texts)}}, "
                f"confirmed to the bots {sum(len(b.answered) for b in bots)}, growth {grown}\n"
            )
            for fate, count in fates.counts.most_common():
                sys.stdout.write(f"{count:7,} {fate}\n")
            faults: dict[str, object] = dict(verdict.faults())
            faults["unread"] = [text for bot in bots for text in bot.accepted if text not in bot.read]
            faults["second turns"] = [text for bot in bots for text in bot.second_turns]
            faults["unexplained"] = fates.unexplained
            faults["failed chores"] = samples[-1]["failed_chores"]
            faults["growth"] = {name: more for name, more in grown.items() if more > ALLOWED_GROWTH[name]}
            return {name: found for name, found in faults.items() if found}


def main(minutes: float, seed: int = 18) -> int:
    configure_logging("critical", "json")
    sys.stdout.write(f"{minutes:g} minutes, seed {seed}\n")
    faults = asyncio.run(soak(minutes, seed))
    sys.stdout.write(f"{faults or 'no fault'}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:])))
