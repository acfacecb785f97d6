"""Thousands of idle bots on streams and long polls: memory, and the latency of a message to one of them.

python -m bench.crowd < JSON object: port and hub (process id), streams (how many of the users), users
"""

import asyncio
import json
import random
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench.kakao import summarize, webhook_body
from bench.wire import HOST, HttpConnection, connect, encode_request, encode_webhook, open_stream

MESSAGES, HEALTH_CHECKS = 100, 50
WARM_UP = 3.0
"""Seconds until the last long poll has claimed once and waits."""
NUMBER = count(1)


class IdleBots:
    """All waiting bots, and the time at which one got a message."""

    def __init__(self, port: int, users: list[dict[str, str]], streams: int) -> None:
        self._port = port
        self._streams, self._polls = users[:streams], users[streams:]
        self._delivered: dict[str, asyncio.Future[float]] = {}

    async def open(self) -> list[float]:
        """Open all streams at once; returns the durations of webhooks that were sent meanwhile, one after the other."""
        opening = asyncio.gather(
            *(open_stream(self._port, user["token"], partial(self._on_message, user)) for user in self._streams)
        )
        durations = await self._measure_webhooks(opening)
        await opening
        for user in self._polls:
            connection = await connect(self._port, lambda _connection, _head, _body, user=user: self._on_delivery(user))
            connection.send(encode_request("GET", "/openclaw/messages?wait=30", token=user["token"]))

        return durations

    async def _measure_webhooks(self, opening: "asyncio.Future[Any]") -> list[float]:
        client = BlockingClient(self._port)
        await client.open()
        durations: list[float] = []
        while not opening.done():
            started = time.perf_counter()
            await client.request(encode_message(self._polls[0]))
            durations.append(time.perf_counter() - started)
        return durations

    def _on_message(self, user: dict[str, str], _message: bytes, _key: bytes) -> None:
        self._on_delivery(user)

    def _on_delivery(self, user: dict[str, str]) -> None:
        if user["user"] in self._delivered:
            self._delivered.pop(user["user"]).set_result(time.perf_counter())

    async def measure_delivery(self, count: int) -> list[float]:
        """Seconds from a user's message to its bot, one message at a time, alternating streams and polls."""
        client = BlockingClient(self._port)
        await client.open()
        pairs = zip(random.sample(self._streams, count // 2), random.sample(self._polls, count // 2), strict=True)
        durations: list[float] = []
        for user in (user for pair in pairs for user in pair):
            delivered = self._delivered[user["user"]] = asyncio.get_running_loop().create_future()
            request = encode_message(user)
            started = time.perf_counter()
            await client.request(request)
            durations.append(await delivered - started)
        return durations

    async def measure_health(self, count: int) -> list[float]:
        client = BlockingClient(self._port)
        await client.open()
        durations: list[float] = []
        for _ in range(count):
            started = time.perf_counter()
            await client.request(encode_request("GET", "/health"))
            durations.append(time.perf_counter() - started)
        return durations


class BlockingClient:
    """A connection with one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._answered = asyncio.Event()

    async def open(self) -> None:
        self._connection = await connect(self._port, self._on_response)

    async def request(self, request: bytes) -> None:
        self._answered.clear()
        self._connection.send(request)
        await self._answered.wait()

    def _on_response(self, _connection: HttpConnection, head: bytes, body: bytes) -> None:
        if b" 200 " not in head[:16]:
            raise RuntimeError(f"{head[:16].decode()}: {body.decode()}")
        self._answered.set()


def encode_message(user: dict[str, str]) -> bytes:
    """A webhook with a message of this user."""
    return encode_webhook(webhook_body(user["channel"], user["user"], f"http://{HOST}:9/callback/{next(NUMBER)}"))


def resident_memory(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


async def main() -> dict[str, Any]:
    options = json.load(sys.stdin)
    bots = IdleBots(options["port"], options["users"], options["streams"])
    memory_before, started = resident_memory(options["hub"]), time.perf_counter()
    webhooks = await bots.open()
    opened = time.perf_counter() - started
    await asyncio.sleep(WARM_UP)
    delivery, health = await bots.measure_delivery(MESSAGES), await bots.measure_health(HEALTH_CHECKS)
    return {
        "opened": opened,
        "webhook": summarize(webhooks, 1) | {"worst": max(webhooks)},
        "memory_before": memory_before,
        "memory": resident_memory(options["hub"]),
        "delivery": summarize(delivery, 1) | {"worst": max(delivery)},
        "health": summarize(health, 1) | {"worst": max(health)},
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main())))
