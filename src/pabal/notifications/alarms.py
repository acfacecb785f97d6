"""Alarms: what the hub itself has to say to its operator, and emergencies that did not get through.

The operator is reached in one Discord channel. Where none is set, an alarm is a line in the log. Nothing is raised
about an alarm that fails in turn: one would make the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pabal import limits
from pabal.core.actor import HUB
from pabal.core.errors import PabalError, TooMany
from pabal.core.log import get_logger
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.plan import Channel
from pabal.notifications.request import Draft, ask_each, wrong

Q = beside(__file__)
log = get_logger()

UNDELIVERED = "system.undelivered"
AGAIN = timedelta(hours=1)
"""How long an alarm that stays true is not said again."""
LONGEST_ERROR = 300
LATE = timedelta(minutes=5)
"""How long an emergency may be on its way before somebody is told in another."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something the operator must know. `about` tells one from the next of its kind; a `lasting` one is said hourly."""

    template_key: str
    about: str
    payload: Mapping[str, Any] = field(repr=False)
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """Where alarms go, and in whose words."""

    catalogue: Catalogue
    channel: str | None


@dataclass(frozen=True, slots=True)
class Lost:
    """An emergency that failed, or is late."""

    id: UUID
    recipient_type: str
    recipient_id: str
    template_key: str
    payload: dict[str, Any]
    locale: str | None
    last_error: str
    correlation_id: str | None


async def sound(tx: Tx, operator: Operator, alarms: Sequence[Alarm]) -> int:
    """Tell the operator, each alarm once; how many were new."""
    if not alarms:
        return 0
    if operator.channel is None:
        return sum([await _logged(tx, alarm) for alarm in alarms])
    hour = await tx.value(Q.hour)
    drafts = [
        Draft(
            channel=Channel.GUILD_AUDIT_CHANNEL,
            recipient=operator.channel,
            template=operator.catalogue.get(alarm.template_key),
            payload=alarm.payload,
            dedupe_key=f"alarm:{alarm.template_key}:{alarm.about}{f':{hour}' if alarm.lasting else ''}"[-255:],
        )
        for alarm in alarms
    ]
    return await _asked(tx, drafts)


async def raise_undelivered(tx: Tx, operator: Operator, batch: int) -> int:
    """Let no emergency go unheard: a person who was not reached finds it in their dashboard, and the operator is told.

    However it failed: refused, given up, or never settled by a worker that died. One that Discord keeps waiting is told
    there as well, and is still tried.
    """
    lost = await tx.all(Lost, Q.undelivered, late=LATE, batch=batch)
    drafts = [draft for each in lost if each.template_key != UNDELIVERED for draft in toasts(operator.catalogue, each)]
    await _asked(tx, drafts)
    for each in lost:
        log.error("emergency undelivered", request=str(each.id), template=each.template_key, why=each.last_error)
    if operator.channel is not None:
        await sound(tx, operator, [told(each) for each in lost if each.template_key != UNDELIVERED])
    return len(lost)


def toasts(catalogue: Catalogue, lost: Lost) -> list[Draft]:
    """The same words in the dashboard; without a text for it, the bare fact."""
    if lost.recipient_type != Channel.USER_DM:
        return []
    said: dict[str, Any] = {"channel": Channel.DASHBOARD_TOAST, "recipient": lost.recipient_id, "locale": lost.locale}
    said |= {"dedupe_key": f"undelivered:{lost.id}", "correlation_id": lost.correlation_id}
    if lost.template_key in catalogue:
        same = Draft(template=catalogue.get(lost.template_key), payload=lost.payload, **said)
        if not [*wrong(same)]:
            return [same]
    return [Draft(template=catalogue.get(UNDELIVERED), payload=told(lost).payload, **said)]


def told(lost: Lost) -> Alarm:
    facts = {"template": lost.template_key, "recipient": f"{lost.recipient_type} {lost.recipient_id}"}
    return Alarm(UNDELIVERED, str(lost.id), {**facts, "error": lost.last_error[:LONGEST_ERROR]})


async def _asked(tx: Tx, drafts: Sequence[Draft]) -> int:
    """Ask for each: one that cannot be must not keep the others back."""
    new = 0
    for draft, asked in zip(drafts, await ask_each(tx, drafts, HUB) if drafts else (), strict=True):
        if isinstance(asked, PabalError):
            log.error("alarm refused", template=draft.template.key, channel=draft.channel, why=str(asked))
        else:
            new += not asked.repeated
    return new


async def _logged(tx: Tx, alarm: Alarm) -> bool:
    try:
        await limits.take(tx, Limit("alarm", 1, AGAIN), f"{alarm.template_key}:{alarm.about}")
    except TooMany:
        return False
    log.warning("alarm raised", template=alarm.template_key, **alarm.payload)
    return True
