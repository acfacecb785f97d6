"""A workload of all three lanes on one hub, and an oracle that compares what was acknowledged with what is stored.

The hub, its workers, chores and web server run in this process, behind a proxy that makes the network fail. Publishers,
chat users, a bot, a consumer and a notifier act until they are stopped. The oracle reads the database directly.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg
import httpx2

from faults.fates import LEFT, describe_response, judge_fates
from pabal.audit.record import record_action
from pabal.audit.seal import seal_audit_log
from pabal.audit.verify import verify_audit_log
from pabal.core.actor import Actor
from pabal.core.errors import PabalError
from pabal.db.errors import UniqueViolation
from pabal.events.consume.lane import LANE, EventClaimFilter
from pabal.events.publish.publish import EventDraft
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import build_workers
from pabal.keys.key import KeyUse
from pabal.notifications.decision.decide import NotificationChannel
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Done
from pabal.settings import Settings
from relay.skills import USE_CALLBACK, send_message
from support.clusters import Connection, open_connection
from support.fake_kakao import FakeKakao, run_fake_kakao
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.relay_rows import Chat, Owner, skill_response
from support.server import serve_hub
from support.wait import wait_until

SOURCE, TARGET = "minu_build", "minu_find"
RETRY_DELAY, PACE = 0.02, 0.01
LANES = ("events", "messages", "notifications")
ORDERING_KEYS = 8
FAULTS = (
    "lost",
    "stuck",
    "repeated_posts",
    "order_breaks",
    "unexplained",
    "broken_seals",
    "wrong_metrics",
    "refused",
)
AUDITOR = Actor("auditor")
AUDITED_ACTION = "fault.tested"
STUCK_EVENTS = "select id from event_queue where id = any($1::uuid[]) and status <> 'completed'"
LOST_EVENTS = "select x from unnest($1::uuid[]) x where not exists (select from event_queue q where q.id = x)"
LOST_MESSAGES = """
select x from unnest($1::text[]) x
where not exists (select from inbound_messages m where m.normalized ->> 'text' = x)
"""
STUCK_MESSAGES = """
select m.id from inbound_messages m
left join relay_replies r on r.message_id = m.id
where m.normalized ->> 'text' = any($1::text[]) and (m.status in ('QUEUED', 'DELIVERED') or r.outcome = 'sending')
"""
STUCK_OUTBOX = "select id from pabal.relay_event_outbox"
LOST_ACTIONS = """
select x from unnest($1::text[]) x
where not exists (select from pabal.audit_log a where a.action = 'fault.tested' and a.subject = x)
"""
SENT_REPLIES = "select count(*) from relay_replies where state = 'sent'"
LOST_NOTIFICATIONS = """
select x from unnest($1::uuid[]) x where not exists (select from notification.requests r where r.id = x)
"""
STUCK_NOTIFICATIONS = """
select x from unnest($1::uuid[]) x where not exists (select from notification.toasts t where t.id = x)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the oracle found. Everything but `accepted` and the times must be empty or zero."""

    accepted: dict[str, int]
    lost: list[Any]
    stuck: list[Any]
    repeated_posts: list[str]
    order_breaks: list[tuple[int, int]]
    """Messages that the bot, and events of one ordering key that the consumer, first got out of order."""
    unexplained: list[str]
    """Messages that the bot read, and whose record contradicts what the user saw or the bot was told."""
    broken_seals: list[str]
    wrong_metrics: list[str]
    longest_gap: float
    recovery: float
    """Seconds from the end of the fault until every lane accepted again."""
    refused: Sequence[str] = ()
    """Requests that failed although none should."""

    def faults(self) -> dict[str, Sequence[Any]]:
        names = (
            "lost",
            "stuck",
            "repeated_posts",
            "order_breaks",
            "unexplained",
            "broken_seals",
            "wrong_metrics",
            "refused",
        )
        return {name: rows for name in names if (rows := getattr(self, name))}


@dataclass(slots=True)
class Workload:
    """The actors and what was acknowledged to them."""

    hub: Hub
    web: httpx2.AsyncClient
    proxy: FaultProxy | None
    """None if the web server runs in another process."""
    kakao: FakeKakao
    owner: Owner
    db: Connection
    """A connection that bypasses the proxy."""
    direct_url: str
    travel: Callable[[timedelta], Awaitable[None]]
    events: list[UUID] = field(default_factory=list[UUID])
    messages: list[str] = field(default_factory=list[str])
    notifications: list[UUID] = field(default_factory=list[UUID])
    actions: list[str] = field(default_factory=list[str])
    """Audit entries."""
    claimed: dict[UUID, tuple[str | None, int]] = field(default_factory=dict[UUID, tuple[str | None, int]])
    """The ordering key and the number of each event, in the order in which the consumer first got them."""
    read_by_bot: list[int] = field(default_factory=list[int])
    results: dict[str, str] = field(default_factory=dict[str, str])
    """What the bot was told about its reply to each message."""
    failed_requests: list[str] = field(default_factory=list[str])
    """Webhooks without an answer."""
    sends_received: bool = True
    """Whether the bot confirms responses. One that does not may get lost ones late, after newer messages."""
    accepted_at: dict[str, list[float]] = field(default_factory=lambda: {lane: [] for lane in LANES})
    received: str | None = None
    """The cursor of the bot's last response: what was lost after it comes back first."""
    fault_ended: float = 0.0
    pace: float = PACE
    """Seconds between two acts of one actor."""

    def acknowledged(self, lane: str) -> None:
        self.accepted_at[lane].append(monotonic())

    async def publish(self, number: int) -> None:
        key = str(number % ORDERING_KEYS) if number % 2 else None
        result = await self.hub.publisher.put(EventDraft(SOURCE, "fault.tested", target=TARGET, ordering_key=key))
        self.events.append(result.id)
        self.acknowledged("events")

    async def chat(self, number: int) -> None:
        text = str(number)
        try:
            answer = await send_message(self.web, text, callbackUrl=self.kakao.url(text))
        except (httpx2.HTTPError, AssertionError) as error:
            self.failed_requests.append(f"{type(error).__name__}: {error}"[:200])
            raise
        if answer == USE_CALLBACK:
            self.messages.append(text)
            self.acknowledged("messages")

    async def notify(self, number: int) -> None:
        draft = draft_notification(self.hub, channel=NotificationChannel.DASHBOARD_TOAST, recipient=str(number))
        [request] = await request_drafts(self.hub, draft)
        self.notifications.append(request.id)
        self.acknowledged("notifications")

    async def consume(self, _: int) -> None:
        async with self.hub.autocommit() as tx:
            events = await LANE.claim(tx, 50, timedelta(seconds=3), "oracle", EventClaimFilter(TARGET))
        if events:
            for event in events:
                self.claimed.setdefault(event.id, (event.ordering_key, event.seq))
            async with self.hub.autocommit() as tx:
                await LANE.settle(tx, [Settlement(event, Done()) for event in events])

    async def answer(self, _: int) -> None:
        received = {"received": self.received} if self.received and self.sends_received else {}
        response = await self.web.get("/openclaw/messages", params={"limit": 20, **received}, headers=self.owner.header)
        page = response.raise_for_status().json()
        self.received = page["cursor"] or self.received
        texts = [message["normalized"]["text"] for message in page["messages"]]
        self.read_by_bot += map(int, texts)
        for text, message in zip(texts, page["messages"], strict=True):
            self.results.setdefault(text, LEFT)
            body = {"messageId": message["id"], "response": skill_response(text)}
            with suppress(httpx2.HTTPError):  # the message comes back when its lease ends
                response = await self.web.post("/openclaw/reply", json=body, headers=self.owner.header)
                self.results[text] = describe_response(response)

    async def act(self, number: int) -> None:
        """Do something that is audited."""
        async with self.hub.transaction() as tx:
            await record_action(tx, AUDITOR, AUDITED_ACTION, str(number))
        self.actions.append(str(number))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run producers and consumers; producers end with the block, consumers when nothing is left to do.

        A row whose claim was committed without an answer is held until its lease ends, so time moves on.
        """
        producers = [
            asyncio.create_task(repeat(act, self.pace)) for act in (self.publish, self.chat, self.notify, self.act)
        ]
        consumers = [asyncio.create_task(repeat(act, self.pace)) for act in (self.consume, self.answer)]
        try:
            yield
            for task in producers:
                task.cancel()
            await asyncio.gather(*producers, return_exceptions=True)
            await self.travel(timedelta(minutes=1))
            with suppress(TimeoutError):  # the oracle reports what is stuck
                await wait_until(self.is_drained, within=60)
        finally:
            for task in (*producers, *consumers):
                task.cancel()
            await asyncio.gather(*producers, *consumers, return_exceptions=True)

    async def run_through(self, fault: Callable[[], Awaitable[None]], warm: int = 10) -> Verdict:
        """Accept `warm` messages of each lane, apply the fault, and accept as many again after it."""
        async with self.running():
            await wait_until(lambda: min(map(len, self.accepted_at.values())) >= warm, within=30)
            await fault()
            self.fault_ended = monotonic()
            before = {lane: len(times) for lane, times in self.accepted_at.items()}
            await wait_until(lambda: all(len(self.accepted_at[lane]) > before[lane] for lane in LANES), within=30)
            recovered = monotonic()
            await wait_until(
                lambda: all(len(self.accepted_at[lane]) >= before[lane] + warm for lane in LANES), within=30
            )
        return await self.judge(recovered - self.fault_ended)

    async def reconnect(self) -> None:
        """Open the oracle's connection again, if the fault closed it."""
        if self.db.is_closed():
            self.db = await asyncpg.connect(self.direct_url)

    async def is_drained(self) -> bool:
        await self.reconnect()
        return not await self.find_stuck()

    async def find_stuck(self) -> list[Any]:
        """The ids of rows without an end."""
        rows = [
            *await self.db.fetch(STUCK_EVENTS, self.events),
            *await self.db.fetch(STUCK_MESSAGES, self.messages),
            *await self.db.fetch(STUCK_NOTIFICATIONS, self.notifications),
            *await self.db.fetch(STUCK_OUTBOX),
        ]
        return [row[0] for row in rows]

    async def judge(self, recovery: float) -> Verdict:
        posts = Counter(request.target for request in self.kakao.receiver.requests)
        lost = [
            *await self.db.fetch(LOST_EVENTS, self.events),
            *await self.db.fetch(LOST_MESSAGES, self.messages),
            *await self.db.fetch(LOST_NOTIFICATIONS, self.notifications),
            *await self.db.fetch(LOST_ACTIONS, self.actions),
        ]
        return Verdict(
            accepted={
                "events": len(self.events),
                "messages": len(self.messages),
                "notifications": len(self.notifications),
            },
            lost=[row[0] for row in lost],
            stuck=await self.find_stuck(),
            repeated_posts=[target for target, count in posts.items() if count > 1],
            order_breaks=self.find_order_breaks(),
            unexplained=(await judge_fates(self.db, self.kakao, self.results)).unexplained,
            broken_seals=await self.verify_audit_log(),
            wrong_metrics=await self.check_metrics(posts.total()),
            longest_gap=max(map(longest_gap, self.accepted_at.values())),
            recovery=recovery,
        )

    def find_order_breaks(self) -> list[tuple[int, int]]:
        acknowledged = {*map(int, self.messages)}
        first_reads = [[number for number in dict.fromkeys(self.read_by_bot) if number in acknowledged]]
        keys = {key for key, _ in self.claimed.values() if key}
        numbers = [[number for key, number in self.claimed.values() if key == wanted] for wanted in keys]
        return [(one, two) for group in (*first_reads, *numbers) for one, two in pairwise(group) if two < one]

    async def verify_audit_log(self) -> list[str]:
        """Seal what is left, and verify the chain."""
        with suppress(UniqueViolation):  # the hub's chore seals at the same time
            async with self.hub.transaction() as tx:
                await seal_audit_log(tx, self.hub.key_ring.active(KeyUse.AUDIT), len(self.actions))
        async with self.hub.transaction() as tx:
            report = await verify_audit_log(tx, self.hub.key_ring)
        return [*map(str, report.breaks)]

    async def check_metrics(self, posts: int) -> list[str]:
        """The counters of the hub in this process, compared with what was accepted. Others restart with the fault."""
        if self.proxy is None:
            return []
        text = (await self.web.get("/metrics")).text
        received, queued, sent = (
            sum(float(value) for value in re.findall(rf"^relay_{name}_total(?:{{.*}})? (\S+)$", text, re.MULTILINE))
            for name in ("webhook_received", "message_queued", "callback_sent")
        )
        recorded = await self.db.fetchval(SENT_REPLIES)
        wrong: list[str] = []
        if not received >= queued >= len(self.messages):
            wrong.append(f"{received:g} webhooks, {queued:g} messages, {len(self.messages)} accepted")
        if not recorded <= sent <= posts:
            wrong.append(f"{sent:g} callbacks sent, {recorded} recorded, {posts} posted")
        return wrong


def longest_gap(times: list[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


async def repeat(act: Callable[[int], Awaitable[None]], pace: float) -> None:
    """Act again and again. A refusal is retried, as clients do, with a new number."""
    number = 0
    while True:
        number += 1
        try:
            await act(number)
        except (PabalError, httpx2.HTTPError, AssertionError):
            await asyncio.sleep(RETRY_DELAY)
        await asyncio.sleep(pace)


@asynccontextmanager
async def open_workload(
    settings: Settings, urls: DatabaseUrls, travel: Callable[[timedelta], Awaitable[None]]
) -> AsyncGenerator[Workload]:
    """Open a hub with workers, chores and a web server behind a proxy."""
    settings = settings.model_copy(
        update={"callback_allow": ["http://127.0.0.1"], "webhook_per_conversation": 0, "webhook_per_channel": 0}
    )
    assert urls.direct
    async with (
        run_fault_proxy(urls.main) as (proxy, url),
        run_fake_kakao() as kakao,
        open_connection(urls.direct) as db,
        open_hub(settings, DatabaseUrls(url, None)) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
    ):
        chat = Chat(db)
        owner = await chat.owner(answer_mode="callback")  # the oracle counts posts to callbacks
        await chat.conversation(owner)
        await register_builtin_templates(hub)
        workers = build_workers(hub)
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        chores = asyncio.create_task(hub.chores.run())
        try:
            workload = Workload(hub, web, proxy, kakao, owner, db, urls.direct, travel)
            yield workload
            await workload.db.close()
        finally:
            for worker in workers:
                worker.stop()
            chores.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await asyncio.gather(*tasks, chores, return_exceptions=True)
