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
from relay.skills import write
from support.clusters import Connection, connected
from support.pabal_process import Running, fresh_folder, running
from support.relay_rows import digest
from support.wait import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STREAMS, POLLS = 2000, 500
FEW_FILES, MANY_FILES = 1024, 4096
"""Open files: the usual limit of a process, and what the test itself needs."""
MOST_MEMORY = 200
"""Megabytes."""
ABREAST = 50
SENT = 50
PROMPT, LATEST = 0.2, 0.7
"""Seconds, on a busy machine. Without a notification, a claim runs after one second."""
PATIENCE = 60

EVERYBODY = """
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
BUSY = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name = 'pabal' and pid <> pg_backend_pid() and state <> 'idle'
"""


class Waiting(asyncio.Protocol):
    """A waiting bot on a stream or long poll, and the time at which it got a message."""

    def __init__(self, number: int, path: str) -> None:
        self.user = f"bot-{number}"
        self._request = f"GET {path} HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token(number)}\r\n\r\n".encode()
        self._heard = bytearray()
        self._transport: asyncio.Transport | None = None
        self.connected = asyncio.Event()
        self.handed: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if b"event: connected" in self._heard:
            self.connected.set()
        if b'"deliveryCount"' in self._heard and not self.handed.done():
            self.handed.set_result(time.perf_counter())

    def leave(self) -> None:
        if self._transport:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class Crowd:
    """All waiting bots and the hub process."""

    hub: Running
    streams: list[Waiting]
    polls: list[Waiting]

    def memory(self) -> float:
        status = Path(f"/proc/{self.hub.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def handed(self) -> set[str]:
        """The bots that got a message."""
        return {each.user for each in chain(self.streams, self.polls) if each.handed.done()}


def token(number: int) -> str:
    return f"prt_bot{number:040d}"


@asynccontextmanager
async def gathered(hub: Running) -> AsyncGenerator[Crowd]:
    streams = [Waiting(number, "/v1/events") for number in range(1, STREAMS + 1)]
    polls = [Waiting(number, "/v1/messages?wait=30") for number in range(STREAMS + 1, STREAMS + POLLS + 1)]
    where, gate = urlsplit(hub.address), asyncio.Semaphore(ABREAST)

    async def comes(each: Waiting, told: asyncio.Event | None) -> None:
        async with gate:
            await asyncio.get_running_loop().create_connection(lambda: each, where.hostname, where.port)
            if told:
                await told.wait()

    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(comes(each, each.connected) for each in streams))
            await asyncio.gather(*(comes(each, None) for each in polls))
        yield Crowd(hub, streams, polls)
    finally:
        for each in chain(streams, polls):
            each.leave()


@pytest.fixture
async def crowd(database_urls: DatabaseUrls) -> AsyncGenerator[Crowd]:
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        await owner.execute(EVERYBODY, [digest(token(number)) for number in range(1, STREAMS + POLLS + 1)])
    has, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < MANY_FILES:
        pytest.skip(f"needs {MANY_FILES} open files; this account may have {most}")
    roads_there = {"PABAL_DATABASE_URL": database_urls.main, "PABAL_DATABASE_DIRECT_URL": database_urls.direct}
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, most))  # the hub must raise its own limit
    try:
        with fresh_folder() as folder, running(folder, "serve", PABAL_WEBHOOK_PER_CHANNEL="0", **roads_there) as hub:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            async with gathered(hub) as opened:
                yield opened
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (has, most))


async def test_two_thousand_streams_and_five_hundred_polls_wait_in_one_process(
    crowd: Crowd, database_urls: DatabaseUrls
) -> None:
    assert database_urls.direct
    chosen = [*every(crowd.streams, SENT * 4 // 5), *every(crowd.polls, SENT // 5)]
    async with connected(database_urls.direct) as owner, httpx2.AsyncClient(base_url=crowd.hub.address) as web:
        await until(lambda: all_here(owner))
        busy = [await owner.fetchval(BUSY) for _ in range(100)]
        took = [await reached(web, each) for each in chosen]
        health = [await answered(web) for _ in range(20)]

    assert statistics.median(busy) == 0
    assert crowd.memory() < MOST_MEMORY
    assert crowd.handed() == {each.user for each in chosen}
    assert statistics.median(took) < PROMPT
    assert max(took) < LATEST
    assert statistics.median(health) < PROMPT


async def all_here(owner: Connection) -> bool:
    """Whether every poll is registered and no claim is running: from now on they only wait."""
    asked: int = await owner.fetchval("select count(*) from pabal.limits where key like 'relay requests:%'")
    return asked == POLLS and not any([await owner.fetchval(BUSY) for _ in range(20)])


def every(some: list[Waiting], count: int) -> Iterable[Waiting]:
    return some[:: len(some) // count]


async def reached(web: httpx2.AsyncClient, each: Waiting) -> float:
    """Seconds from a user's message to its delivery."""
    began = time.perf_counter()
    await write(web, "hi", each.user)
    async with asyncio.timeout(10):
        return await each.handed - began


async def answered(web: httpx2.AsyncClient) -> float:
    began = time.perf_counter()
    assert (await web.get("/health")).status_code == 200
    return time.perf_counter() - began
