"""A hub process under load for a long time: `make soak MINUTES=60`.

Bots sleep, roam between connections, crash, and vanish behind a hop that says nothing. Their agents think for up to 20
seconds, several turns at once, and half of the accounts get answers in the webhook's response. Nothing may be lost; no
message is delivered a second time to a process that has read it, nor after it was answered; the hub can say of every
message what became of it (`fates.py`), and memory, descriptors, connections and tables may not keep growing.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2

from faults.fates import LEFT, count_open_messages, describe_response, judge_fates
from faults.scenarios import Machine, open_machine, open_process_workload
from faults.workload import LOST_MESSAGES, Workload
from pabal.core.log import configure_logging
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from relay.skills import USE_CALLBACK, send_message
from support.clusters import open_connection
from support.relay_rows import Chat, Owner, skill_response
from support.silent_hop import SilentHop, silent_hop
from support.wait import wait_until
from support.webhook import WEBHOOK_SECRET

USERS = 10
PACE = 0.25
"""Seconds between two acts of one actor of the workload; the users of the bots write once a second."""
SAMPLE_INTERVAL = 10.0
MAX_NAP, MAX_LONG_NAP = 4.0, 45.0
"""Seconds. One nap of ten may be a long one, longer than the lease of a closed stream's messages."""
MAX_THINKING = 20.0
"""Seconds that an agent thinks. Every second turn answers at once."""
DEPARTURES = ("crashed", "roamed", "slept", "vanished")
ANSWER_MODES = ("callback", "auto", "callback", "synchronous")
"""Of the accounts in turn."""
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
    """A user and their bot, whose connection comes and goes while its agent thinks."""

    user: str
    owner: Owner
    numbers: random.Random
    hop: SilentHop
    accepted: list[str] = field(default_factory=list[str])
    put_off: list[str] = field(default_factory=list[str])
    """What the hub did not promise to deliver."""
    shown: list[str] = field(default_factory=list[str])
    """The texts that the user has seen in responses to webhooks."""
    read: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    results: dict[str, str] = field(default_factory=dict[str, str])
    """What the bot was last told about its reply to each message that it read."""
    second_turns: list[str] = field(default_factory=list[str])
    refused_streams: list[int] = field(default_factory=list[int])
    departures: Counter[str] = field(default_factory=Counter[str])
    most_turns: int = 0
    """How many turns were in flight at once, at most."""
    _last_id: int | None = None
    _seen: set[str] = field(default_factory=set[str])
    """What this run of the process has read. A crash forgets it, and the last id."""
    _turns: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def write(self, workload: Workload, number: int) -> None:
        text = f"{self.user}-{number}"
        response = await send_message(workload.web, text, self.user, callbackUrl=workload.kakao.url(text))
        if response == USE_CALLBACK:
            self.accepted.append(text)
            return
        shown = [output["simpleText"]["text"] for output in response["template"]["outputs"]]
        if text in shown:
            self.accepted.append(text)
            self.shown += shown
        else:  # the hub asked the user to write again: it had no time
            self.put_off.append(text)

    async def live(self, workload: Workload) -> None:
        """One connection: read and answer for a while, then leave in one of four ways."""
        stay = self.numbers.uniform(1, 10)
        async with self.connect() as client:
            await self.read_for(stay, workload, client)
            departure = self.numbers.choice(DEPARTURES)
            self.departures[departure] += 1
            match departure:
                case "crashed":  # with the turns of what it has read
                    client.disconnect()
                    await self.stop_turns()
                    self._last_id = None
                    self._seen.clear()
                case "roamed":  # the next connection opens beside this one
                    async with self.connect() as other:
                        await self.read_for(stay, workload, other)
                case "slept":
                    client.disconnect()
                    await self.nap()
                case _:  # vanished: the hub's side of the connection stays open, and nothing comes from it any more
                    self.hop.swallow()
                    await self.nap()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[StreamClient]:
        async with connect_stream(self.hop.address, self.owner.token, self._last_id) as client:
            if client.status != 200:
                self.refused_streams.append(client.status)
                raise ConnectionRefusedError
            yield client

    async def nap(self) -> None:
        await asyncio.sleep(self.numbers.uniform(0, MAX_NAP if self.numbers.random() < 0.9 else MAX_LONG_NAP))

    async def read_for(self, seconds: float, workload: Workload, client: StreamClient) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while event := await client.read():
                    self._last_id = event.id
                    if event.name == "message":
                        self.start_turn(workload, event.data)

    def start_turn(self, workload: Workload, message: dict[str, Any]) -> None:
        """Let the agent think beside other turns. A message that this run of the process has read is a second turn."""
        text = message["normalized"]["text"]
        if text in self._seen or text in self.answered:
            self.second_turns.append(text)
        self._seen.add(text)
        self.read.add(text)
        self.results[text] = LEFT
        turn = asyncio.create_task(self.take_turn(workload, message["id"], text))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        self.most_turns = max(self.most_turns, len(self._turns))

    async def take_turn(self, workload: Workload, message_id: str, text: str) -> None:
        if self.numbers.random() < 0.5:
            await asyncio.sleep(self.numbers.uniform(0, MAX_THINKING))
        body = {"messageId": message_id, "response": skill_response(text)}
        response = await workload.web.post("/openclaw/reply", json=body, headers=self.owner.header)
        self.results[text] = describe_response(response)
        if response.is_success:
            self.answered.add(text)

    async def stop_turns(self) -> None:
        for turn in [*self._turns]:
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)


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
        async with open_process_workload(machine, settings) as workload, AsyncExitStack() as stack:
            workload.pace = PACE
            chat = Chat(workload.db)
            bots: list[RestlessBot] = []
            for n in range(USERS):
                owner = await chat.owner(answer_mode=ANSWER_MODES[n % len(ANSWER_MODES)])
                hop = await stack.enter_async_context(silent_hop(str(workload.web.base_url).rstrip("/")))
                bots.append(RestlessBot(f"u{n}", owner, random.Random(seed + n), hop))
                await chat.conversation(owner, bots[-1].user)
            stop_at = monotonic() + 60 * minutes
            samples: list[dict[str, int]] = []
            async with workload.running():
                users = [
                    asyncio.create_task(repeat_until(stop_at, lambda number, bot=bot: bot.write(workload, number), 1.0))
                    for bot in bots
                ]
                clients = [
                    asyncio.create_task(repeat_until(stop_at + 120, lambda _number, bot=bot: bot.live(workload), 0.05))
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
                    await wait_until(is_drained, within=150)
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, *(bot.stop_turns() for bot in bots), return_exceptions=True)
            verdict = await workload.judge(0.0)
            results = {text: bot.results[text] for bot in bots for text in bot.accepted if text in bot.results}
            shown = [text for bot in bots for text in bot.shown]
            fates = await judge_fates(workload.db, workload.kakao, results, shown)
            grown = growth(samples)
            sys.stdout.write(
                f"accepted {verdict.accepted | {'bots': len(texts)}}, "
                f"confirmed to the bots {sum(len(b.answered) for b in bots)}, "
                f"shown in responses {len(shown)}, growth {grown}\n"
                f"bots {dict(sum((b.departures for b in bots), Counter()))}, "
                f"turns of one bot at once up to {max(b.most_turns for b in bots)}, "
                f"put off {sum(len(b.put_off) for b in bots)}\n"
            )
            for fate, count in fates.counts.most_common():
                sys.stdout.write(f"{count:7,} {fate}\n")
            faults: dict[str, object] = dict(verdict.faults())
            faults["unread"] = [text for bot in bots for text in bot.accepted if text not in bot.read]
            faults["second turns"] = [text for bot in bots for text in bot.second_turns]
            faults["refused streams"] = [status for bot in bots for status in bot.refused_streams]
            faults["lost messages of bots"] = [row[0] for row in await workload.db.fetch(LOST_MESSAGES, texts)]
            faults["unexpected texts"] = [*{*shown} - {*texts} - {text for bot in bots for text in bot.put_off}]
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
