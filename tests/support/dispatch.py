"""Requests as they come to be sent: a hub, a Discord, and ways to ask, to dispatch and to look behind it."""

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
from pabal.notifications.dispatch.settle import NotificationDispatchLane
from pabal.notifications.requests import NotificationDraft, request_notifications
from pabal.notifications.templates.catalogue import register_templates
from pabal.queue.worker import Worker, WorkerConfig
from pabal.settings import Settings
from support.clusters import Connection, connected
from support.fake_discord import TOKEN, Discord
from support.lane_under_test import Travel
from support.wait import until

AUDIT = "900"
"""A guild's audit channel."""
NUKE = {"guild": "Seoul", "actor": "mallory", "action": "ban", "count": 9}
PAID = {"item": "Pro", "amount": 9900, "currency": "KRW"}
NEWS = {"headline": "Sale", "story": "Everything must go."}
PAYLOADS = {"antinuke.triggered": NUKE, "payment.succeeded": PAID, "marketing.news": NEWS}


@dataclass(slots=True)
class Office:
    """A hub whose notices go to a Discord on loopback."""

    hub: Hub
    owner: Connection
    discord: Discord
    travel: Travel

    async def ask(self, template: str = "payment.succeeded", recipient: str = "100", **how: Any) -> UUID:
        """Ask for a DM, unless another channel is named."""
        said: dict[str, Any] = {"channel": NotificationChannel.USER_DM, "payload": PAYLOADS.get(template, {})} | how
        draft = NotificationDraft(template=self.hub.templates.get(template), recipient=recipient, **said)
        async with self.hub.transaction() as tx:
            [asked] = await request_notifications(tx, [draft], HUB_ACTOR)
        return asked.id

    async def dispatch(self) -> None:
        """Send what is due now, all of it; what falls due later stays."""
        async with self.working():
            await until(self.is_idle)

    @asynccontextmanager
    async def working(self, hub: Hub | None = None, **pace: Any) -> AsyncGenerator[Worker[Any, Any]]:
        worker = employ(hub or self.hub, **pace)
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
        found = await self.owner.fetchrow("select * from notification.requests where id = $1", request)
        return dict(found or {})

    async def state(self, request: UUID) -> tuple[str, str | None, int]:
        """The state, the reason, and how many attempts were spent."""
        row = await self.row(request)
        return row["state"], row["reason"], row["attempt_count"]

    async def attempts(self, request: UUID) -> list[tuple[str, int]]:
        rows = await self.owner.fetch(
            "select outcome, attempt from notification.attempts where request_id = $1 order by id", request
        )
        return [(row["outcome"], row["attempt"]) for row in rows]

    async def knows(self, dm: str, recipient: str = "100") -> None:
        """Let somebody's DM channel have been opened before."""
        await self.owner.execute(
            "insert into notification.addresses (recipient_type, recipient_id, dm_channel_id) "
            "values ('user_dm', $1, $2)",
            recipient,
            dm,
        )

    async def audited(self, action: str) -> list[dict[str, Any]]:
        rows = await self.owner.fetch("select subject, details::text from pabal.audit_log where action = $1", action)
        return [dict(row) for row in rows]


def employ(hub: Hub, **pace: Any) -> Worker[Any, Any]:
    how: dict[str, Any] = {"poll_interval": timedelta(milliseconds=20), "shutdown_grace": timedelta(seconds=1)} | pace
    return Worker(
        "tester",
        NotificationDispatchLane(),
        hub.db,
        hub.doorbell,
        hub.dispatcher.handle,
        hub.dispatcher.schedule,
        WorkerConfig(**how),
    )


def with_discord(settings: Settings, there: Discord, **said: Any) -> Settings:
    chosen = {"data_dir": settings.data_dir, "discord_token": TOKEN, "discord_api_url": there.url}
    return Settings(_env_file=None, **chosen | said)  # pyright: ignore[reportCallIssue]


@asynccontextmanager
async def office(
    settings: Settings, database_urls: DatabaseUrls, there: Discord, travel: Travel, **said: Any
) -> AsyncGenerator[Office]:
    assert database_urls.direct
    async with (
        open_hub(with_discord(settings, there, **said), database_urls) as hub,
        connected(database_urls.direct) as owner,
    ):
        async with hub.transaction() as tx:
            await register_templates(tx, hub.templates)
        yield Office(hub, owner, there, travel)


async def tried(desk: Office, times: int) -> bool:
    """Whether so many attempts have ended."""
    return await desk.owner.fetchval("select count(*) from notification.attempts") >= times


async def all_sent(owner: Connection) -> bool:
    return await owner.fetchval("select count(*) from notification.requests where state <> 'sent'") == 0


async def now(desk: Office) -> datetime:
    return await desk.owner.fetchval("select pabal.now()")


async def at(desk: Office, hour: int, minute: int) -> None:
    """Travel on to the next time the clocks in Korea say this."""
    here = (await now(desk)).astimezone(KOREA_TIMEZONE)
    then = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    await desk.travel((then if then > here else then + timedelta(days=1)) - here)


async def chore(desk: Office, *names: str) -> None:
    """Do these chores now."""
    await desk.owner.execute("delete from pabal.chores where name = any($1::text[])", [*names])
    assert {*names} <= {*await desk.hub.chores.run_due()}
