"""Operator alerts: what the hub reports to its operator, such as emergencies that were not delivered.

Alerts go to one Discord channel, or to the log if none is configured. A failed alert causes no further alert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from pabal.notifications.states import RecipientType
from pabal.notifications.templates.catalogue import TemplateCatalogue

Q = load_queries(__file__)
log = get_logger()

UNDELIVERED_TEMPLATE = "system.undelivered"
ALERT_REPEAT_INTERVAL = timedelta(hours=1)
"""How often an ongoing alert is repeated."""
MAX_ERROR_LENGTH = 300
LATE_AFTER = timedelta(minutes=5)
"""How long an emergency may stay pending before an alert."""


@dataclass(frozen=True, slots=True)
class OperatorAlert:
    """An alert. `subject` distinguishes alerts of one template; an ongoing one is repeated every hour."""

    template_key: str
    subject: str
    payload: Mapping[str, Any] = field(repr=False)
    is_ongoing: bool = False


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Where alerts go, and the templates they use."""

    catalogue: TemplateCatalogue
    channel_id: str | None


@dataclass(frozen=True, slots=True)
class UndeliveredEmergency:
    """An emergency that failed or is late."""

    id: UUID
    recipient_type: RecipientType
    recipient_id: str
    template_key: str
    payload: dict[str, Any]
    locale: str | None
    last_error: str
    correlation_id: str | None


async def send_operator_alerts(tx: Tx, target: AlertTarget, alerts: Sequence[OperatorAlert]) -> int:
    """Send each alert once. Return how many were new."""
    if not alerts:
        return 0
    if target.channel_id is None:
        return sum([await _log_alert(tx, alert) for alert in alerts])
    hour = await tx.value(Q.current_hour)
    drafts = [
        NotificationDraft(
            channel=NotificationChannel.GUILD_AUDIT_CHANNEL,
            recipient=target.channel_id,
            template=target.catalogue.get(alert.template_key),
            payload=alert.payload,
            dedupe_key=f"alert:{alert.template_key}:{alert.subject}{f':{hour}' if alert.is_ongoing else ''}"[-255:],
        )
        for alert in alerts
    ]
    return await _request_alerts(tx, drafts)


async def alert_undelivered_emergencies(tx: Tx, target: AlertTarget, batch: int) -> int:
    """Alert the operator of emergencies that failed or are late, and show a person's in their dashboard.

    However they failed: refused, exhausted, or lost with a worker. A late emergency is still sent to Discord.
    """
    undelivered = await tx.all(UndeliveredEmergency, Q.mark_undelivered_emergencies, late=LATE_AFTER, batch=batch)
    drafts = [
        draft
        for emergency in undelivered
        if emergency.template_key != UNDELIVERED_TEMPLATE
        for draft in fallback_toast_drafts(target.catalogue, emergency)
    ]
    await _request_alerts(tx, drafts)
    for emergency in undelivered:
        log.error(
            "emergency not delivered",
            notification_id=str(emergency.id),
            template=emergency.template_key,
            error=emergency.last_error,
        )
    if target.channel_id is not None:
        alerts = [
            undelivered_alert(emergency) for emergency in undelivered if emergency.template_key != UNDELIVERED_TEMPLATE
        ]
        await send_operator_alerts(tx, target, alerts)
    return len(undelivered)


def fallback_toast_drafts(catalogue: TemplateCatalogue, emergency: UndeliveredEmergency) -> list[NotificationDraft]:
    """A toast with the same text, or with `system.undelivered` if the template has no text for toasts."""
    if emergency.recipient_type != NotificationChannel.USER_DM:
        return []
    fallback = NotificationDraft(
        channel=NotificationChannel.DASHBOARD_TOAST,
        recipient=emergency.recipient_id,
        template=catalogue.get(UNDELIVERED_TEMPLATE),
        payload=undelivered_alert(emergency).payload,
        locale=emergency.locale,
        dedupe_key=f"undelivered:{emergency.id}",
        correlation_id=emergency.correlation_id,
    )
    if emergency.template_key in catalogue:
        original = replace(fallback, template=catalogue.get(emergency.template_key), payload=emergency.payload)
        if not [*notification_draft_errors(original)]:
            return [original]
    return [fallback]


def undelivered_alert(emergency: UndeliveredEmergency) -> OperatorAlert:
    payload = {
        "template": emergency.template_key,
        "recipient": f"{emergency.recipient_type} {emergency.recipient_id}",
        "error": emergency.last_error[:MAX_ERROR_LENGTH],
    }
    return OperatorAlert(UNDELIVERED_TEMPLATE, str(emergency.id), payload)


async def _request_alerts(tx: Tx, drafts: Sequence[NotificationDraft]) -> int:
    """Request each alert, independently of the others. Return how many were new."""
    new_alerts = 0
    results = await try_request_notifications(tx, drafts, HUB_ACTOR) if drafts else ()
    for draft, result in zip(drafts, results, strict=True):
        if isinstance(result, PabalError):
            log.error("operator alert failed", template=draft.template.key, channel=draft.channel, error=str(result))
        else:
            new_alerts += not result.repeated
    return new_alerts


async def _log_alert(tx: Tx, alert: OperatorAlert) -> bool:
    try:
        await limits.consume_rate_limit(
            tx, RateLimit("operator alert", 1, ALERT_REPEAT_INTERVAL), f"{alert.template_key}:{alert.subject}"
        )
    except RateLimited:
        return False
    log.warning("operator alert", template=alert.template_key, **alert.payload)
    return True
