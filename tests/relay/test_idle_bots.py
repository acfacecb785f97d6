"""Thousands of idle streams and long polls in one process cost only memory."""

import asyncio
import resource
import statistics
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from relay.skills import send_message
from support.clusters import Connection, open_connection
from support.pabal_process import RunningHub, fresh_folder, run_hub
from support.relay_rows import digest
from support.wait import wait_until
from support.webhook import WEBHOOK_SECRET

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STREAMS, POLLS = 2000, 500
FEW_FILES, MANY_FILES = 1024, 4096
"""Open files: the usual limit of a process, and what the test itself needs."""
MAX_MEMORY = 200
"""Megabytes."""
MAX_CONCURRENT_OPENS = 50
MESSAGES = 50
MEDIAN_LATENCY, MAX_LATENCY = 0.2, 0.7
"""Seconds, on a busy machine. Without a notification, a claim runs after one second."""
TIMEOUT = 60

INSERT_ACCOUNTS = """
with owners as (
    insert into public.accounts (openclaw_user_id, relay_token_hash, rate_limit_per_minute)
    select 'bot-' || n, hash, 1000 from unnest($1::text[]) with ordinality as a (hash, n)
    returning id, openclaw_user_id
)
insert into public.conversation_mappings
    (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
select 'channel:' || openclaw_user_id, 'channel', openclaw_user_id, id, 'PAIRED', pabal.now()
from owners
"""
COUNT_ACTIVE = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name = 'pabal' and pid <> pg_backend_pid() and state <> 'idle'
"""


class IdleBot(asyncio.Protocol):
    """A waiting bot on a stream or long poll, and the time at which it got a message."""

    def __init__(self, number: int, path: str) -> None:
        self.user = f"bot-{number}"
        self._request = f"GET {path} HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token(number)}\r\n\r\n".encode()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.connected = asyncio.Event()
        self.delivered_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"event: connected" in self._received:
            self.connected.set()
        if b'"deliveryCount"' in self._received and not self.delivered_at.done():
            self.delivered_at.set_result(time.perf_counter())

    def leave(self) -> None:
        if self._transport:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class IdleBots:
    """All waiting bots and the hub process."""

    hub: RunningHub
    streams: list[IdleBot]
    polls: list[IdleBot]

    def memory(self) -> float:
        status = Path(f"/proc/{self.hub.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def bots_with_message(self) -> set[str]:
        """The bots that got a message."""
        return {bot.user for bot in chain(self.streams, self.polls) if bot.delivered_at.done()}


def token(number: int) -> str:
    return f"prt_bot{number:040d}"


@asynccontextmanager
async def connected_bots(hub: RunningHub) -> AsyncGenerator[IdleBots]:
    streams = [IdleBot(number, "/v1/events") for number in range(1, STREAMS + 1)]
    polls = [IdleBot(number, "/v1/messages?wait=30") for number in range(STREAMS + 1, STREAMS + POLLS + 1)]
    parts, semaphore = urlsplit(hub.address), asyncio.Semaphore(MAX_CONCURRENT_OPENS)

    async def connect(bot: IdleBot, ready: asyncio.Event | None) -> None:
        async with semaphore:
            await asyncio.get_running_loop().create_connection(lambda: bot, parts.hostname, parts.port)
            if ready:
                await ready.wait()

    try:
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(connect(bot, bot.connected) for bot in streams))
            await asyncio.gather(*(connect(bot, None) for bot in polls))
        yield IdleBots(hub, streams, polls)
    finally:
        for bot in chain(streams, polls):
            bot.leave()


@pytest.fixture
async def idle_bots(database_urls: DatabaseUrls) -> AsyncGenerator[IdleBots]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        await owner.execute(INSERT_ACCOUNTS, [digest(token(number)) for number in range(1, STREAMS + POLLS + 1)])
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit < MANY_FILES:
        pytest.skip(f"needs {MANY_FILES} open files; this account may have {hard_limit}")
    environment = {"PABAL_DATABASE_URL": database_urls.main, "PABAL_DATABASE_DIRECT_URL": database_urls.direct}
    environment |= {"PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value()}
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard_limit))  # the hub must raise its own limit
    try:
        with fresh_folder() as folder, run_hub(folder, "serve", PABAL_WEBHOOK_PER_CHANNEL="0", **environment) as hub:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
            async with connected_bots(hub) as bots:
                yield bots
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))


async def test_two_thousand_streams_and_five_hundred_polls_wait_in_one_process(
    idle_bots: IdleBots, database_urls: DatabaseUrls
) -> None:
    assert database_urls.direct
    recipients = [*sample(idle_bots.streams, MESSAGES * 4 // 5), *sample(idle_bots.polls, MESSAGES // 5)]
    async with (
        open_connection(database_urls.direct) as owner,
        httpx2.AsyncClient(base_url=idle_bots.hub.address) as web,
    ):
        await wait_until(lambda: all_waiting(owner))
        active_counts = [await owner.fetchval(COUNT_ACTIVE) for _ in range(100)]
        latencies = [await measure_delivery(web, bot) for bot in recipients]
        health = [await measure_response(web) for _ in range(20)]

    assert statistics.median(active_counts) == 0
    assert idle_bots.memory() < MAX_MEMORY
    assert idle_bots.bots_with_message() == {bot.user for bot in recipients}
    assert statistics.median(latencies) < MEDIAN_LATENCY
    assert max(latencies) < MAX_LATENCY
    assert statistics.median(health) < MEDIAN_LATENCY


async def all_waiting(owner: Connection) -> bool:
    """Whether every poll is registered and no claim is running: from now on they only wait."""
    poll_count: int = await owner.fetchval("select count(*) from pabal.limits where key like 'relay requests:%'")
    return poll_count == POLLS and not any([await owner.fetchval(COUNT_ACTIVE) for _ in range(20)])


def sample(bots: list[IdleBot], count: int) -> Iterable[IdleBot]:
    return bots[:: len(bots) // count]


async def measure_delivery(web: httpx2.AsyncClient, bot: IdleBot) -> float:
    """Seconds from a user's message to its delivery."""
    started = time.perf_counter()
    await send_message(web, "hi", bot.user)
    async with asyncio.timeout(10):
        return await bot.delivered_at - started


async def measure_response(web: httpx2.AsyncClient) -> float:
    started = time.perf_counter()
    assert (await web.get("/health")).status_code == 200
    return time.perf_counter() - started
