"""A crowd that waits: bots on streams and in long polls, a message for some of them, and how soon it reaches them.

python -m bench.crowd < a JSON object: the hub's port and process, how many are on streams, and who they are
"""

import asyncio
import json
import random
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench.kakao import figures, written
from bench.wire import HOST, Line, asked, call, listen

ABREAST = 50
MESSAGES, LOOKS = 100, 50
SETTLE = 3.0
"""Seconds until the last poll has looked once and waits."""
NUMBER = count(1)


class Crowd:
    """Everybody who waits, and when somebody was handed something."""

    def __init__(self, port: int, who: list[dict[str, str]], streams: int) -> None:
        self._port = port
        self._streams, self._polls = who[:streams], who[streams:]
        self._handed: dict[str, asyncio.Future[float]] = {}

    async def gather(self) -> None:
        gate = asyncio.Semaphore(ABREAST)

        async def sit(who: dict[str, str]) -> None:
            async with gate:
                await listen(self._port, who["token"], lambda _message, _key: self._reached(who))

        await asyncio.gather(*map(sit, self._streams))
        for who in self._polls:
            line = await call(self._port, lambda _line, _head, _body, who=who: self._reached(who))
            line.say(asked("GET", "/openclaw/messages?wait=30", token=who["token"]))

    def _reached(self, who: dict[str, str]) -> None:
        if who["user"] in self._handed:
            self._handed.pop(who["user"]).set_result(time.perf_counter())

    async def reach(self, count: int) -> list[float]:
        """Seconds from a user's message to its bot, one message at a time, to streams and polls in turn."""
        line = Asking(self._port)
        await line.open()
        chosen = zip(random.sample(self._streams, count // 2), random.sample(self._polls, count // 2), strict=True)
        took: list[float] = []
        for who in (each for pair in chosen for each in pair):
            there = self._handed[who["user"]] = asyncio.get_running_loop().create_future()
            body = written(who["channel"], who["user"], f"http://{HOST}:9/callback/{next(NUMBER)}")
            began = time.perf_counter()
            await line.ask(asked("POST", "/kakao/webhook", body))
            took.append(await there - began)
        return took

    async def health(self, count: int) -> list[float]:
        line = Asking(self._port)
        await line.open()
        took: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await line.ask(asked("GET", "/health"))
            took.append(time.perf_counter() - began)
        return took


class Asking:
    """A line on which one asks and waits."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._answered = asyncio.Event()

    async def open(self) -> None:
        self._line = await call(self._port, self._heard)

    async def ask(self, request: bytes) -> None:
        self._answered.clear()
        self._line.say(request)
        await self._answered.wait()

    def _heard(self, _line: Line, head: bytes, body: bytes) -> None:
        if b" 200 " not in head[:16]:
            raise RuntimeError(f"{head[:16].decode()}: {body.decode()}")
        self._answered.set()


def memory(pid: int) -> float:
    """Megabytes a process has in memory."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


async def main() -> dict[str, Any]:
    told = json.load(sys.stdin)
    crowd = Crowd(told["port"], told["users"], told["streams"])
    before, began = memory(told["hub"]), time.perf_counter()
    await crowd.gather()
    opened = time.perf_counter() - began
    await asyncio.sleep(SETTLE)
    reached, healthy = await crowd.reach(MESSAGES), await crowd.health(LOOKS)
    return {
        "opened": opened,
        "before": before,
        "memory": memory(told["hub"]),
        "reached": figures(reached, 1) | {"worst": max(reached)},
        "health": figures(healthy, 1) | {"worst": max(healthy)},
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main())))
