"""Notices to many: one event made into ten thousand, toasts to a thousand open dashboards, what dispatching costs."""

import argparse
import asyncio
import hashlib
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop

from bench.engine import BATCH, HOLD, timed
from bench.ground import connected, durable, interleaved, middle, show
from bench.relay import hub_on
from bench.wire import HOST, asked
from pabal.core.actor import HUB_ACTOR
from pabal.core.log import configure_logging
from pabal.db.embedded import ServerAddress
from pabal.events.lane import LANE as EVENTS
from pabal.events.publish import EventDraft, publish_events
from pabal.hub import DatabaseUrls, Hub, build_rules_handler, open_hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.outcome import DispatchOutcome
from pabal.notifications.dispatch.settle import NotificationDispatchLane
from pabal.notifications.lane import LANE, ClaimedNotification
from pabal.notifications.requests import NotificationDraft, request_notifications
from pabal.notifications.rules.rules import RuleDraft, add_rule
from pabal.notifications.templates.catalogue import register_templates
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE
from pabal.queue.worker import Worker, WorkerConfig
from pabal.settings import Settings

PEOPLE = 10_000
STREAMS = 1_000
ALONE = 300
"""Toasts to one person at a time, everything else quiet."""
ABREAST = 50
KEY = "payment.succeeded"
PAID: dict[str, Any] = {"item": "Pro", "amount": 12900, "currency": "KRW"}

EMPTY = """
truncate notification.requests, public.event_queue, pabal.event_due, pabal.event_leases, pabal.event_order cascade;
checkpoint
"""
FILL = """
insert into notification.requests (id, recipient_type, recipient_id, template_key, payload, state, priority, dedupe_key)
select pabal.uuid7(), $1, (i % 1000)::text, $2, $3::text::jsonb, 'pending', 5, 'bench:' || i
from generate_series(1, $4::integer) i
"""
TOKENS = """
insert into notification.person_tokens (token_hash, discord_id, issued_by, expires_at)
select hash, person, 'bench', pabal.now() + interval '1 day' from unnest($1::text[], $2::text[]) as t (hash, person)
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A hub in this process, without workers of its own, and its database."""

    hub: Hub
    owner: Any

    async def empty(self) -> None:
        await self.owner.execute(EMPTY)

    async def fill(self, rows: int, channel: NotificationChannel) -> None:
        await self.empty()
        await self.owner.execute(FILL, channel, KEY, msgspec.json.encode(PAID).decode(), rows)
        await self.owner.execute("vacuum analyze notification.requests")


@asynccontextmanager
async def opened(endpoint: ServerAddress) -> AsyncGenerator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(_env_file=None, data_dir=Path(folder))  # pyright: ignore[reportCallIssue]
        database_urls = DatabaseUrls(endpoint.hub_url, endpoint.owner_url)
        async with open_hub(settings, database_urls) as hub, connected(endpoint.owner_url) as owner:
            async with hub.transaction() as tx:
                await register_templates(tx, hub.templates)
            yield Bench(hub, owner)


# One event for many


async def bare(bench: Bench) -> float:
    """The same number of rows by one plain statement: the least they can cost."""
    await bench.empty()
    began = time.perf_counter()
    await bench.owner.execute(
        FILL, NotificationChannel.DASHBOARD_TOAST, KEY, msgspec.json.encode(PAID).decode(), PEOPLE
    )
    return PEOPLE / (time.perf_counter() - began)


async def fanned_out(bench: Bench) -> float:
    """An event that names ten thousand people, from its claim to the commit of everything it made."""
    await bench.empty()
    body = msgspec.json.encode({"members": [str(each) for each in range(PEOPLE)], **PAID})
    async with bench.hub.transaction() as tx:
        await publish_events(tx, [EventDraft(source="minu_find", event_type="bench.fan_out", payload=body)])
    rules = build_rules_handler(bench.hub)
    began = time.perf_counter()
    async with bench.hub.autocommit() as tx:
        held = await EVENTS.claim(tx, 1, HOLD, "bench", service=HUB_ACTOR.name)
    await rules.handle_events(held)
    took = time.perf_counter() - began
    made = await bench.owner.fetchval("select count(*) from notification.requests where state = 'pending'")
    assert made == PEOPLE, f"{made} were made"
    return PEOPLE / took


# Dispatching


async def raw(bench: Bench, rows: int) -> float:
    """The lane with nothing to do: claim, settle, in batches."""
    await bench.fill(rows, NotificationChannel.DASHBOARD_TOAST)

    async def loop() -> None:
        while True:
            async with bench.hub.autocommit() as tx:
                found = await LANE.claim(tx, BATCH, HOLD, "bench")
                if not found:
                    return
                await LANE.settle(tx, [Settlement(item, DONE) for item in found])

    return await timed(rows, [loop()])


async def dispatched(bench: Bench, rows: int, channel: NotificationChannel) -> float:
    """The worker as a hub employs it: looked at again, written, handed over, settled."""
    hub = bench.hub
    await bench.fill(rows, channel)
    handled = 0
    finished = asyncio.Event()

    async def handle(request: ClaimedNotification) -> DispatchOutcome:
        nonlocal handled
        outcome = await hub.dispatcher.handle(request)
        handled += 1
        if handled == rows:
            finished.set()
        return outcome

    worker = Worker(
        "bench", NotificationDispatchLane(), hub.db, hub.doorbell, handle, hub.dispatcher.schedule, WorkerConfig()
    )
    began = time.perf_counter()
    running = asyncio.create_task(worker.run())
    await finished.wait()
    worker.stop()
    await running  # until the last of them is settled
    return rows / (time.perf_counter() - began)


# Toasts to open dashboards


class Dashboard(asyncio.Protocol):
    """An open stream of one person's toasts; `came` is told when one arrives."""

    def __init__(self, token: str, came: Callable[[float], None]) -> None:
        self._token = token
        self._came = came
        self._unread = b""
        self._transport: asyncio.Transport | None = None
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(asked("GET", "/v1/toasts/stream", token=self._token))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *blocks, self._unread = (self._unread + data).split(b"\n\n")
        for block in blocks:
            if b"\nevent: toast\n" in block:
                self._came(now)
            elif b"\nevent: connected\n" in block:
                self.connected.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.connected.done():
            self.connected.set_exception(exc or ConnectionError(self._unread.decode(errors="replace")))

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class Arrivals:
    """When toasts arrived, until all that are expected have."""

    wanted: int
    at: list[float]
    all: asyncio.Event

    def came(self, now: float) -> None:
        self.at.append(now)
        if len(self.at) >= self.wanted:
            self.all.set()


class Audience:
    """People with their dashboards open, in one process of a hub."""

    def __init__(self, bench: Bench, port: int) -> None:
        self._bench = bench
        self._port = port
        self._arrivals = Arrivals(0, [], asyncio.Event())
        self._open: list[Dashboard] = []

    async def sit_down(self, many: int) -> None:
        tokens = {f"person-{each}": f"pbp_{secrets.token_urlsafe(32)}" for each in range(many)}
        hashes = [hashlib.sha256(token.encode()).hexdigest() for token in tokens.values()]
        await self._bench.owner.execute(TOKENS, hashes, [*tokens])
        gate = asyncio.Semaphore(ABREAST)

        async def sit(token: str) -> None:
            async with gate:
                loop = asyncio.get_running_loop()
                _, dashboard = await loop.create_connection(lambda: Dashboard(token, self._came), HOST, self._port)
                await dashboard.connected
                self._open.append(dashboard)

        await asyncio.gather(*map(sit, tokens.values()))

    async def tell(self, people: Sequence[str]) -> list[float]:
        """Ask for a toast for each of these at once; how long after the commit each was on its stream."""
        self._arrivals = Arrivals(len(people), [], asyncio.Event())
        template = self._bench.hub.templates.get(KEY)
        drafts = [
            NotificationDraft(
                channel=NotificationChannel.DASHBOARD_TOAST, recipient=each, template=template, payload=PAID
            )
            for each in people
        ]
        async with self._bench.hub.transaction() as tx:
            await request_notifications(tx, drafts, HUB_ACTOR)
        committed = time.perf_counter()
        async with asyncio.timeout(60):
            await self._arrivals.all.wait()
        return sorted(each - committed for each in self._arrivals.at)

    def _came(self, now: float) -> None:
        self._arrivals.came(now)

    def leave(self) -> None:
        for dashboard in self._open:
            dashboard.leave()


async def told(bench: Bench, endpoint: ServerAddress, rounds: int) -> list[list[object]]:
    """A hub as `pabal up` runs it, and dashboards on it; the one in this process only asks."""
    await bench.empty()
    with tempfile.TemporaryDirectory() as folder, hub_on(endpoint, Path(folder)) as (_, port):
        audience = Audience(bench, port)
        await audience.sit_down(STREAMS)
        try:
            everyone = [f"person-{each}" for each in range(STREAMS)]
            bursts = [await audience.tell(everyone) for _ in range(rounds)]
            alone: list[float] = []
            for each in range(ALONE):
                await asyncio.sleep(0.02)  # it has settled and sleeps
                alone += await audience.tell([everyone[each % STREAMS]])
        finally:
            audience.leave()
    alone.sort()
    return [
        [
            f"{STREAMS:,} at once, one each",
            middle([STREAMS / burst[-1] for burst in bursts]),
            middle([at(burst, 0.5) for burst in bursts]),
            middle([at(burst, 0.99) for burst in bursts]),
        ],
        ["one alone", "", at(alone, 0.5), at(alone, 0.99)],
    ]


def at(took: Sequence[float], share: float) -> float:
    return took[int(len(took) * share)] * 1000


async def measure(endpoint: ServerAddress, rows: int, rounds: int) -> None:
    async with opened(endpoint) as bench:
        wanted = RuleDraft(
            name="bench",
            event_pattern="bench.fan_out",
            template_key=KEY,
            recipients=["members"],
            channels=[NotificationChannel.DASHBOARD_TOAST],
            expires_after=timedelta(days=1),
        )
        async with bench.hub.transaction() as tx:
            await add_rule(tx, bench.hub.templates, wanted, HUB_ACTOR)
        made = await interleaved({"bare": lambda: bare(bench), "rule": lambda: fanned_out(bench)}, rounds)
        show(
            f"One event for {PEOPLE:,} people, one transaction",
            ["", "requests/s", "ratio"],
            [
                ["as many rows by one plain insert", made["bare"], 1.0],
                ["a rule: found, checked, planned, recorded", made["rule"], made["rule"] / made["bare"]],
            ],
        )
        drains = await interleaved(
            {
                "raw": lambda: raw(bench, rows),
                "toast": lambda: dispatched(bench, rows, NotificationChannel.DASHBOARD_TOAST),
                "dm": lambda: dispatched(bench, rows, NotificationChannel.USER_DM),
            },
            rounds,
        )
        show(
            f"Dispatching, {rows:,} requests of 1,000 people",
            ["", "requests/s", "ratio"],
            [
                ["the lane alone: claim + settle", drains["raw"], 1.0],
                ["into dashboards", drains["toast"], drains["toast"] / drains["raw"]],
                ["to Discord, written down instead of sent", drains["dm"], drains["dm"] / drains["raw"]],
            ],
        )
        show(
            f"Toasts to {STREAMS:,} open dashboards of one process, from the commit of the asking",
            ["", "toasts/s", "p50 ms", "p99 ms"],
            await told(bench, endpoint, rounds),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    said = parser.parse_args()
    configure_logging("warning", "json")
    with durable() as endpoint, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(endpoint, said.rows, said.rounds))


if __name__ == "__main__":
    main()
