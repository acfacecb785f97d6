"""Send notifications to Discord: one or two calls each, and share what the responses say with every worker."""

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
from pabal.notifications.dispatch.outcome import NotificationSent, NotificationSuppressed, SendOutcome
from pabal.queue.outcome import Dead, Done, Outcome, Retry, Snooze

log = get_logger()

OPEN_DM_ROUTE = "open dm"


@dataclass(frozen=True, slots=True)
class DiscordMessage:
    """A rendered notification. Discord recognises a repeated message by its `nonce`."""

    notification_id: UUID
    channel: NotificationChannel
    recipient: str
    dm_channel: str | None
    title: str | None
    body: str = field(repr=False)
    nonce: str
    urgent: bool
    address_unhealthy: bool
    """The address refused the last message. If it accepts this one, mark it as healthy."""


class DiscordCallResult(Protocol):
    """The outcome of one call, and what it means for later calls."""

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
    """Makes the HTTP calls; `outside.discord` implements it."""

    async def open_dm_channel(self, user_id: str) -> DiscordCallResult: ...
    async def send_message(
        self, channel_id: str, *, title: str | None, body: str, nonce: str, urgent: bool
    ) -> DiscordCallResult: ...


class MessageSender(Protocol):
    """Sends messages to Discord. While it `is_rate_limited`, claim no more of them.

    Without a transport, claim only normal ones, which are then suppressed.
    """

    @property
    def has_transport(self) -> bool: ...
    async def send(self, message: DiscordMessage) -> SendOutcome | NotificationSuppressed: ...
    async def is_rate_limited(self) -> bool: ...


class DryRunSender:
    """The sender of a hub with `PABAL_DISCORD_DRY_RUN`: logs the message instead of sending it."""

    has_transport = True

    async def send(self, message: DiscordMessage) -> SendOutcome:
        log.info(
            "discord dry run",
            channel=message.channel,
            recipient=person_pseudonym(message.recipient),
            nonce=message.nonce,
        )
        return NotificationSent({"dry_run": True})

    async def is_rate_limited(self) -> bool:
        return False


class DiscordSender:
    """Sends messages through Discord's API, within its rate limits."""

    has_transport = True

    def __init__(self, db: Database, transport: DiscordTransport) -> None:
        self._db = db
        self._transport = transport
        self._rate_limit = DiscordRateLimit(db)

    async def is_rate_limited(self) -> bool:
        return await self._rate_limit.is_rate_limited()

    async def send(self, message: DiscordMessage) -> SendOutcome:
        if message.channel is not NotificationChannel.USER_DM:
            return await self._post_message(message, message.recipient)
        if message.dm_channel is not None:
            return await self._post_message(message, message.dm_channel)
        opened = await self._open_dm_channel(message)
        return await self._post_message(message, opened) if isinstance(opened, str) else opened

    async def _open_dm_channel(self, message: DiscordMessage) -> str | Retry | Dead | Snooze:
        """Open the recipient's DM channel and return its id, or the outcome of the failed call."""
        async with self._rate_limit.acquire(OPEN_DM_ROUTE, urgent=message.urgent) as snooze:
            if snooze:
                return snooze
            result = await self._transport.open_dm_channel(message.recipient)
            await self._record_result(OPEN_DM_ROUTE, message, result)
        if not isinstance(result.outcome, Done):
            return result.outcome
        if result.id is None:
            return Retry("Discord returned no channel id", code="unreadable")
        async with self._best_effort_write() as tx:
            await save_dm_channel(tx, message.notification_id, result.id)
        return result.id

    async def _post_message(self, message: DiscordMessage, channel_id: str) -> SendOutcome:
        route = f"channel {channel_id}"
        async with self._rate_limit.acquire(route, urgent=message.urgent) as snooze:
            if snooze:
                return snooze
            result = await self._transport.send_message(
                channel_id, title=message.title, body=message.body, nonce=message.nonce, urgent=message.urgent
            )
            if result.channel_missing and channel_id == message.dm_channel:  # says nothing about the person
                async with self._best_effort_write() as tx:
                    await clear_dm_channel(tx, message.recipient, channel_id)
                return Retry("the DM channel no longer exists; opening a new one", delay=timedelta())
            await self._record_result(route, message, result)
        if not isinstance(result.outcome, Done):
            return result.outcome
        if message.address_unhealthy:
            async with self._best_effort_write() as tx:
                await mark_address_healthy(tx, message.channel, message.recipient)
        return NotificationSent({"channel_id": channel_id} | ({} if result.id is None else {"message_id": result.id}))

    async def _record_result(self, route: str, message: DiscordMessage, result: DiscordCallResult) -> None:
        """Store rate limits and refusals, so that every worker respects them."""
        if result.is_global and isinstance(result.outcome, Snooze):
            log.warning("discord paused", error=result.outcome.reason, seconds=result.outcome.delay.total_seconds())
        async with self._best_effort_write() as tx:
            if result.pause is not None:
                await self._rate_limit.pause_route(tx, ALL_ROUTES if result.is_global else route, result.pause)
            if result.address_refused and isinstance(result.outcome, Dead):
                error = result.outcome.error
                if await mark_address_unhealthy(tx, message.notification_id, error):
                    log.warning(
                        "address unhealthy",
                        channel=message.channel,
                        recipient=person_pseudonym(message.recipient),
                        error=error,
                    )

    @asynccontextmanager
    async def _best_effort_write(self) -> AsyncGenerator[Tx]:
        """Write without failing: the call to Discord has already happened."""
        try:
            async with self._db.autocommit() as tx:
                yield tx
        except PabalError as error:
            log.warning("discord result not stored", error=str(error))
