"""A hub that sends to a fake Discord, with helpers to request, dispatch and inspect notifications."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.core.actor import HUB_ACTOR
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.notifications.decision.decide import KOREA_TIMEZONE, NotificationChannel
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.requests import NotificationDraft, request_notifications
from pabal.notifications.templates.catalogue import register_templates
from pabal.queue.worker import Worker, WorkerConfig
from pabal.settings import Settings
from support.clusters import Connection, open_connection
from support.fake_discord import TOKEN, FakeDiscord
from support.lane_under_test import Travel
from support.wait import wait_until

AUDIT = "900"
"""A guild's audit channel."""
ATTACK = {"guild": "Seoul", "actor": "mallory", "action": "ban", "count": 9}
PAID = {"item": "Pro", "amount": 9900, "currency": "KRW"}
NEWS = {"headline": "Sale", "story": "Everything must go."}
PAYLOADS = {"antinuke.triggered": ATTACK, "payment.succeeded": PAID, "marketing.news": NEWS}


@dataclass(slots=True)
class NotificationHub:
    """A hub whose notifications go to a fake Discord."""

    hub: Hub
    owner: Connection
    discord: FakeDiscord
    travel: Travel

    async def request(self, template: str = "payment.succeeded", recipient: str = "100", **overrides: Any) -> UUID:
        """Request a notification, by default a DM."""
        values: dict[str, Any] = {
            "channel": NotificationChannel.USER_DM,
            "payload": PAYLOADS.get(template, {}),
        } | overrides
        draft = NotificationDraft(template=self.hub.templates.get(template), recipient=recipient, **values)
        async with self.hub.transaction() as tx:
            [requested] = await request_notifications(tx, [draft], HUB_ACTOR)
        return requested.id

    async def dispatch(self) -> None:
        """Send everything that is due now."""
        async with self.run_worker():
            await wait_until(self.is_idle)

    @asynccontextmanager
    async def run_worker(self, hub: Hub | None = None, **options: Any) -> AsyncGenerator[Worker[Any, Any, Any]]:
        worker = build_dispatch_worker(hub or self.hub, **options)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running

    async def is_idle(self) -> bool:
        due = "select count(*) from notification.requests where state = 'pending' and scheduled_at <= pabal.now()"
        return await self.owner.fetchval(due) == 0

    async def row(self, request: UUID) -> dict[str, Any]:
        matches = await self.owner.fetchrow("select * from notification.requests where id = $1", request)
        return dict(matches or {})

    async def state(self, request: UUID) -> tuple[str, str | None, int]:
        """State, reason and number of attempts."""
        row = await self.row(request)
        return row["state"], row["reason"], row["attempt_count"]

    async def attempts(self, request: UUID) -> list[tuple[str, int]]:
        rows = await self.owner.fetch(
            "select outcome, attempt from notification.attempts where request_id = $1 order by id", request
        )
        return [(row["outcome"], row["attempt"]) for row in rows]

    async def save_dm_channel(self, dm: str, recipient: str = "100") -> None:
        """Store a DM channel, as if it had been opened before."""
        await self.owner.execute(
            "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id) "
            "values ('user_dm', $1, $2)",
            recipient,
            dm,
        )

    async def audit_entries(self, action: str) -> list[dict[str, Any]]:
        rows = await self.owner.fetch("select subject, details::text from pabal.audit_log where action = $1", action)
        return [dict(row) for row in rows]


def build_dispatch_worker(hub: Hub, **options: Any) -> Worker[Any, Any, Any]:
    overrides: dict[str, Any] = {
        "poll_interval": timedelta(milliseconds=20),
        "shutdown_grace": timedelta(seconds=1),
    } | options
    return Worker(
        "tester",
        NotificationDispatchLane(),
        hub.db,
        hub.doorbell,
        hub.dispatcher.handle,
        hub.dispatcher.schedule,
        WorkerConfig(**overrides),
    )


def discord_settings(settings: Settings, discord: FakeDiscord, **values: Any) -> Settings:
    chosen = {"data_dir": settings.data_dir, "discord_token": TOKEN, "discord_api_url": discord.url}
    return Settings(_env_file=None, **chosen | values)  # pyright: ignore[reportCallIssue]


@asynccontextmanager
async def open_notification_hub(
    settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel, **values: Any
) -> AsyncGenerator[NotificationHub]:
    assert database_urls.direct
    async with (
        open_hub(discord_settings(settings, discord, **values), database_urls) as hub,
        open_connection(database_urls.direct) as owner,
    ):
        async with hub.transaction() as tx:
            await register_templates(tx, hub.templates)
        yield NotificationHub(hub, owner, discord, travel)


async def has_attempts(notifier: NotificationHub, times: int) -> bool:
    """Whether this many attempts have ended."""
    return await notifier.owner.fetchval("select count(*) from notification.attempts") >= times


async def all_sent(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from notification.requests where state <> 'sent'") == 0


async def database_time(notifier: NotificationHub) -> datetime:
    return await notifier.owner.fetchval("select pabal.now()")


async def travel_to_hour(notifier: NotificationHub, hour: int, minute: int) -> None:
    """Travel to the next time of day in Korea."""
    here = (await database_time(notifier)).astimezone(KOREA_TIMEZONE)
    then = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    await notifier.travel((then if then > here else then + timedelta(days=1)) - here)


async def run_chores(notifier: NotificationHub, *names: str) -> None:
    """Run these chores now."""
    await notifier.owner.execute("delete from pabal.chores where name = any($1::text[])", [*names])
    assert {*names} <= {*await notifier.hub.chores.run_due()}
