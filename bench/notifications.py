"""Benchmark notifications: rule fan-out to 10,000 people, dispatching, and toasts to 1,000 open dashboards."""

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
from bench.wire import HOST, encode_request
from pabal.core.actor import HUB_ACTOR
from pabal.core.log import configure_logging
from pabal.db.embedded import ServerAddress
from pabal.events.consume.lane import LANE as EVENTS
from pabal.events.consume.lane import EventClaimFilter
from pabal.events.publish.publish import EventDraft, publish_events
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import build_rules_handler
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.dispatch.outcome import DispatchOutcome
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
SINGLE_TOASTS = 300
"""Toasts sent one at a time to an idle hub."""
MAX_CONNECTING = 50
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
async def open_bench(endpoint: ServerAddress) -> AsyncGenerator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(_env_file=None, data_dir=Path(folder))  # pyright: ignore[reportCallIssue]
        database_urls = DatabaseUrls(endpoint.hub_url, endpoint.owner_url)
        async with open_hub(settings, database_urls) as hub, connected(endpoint.owner_url) as owner:
            async with hub.transaction() as tx:
                await register_templates(tx, hub.templates)
            yield Bench(hub, owner)


# Fan-out


async def measure_plain_insert(bench: Bench) -> float:
    """The baseline: the same number of rows in one plain insert."""
    await bench.empty()
    began = time.perf_counter()
    await bench.owner.execute(
        FILL, NotificationChannel.DASHBOARD_TOAST, KEY, msgspec.json.encode(PAID).decode(), PEOPLE
    )
    return PEOPLE / (time.perf_counter() - began)


async def measure_fan_out(bench: Bench) -> float:
    """One event with 10,000 recipients, from the claim to the commit of its notifications."""
    await bench.empty()
    body = msgspec.json.encode({"members": [str(person) for person in range(PEOPLE)], **PAID})
    async with bench.hub.transaction() as tx:
        await publish_events(tx, [EventDraft(source="minu_find", event_type="bench.fan_out", payload=body)])
    rules = build_rules_handler(bench.hub)
    began = time.perf_counter()
    async with bench.hub.autocommit() as tx:
        held = await EVENTS.claim(tx, 1, HOLD, "bench", EventClaimFilter(HUB_ACTOR.name))
    await rules.handle_events(held)
    duration = time.perf_counter() - began
    pending = await bench.owner.fetchval("select count(*) from notification.requests where state = 'pending'")
    assert pending == PEOPLE, f"{pending} notifications instead of {PEOPLE}"
    return PEOPLE / duration


# Dispatching


async def measure_bare_lane(bench: Bench, rows: int) -> float:
    """The baseline: claim and settle in batches, without a handler."""
    await bench.fill(rows, NotificationChannel.DASHBOARD_TOAST)

    async def loop() -> None:
        while True:
            async with bench.hub.autocommit() as tx:
                items = await LANE.claim(tx, BATCH, HOLD, "bench")
                if not items:
                    return
                await LANE.settle(tx, [Settlement(item, DONE) for item in items])

    return await timed(rows, [loop()])


async def measure_dispatch(bench: Bench, rows: int, channel: NotificationChannel) -> float:
    """The hub's worker: decide, render, send and settle."""
    hub = bench.hub
    await bench.fill(rows, channel)
    handled = 0
    finished = asyncio.Event()

    async def handle(notification: ClaimedNotification) -> DispatchOutcome:
        nonlocal handled
        outcome = await hub.dispatcher.handle(notification)
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
    await running  # until all are settled
    return rows / (time.perf_counter() - began)


# Toasts to open dashboards


class Dashboard(asyncio.Protocol):
    """An open toast stream of one person. Calls `on_toast` with the time of each toast."""

    def __init__(self, token: str, on_toast: Callable[[float], None]) -> None:
        self._token = token
        self._on_toast = on_toast
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(encode_request("GET", "/v1/toasts/stream", token=self._token))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *blocks, self._buffer = (self._buffer + data).split(b"\n\n")
        for block in blocks:
            if b"\nevent: toast\n" in block:
                self._on_toast(now)
            elif b"\nevent: connected\n" in block:
                self.connected.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.connected.done():
            self.connected.set_exception(exc or ConnectionError(self._buffer.decode(errors="replace")))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class Arrivals:
    """The arrival times of toasts. `complete` is set when the expected number has arrived."""

    expected: int
    times: list[float]
    complete: asyncio.Event

    def add(self, now: float) -> None:
        self.times.append(now)
        if len(self.times) >= self.expected:
            self.complete.set()


class Dashboards:
    """Open dashboards of many people, connected to one process of a hub."""

    def __init__(self, bench: Bench, port: int) -> None:
        self._bench = bench
        self._port = port
        self._arrivals = Arrivals(0, [], asyncio.Event())
        self._open: list[Dashboard] = []

    async def open(self, count: int) -> None:
        tokens = {f"person-{number}": f"pbp_{secrets.token_urlsafe(32)}" for number in range(count)}
        hashes = [hashlib.sha256(token.encode()).hexdigest() for token in tokens.values()]
        await self._bench.owner.execute(TOKENS, hashes, [*tokens])
        gate = asyncio.Semaphore(MAX_CONNECTING)

        async def connect(token: str) -> None:
            async with gate:
                loop = asyncio.get_running_loop()
                _, dashboard = await loop.create_connection(
                    lambda: Dashboard(token, self._add_arrival), HOST, self._port
                )
                await dashboard.connected
                self._open.append(dashboard)

        await asyncio.gather(*map(connect, tokens.values()))

    async def send_toasts(self, people: Sequence[str]) -> list[float]:
        """Request a toast for each person in one transaction. Return the delays from the commit to each stream."""
        self._arrivals = Arrivals(len(people), [], asyncio.Event())
        template = self._bench.hub.templates.get(KEY)
        drafts = [
            NotificationDraft(
                channel=NotificationChannel.DASHBOARD_TOAST, recipient=person, template=template, payload=PAID
            )
            for person in people
        ]
        async with self._bench.hub.transaction() as tx:
            await request_notifications(tx, drafts, HUB_ACTOR)
        committed = time.perf_counter()
        async with asyncio.timeout(60):
            await self._arrivals.complete.wait()
        return sorted(arrival - committed for arrival in self._arrivals.times)

    def _add_arrival(self, now: float) -> None:
        self._arrivals.add(now)

    def close(self) -> None:
        for dashboard in self._open:
            dashboard.close()


async def measure_toasts(bench: Bench, endpoint: ServerAddress, rounds: int) -> list[list[object]]:
    """Toasts through a hub in another process, as `pabal up` runs it. The hub of this process only requests them."""
    await bench.empty()
    with tempfile.TemporaryDirectory() as folder, hub_on(endpoint, Path(folder)) as (_, port):
        dashboards = Dashboards(bench, port)
        await dashboards.open(STREAMS)
        try:
            people = [f"person-{number}" for number in range(STREAMS)]
            bursts = [await dashboards.send_toasts(people) for _ in range(rounds)]
            single: list[float] = []
            for number in range(SINGLE_TOASTS):
                await asyncio.sleep(0.02)  # until the hub is idle
                single += await dashboards.send_toasts([people[number % STREAMS]])
        finally:
            dashboards.close()
    single.sort()
    return [
        [
            f"{STREAMS:,} at once, one each",
            middle([STREAMS / burst[-1] for burst in bursts]),
            middle([quantile_ms(burst, 0.5) for burst in bursts]),
            middle([quantile_ms(burst, 0.99) for burst in bursts]),
        ],
        ["one at a time", "", quantile_ms(single, 0.5), quantile_ms(single, 0.99)],
    ]


def quantile_ms(sorted_seconds: Sequence[float], quantile: float) -> float:
    return sorted_seconds[int(len(sorted_seconds) * quantile)] * 1000


async def measure(endpoint: ServerAddress, rows: int, rounds: int) -> None:
    async with open_bench(endpoint) as bench:
        draft = RuleDraft(
            name="bench",
            event_pattern="bench.fan_out",
            template_key=KEY,
            recipients=["members"],
            channels=[NotificationChannel.DASHBOARD_TOAST],
            expires_after=timedelta(days=1),
        )
        async with bench.hub.transaction() as tx:
            await add_rule(tx, bench.hub.templates, draft, HUB_ACTOR)
        fan_out = await interleaved(
            {"insert": lambda: measure_plain_insert(bench), "rule": lambda: measure_fan_out(bench)}, rounds
        )
        show(
            f"One event for {PEOPLE:,} people, one transaction",
            ["", "notifications/s", "ratio"],
            [
                ["one plain insert of as many rows", fan_out["insert"], 1.0],
                ["a rule: evaluate, check, decide, insert", fan_out["rule"], fan_out["rule"] / fan_out["insert"]],
            ],
        )
        drains = await interleaved(
            {
                "lane": lambda: measure_bare_lane(bench, rows),
                "toast": lambda: measure_dispatch(bench, rows, NotificationChannel.DASHBOARD_TOAST),
                "dm": lambda: measure_dispatch(bench, rows, NotificationChannel.USER_DM),
            },
            rounds,
        )
        show(
            f"Dispatching {rows:,} notifications to 1,000 people",
            ["", "notifications/s", "ratio"],
            [
                ["the lane alone: claim and settle", drains["lane"], 1.0],
                ["to dashboards", drains["toast"], drains["toast"] / drains["lane"]],
                ["to Discord (dry run)", drains["dm"], drains["dm"] / drains["lane"]],
            ],
        )
        show(
            f"Toasts to {STREAMS:,} open dashboards of one process, from the commit of the request",
            ["", "toasts/s", "p50 ms", "p99 ms"],
            await measure_toasts(bench, endpoint, rounds),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    configure_logging("warning", "json")
    with durable() as endpoint, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(endpoint, arguments.rows, arguments.rounds))


if __name__ == "__main__":
    main()
