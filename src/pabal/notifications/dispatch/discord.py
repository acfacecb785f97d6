"""The line to Discord: a note becomes one or two calls, and every worker learns from each answer."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.core.errors import PabalError
from pabal.core.log import get_logger
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.addresses import (
    clear_dm_channel,
    mark_address_healthy,
    mark_address_unhealthy,
    save_dm_channel,
)
from pabal.notifications.dispatch.discord_rate_limit import ALL_ROUTES, DiscordRateLimit
from pabal.notifications.dispatch.settle import NotificationSent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze

log = get_logger()

OPEN_DM_ROUTE = "opening"


@dataclass(frozen=True, slots=True)
class DiscordMessage:
    """A notice as it goes out. `nonce` is what Discord tells a repeat by."""

    notification_id: UUID
    channel: NotificationChannel
    recipient: str
    dm_channel: str | None
    title: str | None
    body: str = field(repr=False)
    nonce: str
    urgent: bool
    address_unhealthy: bool
    """Whether the address refused us the last time: then taking this heals it."""


class DiscordCallResult(Protocol):
    """What became of a call, and what follows from it for the next ones."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def id(self) -> str | None: ...
    @property
    def pause(self) -> timedelta | None: ...
    @property
    def is_global(self) -> bool: ...
    @property
    def address_refused(self) -> bool: ...
    @property
    def channel_missing(self) -> bool: ...


class DiscordTransport(Protocol):
    """Makes the calls. How is none of our business."""

    async def open_dm_channel(self, user_id: str) -> DiscordCallResult: ...
    async def send_message(
        self, channel_id: str, *, title: str | None, body: str, nonce: str, urgent: bool
    ) -> DiscordCallResult: ...


class MessageSender(Protocol):
    """Where notices for Discord go. While it `is_quiet` there is no use in bringing any."""

    async def send(self, message: DiscordMessage) -> Outcome: ...
    async def is_rate_limited(self) -> bool: ...


class DryRunSender:
    """A hub without a token: what would be sent is written down instead."""

    async def send(self, message: DiscordMessage) -> Outcome:
        log.info(
            "discord dry", channel=message.channel, recipient=person_pseudonym(message.recipient), nonce=message.nonce
        )
        return NotificationSent({"dry_run": True})

    async def is_rate_limited(self) -> bool:
        return False


class DiscordSender:
    """The line of one process."""

    def __init__(self, db: Database, transport: DiscordTransport) -> None:
        self._db = db
        self._transport = transport
        self._rate_limit = DiscordRateLimit(db)

    async def is_rate_limited(self) -> bool:
        return await self._rate_limit.is_rate_limited()

    async def send(self, message: DiscordMessage) -> Outcome:
        if message.channel is not NotificationChannel.USER_DM:
            return await self._post_message(message, message.recipient)
        if message.dm_channel is not None:
            return await self._post_message(message, message.dm_channel)
        opened = await self._open_dm_channel(message)
        return await self._post_message(message, opened) if isinstance(opened, str) else opened

    async def _open_dm_channel(self, message: DiscordMessage) -> str | Outcome:
        """The user's DM channel, or what becomes of the note without one."""
        async with self._rate_limit.acquire(OPEN_DM_ROUTE, urgent=message.urgent) as not_now:
            if not_now:
                return not_now
            answer = await self._transport.open_dm_channel(message.recipient)
            await self._record_result(OPEN_DM_ROUTE, message, answer)
        if answer.outcome != DONE or answer.id is None:
            return answer.outcome
        async with self._best_effort_write() as tx:
            await save_dm_channel(tx, message.notification_id, answer.id)
        return answer.id

    async def _post_message(self, message: DiscordMessage, channel_id: str) -> Outcome:
        route = f"channel {channel_id}"
        async with self._rate_limit.acquire(route, urgent=message.urgent) as not_now:
            if not_now:
                return not_now
            answer = await self._transport.send_message(
                channel_id, title=message.title, body=message.body, nonce=message.nonce, urgent=message.urgent
            )
            if (
                answer.channel_missing and channel_id == message.dm_channel
            ):  # the channel is gone, which says nothing of the person
                async with self._best_effort_write() as tx:
                    await clear_dm_channel(tx, message.recipient, channel_id)
                return Retry("the DM channel was gone; another is opened", delay=timedelta())
            await self._record_result(route, message, answer)
        if answer.outcome != DONE:
            return answer.outcome
        if message.address_unhealthy:
            async with self._best_effort_write() as tx:
                await mark_address_healthy(tx, message.channel, message.recipient)
        return NotificationSent({"channel_id": channel_id} | ({} if answer.id is None else {"message_id": answer.id}))

    async def _record_result(self, route: str, message: DiscordMessage, result: DiscordCallResult) -> None:
        """Tell every worker what the answer said about the next calls."""
        if result.is_global and isinstance(result.outcome, Snooze):
            log.warning("discord quiet", error=result.outcome.reason, seconds=result.outcome.delay.total_seconds())
        async with self._best_effort_write() as tx:
            if result.pause is not None:
                await self._rate_limit.pause_route(tx, ALL_ROUTES if result.is_global else route, result.pause)
            if result.address_refused and isinstance(result.outcome, Dead):
                why = result.outcome.error
                if await mark_address_unhealthy(tx, message.notification_id, why):
                    log.warning(
                        "address refuses",
                        channel=message.channel,
                        recipient=person_pseudonym(message.recipient),
                        error=why,
                    )

    @asynccontextmanager
    async def _best_effort_write(self) -> AsyncGenerator[Tx]:
        """It was said or not, whatever we can write down of it."""
        try:
            async with self._db.autocommit() as tx:
                yield tx
        except PabalError as error:
            log.warning("discord unwritten", error=str(error))
