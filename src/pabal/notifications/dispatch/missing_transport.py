"""A hub without a Discord token: nothing is ever marked as sent.

Normal notifications for Discord are suppressed with the reason `no_transport`. Important ones and emergencies wait for
the token and are reported to the operator.
"""

from dataclasses import dataclass

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DecisionStep, SuppressReason
from pabal.notifications.dispatch.discord import DiscordMessage
from pabal.notifications.dispatch.outcome import NotificationSuppressed
from pabal.notifications.operator_alerts import AlertTarget, OperatorAlert, send_operator_alerts

Q = load_queries(__file__)

NO_TRANSPORT_TEMPLATE = "system.no_transport"
MAX_COUNT = 1000
"""Counting stops here."""


@dataclass(frozen=True, slots=True)
class WithoutTransport:
    """Notifications that wait for a Discord token, and those suppressed for lack of one in the last day."""

    waiting: int
    suppressed: int

    @property
    def total(self) -> int:
        return self.waiting + self.suppressed


class MissingTransportSender:
    """The sender of a hub without a Discord token."""

    has_transport = False

    async def send(self, message: DiscordMessage) -> NotificationSuppressed:  # noqa: ARG002 nothing is sent
        return NotificationSuppressed(SuppressReason.NO_TRANSPORT, (DecisionStep.AT_SEND, DecisionStep.NO_TRANSPORT))

    async def is_rate_limited(self) -> bool:
        return False


async def alert_missing_transport(tx: Tx, target: AlertTarget, batch: int) -> int:
    """Mark what waits for a Discord token, and alert the operator while there is any."""
    marked = await tx.run(Q.mark_waiting_for_transport, batch=batch)
    counts = await count_without_transport(tx)
    if counts.waiting:
        alert = OperatorAlert(NO_TRANSPORT_TEMPLATE, "discord", {"count": counts.waiting}, is_ongoing=True)
        await send_operator_alerts(tx, target, [alert])
    return marked


async def count_without_transport(tx: Tx) -> WithoutTransport:
    return await tx.one(WithoutTransport, Q.count_without_transport, limit=MAX_COUNT)
