"""The storm guard: an emergency is told at once, a storm of them is told as one.

The same incident goes to a recipient once in a minute, and of emergencies at most five in ten minutes; what comes
beyond is suppressed and counted in one summary, sent when the recipient may be told again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR
from pabal.core.ids import new_id
from pabal.db.channels import Channel
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
    """How it stands with a recipient, seen from one request."""

    has_passed: bool
    is_same_incident: bool
    recent_emergencies: int


async def check_storm_guard(
    tx: Tx, request: ClaimedNotification, overrides: Sequence[SuppressReason]
) -> DecisionStep | None:
    """Let an emergency pass, or say why not. What it overrode is audited the first time it passes.

    Those of one recipient are looked at one after the other, whichever worker has them.
    """
    if request.template_key == SUMMARY_TEMPLATE:
        return None
    await tx.column(Q.lock_recipients, places=[f"{request.recipient_type} {request.recipient_id}"])
    weather = await tx.one(StormState, Q.read_storm_state, id=request.id, same=INCIDENT_WINDOW, span=STORM_WINDOW)
    if weather.has_passed:
        return None
    if weather.is_same_incident:
        return DecisionStep.SAME_INCIDENT
    if weather.recent_emergencies >= MAX_EMERGENCIES:
        return DecisionStep.TOO_MANY_EMERGENCIES
    await tx.run(Q.mark_passed, id=request.id, step=DecisionStep.FIRST_OF_INCIDENT)
    for reason in overrides:
        facts = {"channel": request.recipient_type, "recipient": person_pseudonym(request.recipient_id)}
        await record_action(tx, HUB_ACTOR, "preference.overridden", str(request.id), reason=reason, **facts)
    return None


async def add_to_storm_summary(tx: Tx, suppressed: Sequence[ClaimedNotification]) -> None:
    """Count what was suppressed into its recipient's summary, in the transaction that suppresses it."""
    places = sorted({f"{each.recipient_type} {each.recipient_id}" for each in suppressed})
    await tx.column(Q.lock_recipients, places=places)
    ids: list[UUID] = [each.id for each in suppressed]
    added = {*await tx.column(Q.add_to_summary, ids=ids, template=SUMMARY_TEMPLATE)}
    new = [each for each in places if each not in added]
    if new:
        minutes = STORM_WINDOW // timedelta(minutes=1)
        given = {"ids": ids, "places": new, "keys": [new_id() for _ in new]}
        await tx.run(Q.insert_summary, **given, template=SUMMARY_TEMPLATE, span=STORM_WINDOW, minutes=minutes)
        tx.notify(Channel.NOTIFICATIONS)
