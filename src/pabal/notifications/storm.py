"""The storm guard: an emergency is told at once, a storm of them is told as one.

The same incident goes to a recipient once in a minute, and of emergencies at most five in ten minutes; what comes
beyond is suppressed and counted in one summary, sent when the recipient may be told again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import HUB
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias
from pabal.notifications.lane import HeldRequest
from pabal.notifications.plan import Reason, Step

Q = beside(__file__)

SAME = timedelta(seconds=60)
SPAN = timedelta(minutes=10)
MOST = 5
SUMMARY = "system.storm_summary"


@dataclass(frozen=True, slots=True)
class Weather:
    """How it stands with a recipient, seen from one request."""

    passed: bool
    repeated: bool
    lately: int


async def guard(tx: Tx, request: HeldRequest, overrides: Sequence[Reason]) -> Step | None:
    """Let an emergency pass, or say why not. What it overrode is audited the first time it passes.

    Those of one recipient are looked at one after the other, whichever worker has them.
    """
    if request.template_key == SUMMARY:
        return None
    await tx.column(Q.line_up, places=[f"{request.recipient_type} {request.recipient_id}"])
    weather = await tx.one(Weather, Q.weather, id=request.id, same=SAME, span=SPAN)
    if weather.passed:
        return None
    if weather.repeated:
        return Step.SAME_INCIDENT
    if weather.lately >= MOST:
        return Step.TOO_MANY_EMERGENCIES
    await tx.run(Q.let_through, id=request.id, step=Step.FIRST_OF_INCIDENT)
    for reason in overrides:
        facts = {"channel": request.recipient_type, "recipient": alias(request.recipient_id)}
        await did(tx, HUB, "preference.overridden", str(request.id), reason=reason, **facts)
    return None


async def summarise(tx: Tx, suppressed: Sequence[HeldRequest]) -> None:
    """Count what was suppressed into its recipient's summary, in the transaction that suppresses it."""
    places = sorted({f"{each.recipient_type} {each.recipient_id}" for each in suppressed})
    await tx.column(Q.line_up, places=places)
    ids: list[UUID] = [each.id for each in suppressed]
    added = {*await tx.column(Q.add_to_summary, ids=ids, template=SUMMARY)}
    new = [each for each in places if each not in added]
    if new:
        minutes = SPAN // timedelta(minutes=1)
        given = {"ids": ids, "places": new, "keys": [new_id() for _ in new]}
        await tx.run(Q.begin_summary, **given, template=SUMMARY, span=SPAN, minutes=minutes)
        tx.ring(Bell.NOTIFICATIONS)
