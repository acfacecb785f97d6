"""Dispatch: a claimed request is looked at again, written in its recipient's language, handed to its channel."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from pabal.core.errors import Invalid, PabalError, Unavailable
from pabal.core.log import get_logger
from pabal.db.faults import Contended
from pabal.db.pool import Database
from pabal.db.queries import beside
from pabal.notifications import storm
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.discord import Note, Outlet
from pabal.notifications.hands import Hands
from pabal.notifications.lane import HeldRequest
from pabal.notifications.plan import Channel, Flags, Later, Reason, Send, Step, Suppress, decide, is_urgent
from pabal.notifications.preferences import flags_of
from pabal.notifications.render import render
from pabal.notifications.settle import Suppressed, Toasted
from pabal.notifications.template import Template
from pabal.notifications.turns import AWAY
from pabal.queue.backoff import SPREAD
from pabal.queue.outcome import Dead, Outcome, Retry, Snooze
from pabal.queue.worker import Whom

Q = beside(__file__)
log = get_logger()

SOON = (timedelta(seconds=3), timedelta(seconds=15))
LATER = (timedelta(seconds=30), timedelta(seconds=90))


@dataclass(frozen=True, slots=True)
class Case:
    """A request as it stands now: what its recipient wants, which language they read, where their DMs are."""

    flags: Flags
    locale: str | None
    dm_channel_id: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Reader:
    """What is known of a recipient besides their wishes."""

    locale: str | None
    dm_channel_id: str | None
    now: datetime


class Dispatcher:
    """Says what becomes of each request. `locale` is for those whose recipient never said which language they read."""

    def __init__(self, db: Database, catalogue: Catalogue, outlet: Outlet, locale: str) -> None:
        self._db = db
        self._catalogue = catalogue
        self._outlet = outlet
        self._locale = locale
        self._hands = Hands()

    async def rota(self) -> list[Whom]:
        """Whose requests are to be claimed: of each kind as many as it has hands left."""
        return self._hands.rota(quiet=await self._outlet.is_quiet())

    async def handle(self, request: HeldRequest) -> Outcome:
        with self._hands.holding(request):
            try:
                return await self._dispatch(request)
            except (Unavailable, Contended) as error:  # the database's trouble, and no attempt of ours
                return Snooze(str(error), AWAY)

    async def _dispatch(self, request: HeldRequest) -> Outcome:
        try:
            template = self._catalogue.get(request.template_key)
        except Invalid as error:
            return Dead(str(error), code="unrenderable")
        channel = Channel(request.recipient_type)
        case = await self._look(request)
        decision = decide(channel, template.category, template.criticality, case.flags, now=case.now)
        match decision:
            case Suppress(reason, steps):
                return Suppressed.because(reason, (Step.AT_SEND, *steps))
            case Later(until):
                return Snooze("marketing waits for the morning", until - case.now)
            case Send(overrides=overrides):
                return await self._send(request, template, case, overrides)
            case _:
                assert_never(decision)

    async def _send(self, request: HeldRequest, template: Template, case: Case, overrides: Sequence[Reason]) -> Outcome:
        urgent = is_urgent(template.category, template.criticality)
        if urgent:
            async with self._db.transaction() as tx:
                held_back = await storm.guard(tx, request, overrides)
            if held_back is not None:
                log.warning("storm held", request=str(request.id), step=held_back)
                return Suppressed.because(Reason.STORM, (Step.AT_SEND, held_back))
        channel, locale = Channel(request.recipient_type), request.locale or case.locale or self._locale
        try:
            rendered = render(template, channel, locale, request.payload)
        except PabalError as error:
            return Dead(str(error), code="unrenderable")
        if channel is Channel.DASHBOARD_TOAST:
            return Toasted(rendered, locale)
        note = Note(
            request=request.id,
            channel=channel,
            recipient=request.recipient_id,
            dm_channel=case.dm_channel_id,
            title=rendered.title,
            body=rendered.body,
            nonce=request.nonce,
            urgent=urgent,
            unhealthy=channel in case.flags.unhealthy,
        )
        outcome = await self._outlet.send(note)
        if isinstance(outcome, Retry) and outcome.after is None:
            return replace(outcome, after=patience(request.attempt, random.random(), urgent=urgent))  # noqa: S311 jitter
        return outcome

    async def _look(self, request: HeldRequest) -> Case:
        async with self._db.autocommit() as tx:
            flags = await flags_of(tx, [request.recipient_id])
            reader = await tx.one(Reader, Q.reader, recipient=request.recipient_id)
        return Case(flags[request.recipient_id], reader.locale, reader.dm_channel_id, reader.now)


def patience(attempt: int, chance: float, *, urgent: bool) -> timedelta:
    """How long until the next of three attempts: long enough for a short outage, short enough for Discord's nonce."""
    waits = SOON if urgent else LATER
    return waits[min(attempt, len(waits)) - 1] * (1 - SPREAD + 2 * SPREAD * chance)
