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
from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import PabalError, RateLimited
from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.requests import NotificationDraft, notification_draft_errors, try_request_notifications
from pabal.notifications.templates.catalogue import TemplateCatalogue

Q = load_queries(__file__)
log = get_logger()

UNDELIVERED_TEMPLATE = "system.undelivered"
ALERT_REPEAT_INTERVAL = timedelta(hours=1)
"""How long an alarm that stays true is not said again."""
MAX_ERROR_LENGTH = 300
LATE_AFTER = timedelta(minutes=5)
"""How long an emergency may be on its way before somebody is told in another."""


@dataclass(frozen=True, slots=True)
class OperatorAlert:
    """Something the operator must know. `about` tells one from the next of its kind; a `lasting` one is said hourly."""

    template_key: str
    subject: str
    payload: Mapping[str, Any] = field(repr=False)
    is_ongoing: bool = False


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Where alarms go, and in whose words."""

    catalogue: TemplateCatalogue
    channel_id: str | None


@dataclass(frozen=True, slots=True)
class UndeliveredEmergency:
    """An emergency that failed, or is late."""

    id: UUID
    recipient_type: str
    recipient_id: str
    template_key: str
    payload: dict[str, Any]
    locale: str | None
    last_error: str
    correlation_id: str | None


async def send_operator_alerts(tx: Tx, target: AlertTarget, alerts: Sequence[OperatorAlert]) -> int:
    """Tell the operator, each alarm once; how many were new."""
    if not alerts:
        return 0
    if target.channel_id is None:
        return sum([await _log_alert(tx, alarm) for alarm in alerts])
    hour = await tx.value(Q.current_hour)
    drafts = [
        NotificationDraft(
            channel=NotificationChannel.GUILD_AUDIT_CHANNEL,
            recipient=target.channel_id,
            template=target.catalogue.get(alarm.template_key),
            payload=alarm.payload,
            dedupe_key=f"alarm:{alarm.template_key}:{alarm.subject}{f':{hour}' if alarm.is_ongoing else ''}"[-255:],
        )
        for alarm in alerts
    ]
    return await _request_alerts(tx, drafts)


async def alert_undelivered_emergencies(tx: Tx, target: AlertTarget, batch: int) -> int:
    """Let no emergency go unheard: a person who was not reached finds it in their dashboard, and the operator is told.

    However it failed: refused, given up, or never settled by a worker that died. One that Discord keeps waiting is told
    there as well, and is still tried.
    """
    lost = await tx.all(UndeliveredEmergency, Q.mark_undelivered_emergencies, late=LATE_AFTER, batch=batch)
    drafts = [
        draft
        for each in lost
        if each.template_key != UNDELIVERED_TEMPLATE
        for draft in fallback_toast_drafts(target.catalogue, each)
    ]
    await _request_alerts(tx, drafts)
    for each in lost:
        log.error("emergency undelivered", request=str(each.id), template=each.template_key, error=each.last_error)
    if target.channel_id is not None:
        await send_operator_alerts(
            tx, target, [undelivered_alert(each) for each in lost if each.template_key != UNDELIVERED_TEMPLATE]
        )
    return len(lost)


def fallback_toast_drafts(catalogue: TemplateCatalogue, emergency: UndeliveredEmergency) -> list[NotificationDraft]:
    """The same words in the dashboard; without a text for it, the bare fact."""
    if emergency.recipient_type != NotificationChannel.USER_DM:
        return []
    said: dict[str, Any] = {
        "channel": NotificationChannel.DASHBOARD_TOAST,
        "recipient": emergency.recipient_id,
        "locale": emergency.locale,
    }
    said |= {"dedupe_key": f"undelivered:{emergency.id}", "correlation_id": emergency.correlation_id}
    if emergency.template_key in catalogue:
        same = NotificationDraft(template=catalogue.get(emergency.template_key), payload=emergency.payload, **said)
        if not [*notification_draft_errors(same)]:
            return [same]
    return [
        NotificationDraft(
            template=catalogue.get(UNDELIVERED_TEMPLATE), payload=undelivered_alert(emergency).payload, **said
        )
    ]


def undelivered_alert(emergency: UndeliveredEmergency) -> OperatorAlert:
    facts = {"template": emergency.template_key, "recipient": f"{emergency.recipient_type} {emergency.recipient_id}"}
    return OperatorAlert(
        UNDELIVERED_TEMPLATE, str(emergency.id), {**facts, "error": emergency.last_error[:MAX_ERROR_LENGTH]}
    )


async def _request_alerts(tx: Tx, drafts: Sequence[NotificationDraft]) -> int:
    """Ask for each: one that cannot be must not keep the others back."""
    new = 0
    for draft, asked in zip(
        drafts, await try_request_notifications(tx, drafts, HUB_ACTOR) if drafts else (), strict=True
    ):
        if isinstance(asked, PabalError):
            log.error("alarm refused", template=draft.template.key, channel=draft.channel, error=str(asked))
        else:
            new += not asked.repeated
    return new


async def _log_alert(tx: Tx, alert: OperatorAlert) -> bool:
    try:
        await limits.consume_rate_limit(
            tx, RateLimit("alarm", 1, ALERT_REPEAT_INTERVAL), f"{alert.template_key}:{alert.subject}"
        )
    except RateLimited:
        return False
    log.warning("alarm raised", template=alert.template_key, **alert.payload)
    return True
