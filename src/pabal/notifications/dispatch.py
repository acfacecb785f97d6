"""Dispatch: a claimed request is looked at again, written in its recipient's language, handed to its channel."""

import random
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from pabal.core.backoff import JITTER
from pabal.core.errors import Invalid, PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.errors import RetryableError
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.notifications.decide import (
    Criticality,
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
from pabal.notifications.discord import DiscordMessage, MessageSender
from pabal.notifications.discord_rate_limit import REQUEUE_DELAY
from pabal.notifications.lane import ClaimedNotification
from pabal.notifications.preferences import load_recipient_profiles
from pabal.notifications.render import render_notification
from pabal.notifications.settle import NotificationSuppressed, ToastDelivered
from pabal.notifications.storm import check_storm_guard
from pabal.notifications.templates import Template, TemplateCatalogue
from pabal.queue.outcome import Dead, Outcome, Retry, Snooze
from pabal.queue.worker import ClaimFilter

DISPATCH_CONCURRENCY = 100
"""Of one worker. Toasts wait for nobody and may have them all, and have at least those that nobody else may."""
DISCORD_CHANNELS = (NotificationChannel.GUILD_AUDIT_CHANNEL, NotificationChannel.USER_DM)
URGENT_PRIORITIES = (Criticality.EMERGENCY.priority,)
OTHER_PRIORITIES = (Criticality.IMPORTANT.priority, Criticality.NORMAL.priority)


@dataclass(frozen=True, slots=True)
class ConcurrencyShare:
    """Requests of the same kind, and the most hands they may have."""

    channels: tuple[NotificationChannel, ...]
    priorities: tuple[int, ...]
    max_in_flight: int


CONCURRENCY_SHARES = (
    ConcurrencyShare(DISCORD_CHANNELS, URGENT_PRIORITIES, 20),
    ConcurrencyShare(
        (NotificationChannel.DASHBOARD_TOAST,), (*URGENT_PRIORITIES, *OTHER_PRIORITIES), DISPATCH_CONCURRENCY
    ),
    ConcurrencyShare((NotificationChannel.USER_DM,), OTHER_PRIORITIES, 40),
    ConcurrencyShare((NotificationChannel.GUILD_AUDIT_CHANNEL,), OTHER_PRIORITIES, 20),
)
SHARE_BY_KIND = {
    (channel, priority): share
    for share in CONCURRENCY_SHARES
    for channel in share.channels
    for priority in share.priorities
}


class DispatchConcurrency:
    """Counts whose requests are in hand."""

    def __init__(self) -> None:
        self._in_flight: Counter[ConcurrencyShare] = Counter()

    def schedule(self, *, rate_limited: bool) -> list[ClaimFilter]:
        """Whose requests to claim, and how many of each; none for Discord while it is quiet."""
        return [
            {
                "channels": [*share.channels],
                "priorities": [*share.priorities],
                "most": self._free_slots(share, rate_limited=rate_limited),
            }
            for share in CONCURRENCY_SHARES
        ]

    @contextmanager
    def count_in_flight(self, request: ClaimedNotification) -> Generator[None]:
        share = SHARE_BY_KIND[NotificationChannel(request.recipient_type), request.priority]
        self._in_flight[share] += 1
        try:
            yield
        finally:
            self._in_flight[share] -= 1

    def _free_slots(self, share: ConcurrencyShare, *, rate_limited: bool) -> int:
        if rate_limited and not {*DISCORD_CHANNELS}.isdisjoint(share.channels):
            return 0
        return max(0, share.max_in_flight - self._in_flight[share])


Q = load_queries(__file__)
log = get_logger()

URGENT_RETRY_DELAYS = (timedelta(seconds=3), timedelta(seconds=15))
RETRY_DELAYS = (timedelta(seconds=30), timedelta(seconds=90))


@dataclass(frozen=True, slots=True)
class SendContext:
    """A request as it stands now: what its recipient wants, which language they read, where their DMs are."""

    profile: RecipientProfile
    locale: str | None
    dm_channel_id: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class RecipientDetails:
    """What is known of a recipient besides their wishes."""

    locale: str | None
    dm_channel_id: str | None
    now: datetime


class NotificationDispatcher:
    """Says what becomes of each request. `locale` is for those whose recipient never said which language they read."""

    def __init__(self, db: Database, catalogue: TemplateCatalogue, sender: MessageSender, locale: str) -> None:
        self._db = db
        self._catalogue = catalogue
        self._sender = sender
        self._locale = locale
        self._concurrency = DispatchConcurrency()

    async def schedule(self) -> list[ClaimFilter]:
        """Whose requests are to be claimed: of each kind as many as it has hands left."""
        return self._concurrency.schedule(rate_limited=await self._sender.is_rate_limited())

    async def handle(self, request: ClaimedNotification) -> Outcome:
        with self._concurrency.count_in_flight(request):
            try:
                return await self._dispatch(request)
            except (Unavailable, RetryableError) as error:  # the database's trouble, and no attempt of ours
                return Snooze(str(error), REQUEUE_DELAY)

    async def _dispatch(self, request: ClaimedNotification) -> Outcome:
        try:
            template = self._catalogue.get(request.template_key)
        except Invalid as error:
            return Dead(str(error), code="unrenderable")
        channel = NotificationChannel(request.recipient_type)
        case = await self._load_context(request)
        decision = decide_delivery(channel, template.category, template.criticality, case.profile, now=case.now)
        match decision:
            case Suppress(reason, steps):
                return NotificationSuppressed.for_reason(reason, (DecisionStep.AT_SEND, *steps))
            case SendLater(until):
                return Snooze("marketing waits for the morning", until - case.now)
            case SendNow(overrides=overrides):
                return await self._send(request, template, case, overrides)
            case _:
                assert_never(decision)

    async def _send(
        self,
        request: ClaimedNotification,
        template: Template,
        context: SendContext,
        overrides: Sequence[SuppressReason],
    ) -> Outcome:
        urgent = is_urgent(template.category, template.criticality)
        if urgent:
            async with self._db.transaction() as tx:
                held_back = await check_storm_guard(tx, request, overrides)
            if held_back is not None:
                log.warning("storm held", request=str(request.id), step=held_back)
                return NotificationSuppressed.for_reason(SuppressReason.STORM, (DecisionStep.AT_SEND, held_back))
        channel, locale = NotificationChannel(request.recipient_type), request.locale or context.locale or self._locale
        try:
            rendered = render_notification(template, channel, locale, request.payload)
        except PabalError as error:
            return Dead(str(error), code="unrenderable")
        if channel is NotificationChannel.DASHBOARD_TOAST:
            return ToastDelivered(rendered, locale)
        note = DiscordMessage(
            notification_id=request.id,
            channel=channel,
            recipient=request.recipient_id,
            dm_channel=context.dm_channel_id,
            title=rendered.title,
            body=rendered.body,
            nonce=request.nonce,
            urgent=urgent,
            address_unhealthy=channel in context.profile.unhealthy,
        )
        outcome = await self._sender.send(note)
        if isinstance(outcome, Retry) and outcome.delay is None:
            return replace(outcome, delay=notification_retry_delay(request.attempt, random.random(), urgent=urgent))  # noqa: S311
        return outcome

    async def _load_context(self, request: ClaimedNotification) -> SendContext:
        async with self._db.autocommit() as tx:
            flags = await load_recipient_profiles(tx, [request.recipient_id])
            reader = await tx.one(RecipientDetails, Q.find_recipient_details, recipient=request.recipient_id)
        return SendContext(flags[request.recipient_id], reader.locale, reader.dm_channel_id, reader.now)


def notification_retry_delay(attempt: int, jitter: float, *, urgent: bool) -> timedelta:
    """How long until the next of three attempts: long enough for a short outage, short enough for Discord's nonce."""
    waits = URGENT_RETRY_DELAYS if urgent else RETRY_DELAYS
    return waits[min(attempt, len(waits)) - 1] * (1 - JITTER + 2 * JITTER * jitter)
