"""Dispatch a claimed notification: decide again, render it in the recipient's language, hand it to its channel."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from pabal.core.backoff import JITTER
from pabal.core.errors import Invalid, PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.notifications.decision.decide import (
    DecisionStep,
    NotificationChannel,
    RecipientProfile,
    SendLater,
    SendNow,
    Suppress,
    SuppressReason,
    decide_delivery,
    is_urgent,
)
from pabal.notifications.dispatch.concurrency import DispatchConcurrency
from pabal.notifications.dispatch.discord import DiscordMessage, MessageSender
from pabal.notifications.dispatch.discord_rate_limit import REQUEUE_DELAY
from pabal.notifications.dispatch.outcome import DispatchOutcome, NotificationSuppressed, ToastRendered
from pabal.notifications.dispatch.storm_guard import check_storm_guard
from pabal.notifications.lane import ClaimedNotification, NotificationClaimFilter
from pabal.notifications.people.preferences import load_recipient_profiles
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import Template
from pabal.queue.outcome import Dead, Retry, Snooze
from pabal.queue.worker import ScheduledClaim

Q = load_queries(__file__)
log = get_logger()

URGENT_RETRY_DELAYS = (timedelta(seconds=3), timedelta(seconds=15))
RETRY_DELAYS = (timedelta(seconds=30), timedelta(seconds=90))


@dataclass(frozen=True, slots=True)
class SendContext:
    """What is known about the recipient at the time of sending."""

    profile: RecipientProfile
    locale: str | None
    dm_channel_id: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class RecipientDetails:
    """The row of `find_recipient_details`."""

    locale: str | None
    dm_channel_id: str | None
    now: datetime


class NotificationDispatcher:
    """The handler of the notification worker. `locale` is for recipients whose language is not known."""

    def __init__(self, db: Database, catalogue: TemplateCatalogue, sender: MessageSender, locale: str) -> None:
        self._db = db
        self._catalogue = catalogue
        self._sender = sender
        self._locale = locale
        self._concurrency = DispatchConcurrency()

    async def schedule(self) -> list[ScheduledClaim[NotificationClaimFilter]]:
        """Return the next claims: of each kind as many as it has free slots."""
        return self._concurrency.schedule(
            rate_limited=await self._sender.is_rate_limited(), has_transport=self._sender.has_transport
        )

    async def handle(self, notification: ClaimedNotification) -> DispatchOutcome:
        with self._concurrency.count_in_flight(notification):
            try:
                return await self._dispatch(notification)
            except (Unavailable, RetryableError) as error:  # the database failed, not the attempt
                return Snooze(str(error), REQUEUE_DELAY)

    async def _dispatch(self, notification: ClaimedNotification) -> DispatchOutcome:
        try:
            template = self._catalogue.get(notification.template_key)
        except Invalid as error:
            return Dead(str(error), code="unrenderable")
        channel = NotificationChannel(notification.recipient_type)
        context = await self._load_context(notification)
        decision = decide_delivery(channel, template.category, template.criticality, context.profile, now=context.now)
        match decision:
            case Suppress(reason, steps):
                return NotificationSuppressed(reason, (DecisionStep.AT_SEND, *steps))
            case SendLater(until):
                return Snooze("marketing waits until 08:00 in Korea", until - context.now)
            case SendNow(overrides=overrides):
                return await self._send(notification, template, context, overrides)
            case _:
                assert_never(decision)

    async def _send(
        self,
        notification: ClaimedNotification,
        template: Template,
        context: SendContext,
        overrides: Sequence[SuppressReason],
    ) -> DispatchOutcome:
        urgent = is_urgent(template.category, template.criticality)
        if urgent:
            async with self._db.transaction() as tx:
                storm_step = await check_storm_guard(tx, notification, overrides)
            if storm_step is not None:
                log.warning("emergency suppressed", notification_id=str(notification.id), step=storm_step)
                return NotificationSuppressed(SuppressReason.STORM, (DecisionStep.AT_SEND, storm_step))
        channel = NotificationChannel(notification.recipient_type)
        locale = notification.locale or context.locale or self._locale
        try:
            rendered = render_notification(template, channel, locale, notification.payload)
        except PabalError as error:
            return Dead(str(error), code="unrenderable")
        if channel is NotificationChannel.DASHBOARD_TOAST:
            return ToastRendered(rendered, locale)
        return await self._send_to_discord(notification, channel, rendered, context, urgent=urgent)

    async def _send_to_discord(
        self,
        notification: ClaimedNotification,
        channel: NotificationChannel,
        rendered: RenderedText,
        context: SendContext,
        *,
        urgent: bool,
    ) -> DispatchOutcome:
        message = DiscordMessage(
            notification_id=notification.id,
            channel=channel,
            recipient=notification.recipient_id,
            dm_channel=context.dm_channel_id,
            title=rendered.title,
            body=rendered.body,
            nonce=notification.nonce,
            urgent=urgent,
            address_unhealthy=channel in context.profile.unhealthy,
        )
        outcome = await self._sender.send(message)
        if isinstance(outcome, Retry) and outcome.delay is None:
            delay = notification_retry_delay(notification.attempt, random.random(), urgent=urgent)  # noqa: S311 jitter
            return replace(outcome, delay=delay)
        return outcome

    async def _load_context(self, notification: ClaimedNotification) -> SendContext:
        recipient = (notification.recipient_id, notification.source_service)
        async with self._db.autocommit() as tx:
            profiles = await load_recipient_profiles(tx, [recipient])
            details = await tx.one(RecipientDetails, Q.find_recipient_details, recipient=notification.recipient_id)
        return SendContext(profiles[recipient], details.locale, details.dm_channel_id, details.now)


def notification_retry_delay(attempt: int, jitter: float, *, urgent: bool) -> timedelta:
    """The delay before the next of three attempts. `jitter` is in [0, 1).

    Long enough to outlast a short outage, short enough that Discord still remembers the nonce.
    """
    delays = URGENT_RETRY_DELAYS if urgent else RETRY_DELAYS
    return delays[min(attempt, len(delays)) - 1] * (1 - JITTER + 2 * JITTER * jitter)
