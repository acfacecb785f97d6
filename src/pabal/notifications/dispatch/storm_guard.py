"""The storm guard: send an emergency at once, but a storm of emergencies as one summary.

A recipient gets the same incident once a minute, and at most five emergencies in ten minutes. Further ones are
suppressed and counted in one summary, which is sent as soon as the limit allows another emergency.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep, SuppressReason
from pabal.notifications.lane import ClaimedNotification

Q = load_queries(__file__)

INCIDENT_WINDOW = timedelta(seconds=60)
STORM_WINDOW = timedelta(minutes=10)
MAX_EMERGENCIES = 5
SUMMARY_TEMPLATE = "system.storm_summary"


@dataclass(frozen=True, slots=True)
class StormState:
    """The recent emergencies of a recipient, as seen by one notification."""

    has_passed: bool
    is_same_incident: bool
    recent_emergencies: int


async def check_storm_guard(
    tx: Tx, notification: ClaimedNotification, overrides: Sequence[SuppressReason]
) -> DecisionStep | None:
    """Return None to send the emergency, or the step that suppresses it.

    A lock per recipient makes concurrent workers check one after the other. The preferences it overrides are recorded
    in the audit log when it passes for the first time.
    """
    if notification.template_key == SUMMARY_TEMPLATE:
        return None
    await tx.column(Q.lock_recipients, recipients=[recipient_key(notification)])
    state = await tx.one(
        StormState,
        Q.read_storm_state,
        id=notification.id,
        incident_window=INCIDENT_WINDOW,
        storm_window=STORM_WINDOW,
    )
    if state.has_passed:
        return None
    if state.is_same_incident:
        return DecisionStep.SAME_INCIDENT
    if state.recent_emergencies >= MAX_EMERGENCIES:
        return DecisionStep.TOO_MANY_EMERGENCIES
    await tx.run(Q.mark_passed, id=notification.id, step=DecisionStep.FIRST_OF_INCIDENT)
    recipient = person_pseudonym(notification.recipient_id)
    details = {"channel": notification.recipient_type, "recipient": recipient}
    for reason in overrides:
        await record_action(tx, HUB_ACTOR, "preference.overridden", str(notification.id), reason=reason, **details)
    return None


async def add_to_storm_summary(tx: Tx, suppressed: Sequence[ClaimedNotification]) -> None:
    """Count suppressed emergencies in their recipients' summaries, in the transaction that suppresses them."""
    recipients = sorted({recipient_key(notification) for notification in suppressed})
    await tx.column(Q.lock_recipients, recipients=recipients)
    ids: list[UUID] = [notification.id for notification in suppressed]
    updated = {*await tx.column(Q.add_to_summary, ids=ids, template=SUMMARY_TEMPLATE)}
    without_summary = [recipient for recipient in recipients if recipient not in updated]
    if without_summary:
        await tx.run(
            Q.insert_summary,
            ids=ids,
            recipients=without_summary,
            summary_ids=[new_id() for _ in without_summary],
            template=SUMMARY_TEMPLATE,
            storm_window=STORM_WINDOW,
            minutes=STORM_WINDOW // timedelta(minutes=1),
        )
        tx.notify(Channel.NOTIFICATIONS)


def recipient_key(notification: ClaimedNotification) -> str:
    """Channel and recipient in one text, as the statements compare them."""
    return f"{notification.recipient_type} {notification.recipient_id}"
