"""Whether notifications have been sent: what the console's first page shows."""

from dataclasses import dataclass

from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)

NOTIFICATIONS_READ = 1000
"""How many ended notifications are read to find one that was sent."""


@dataclass(frozen=True, slots=True)
class NotificationProgress:
    """A notification was requested; one was sent."""

    has_request: bool
    has_sent: bool


async def read_notification_progress(tx: Tx) -> NotificationProgress:
    return await tx.one(NotificationProgress, Q.notification_progress, limit=NOTIFICATIONS_READ)


async def were_notifications_requested(tx: Tx) -> bool:
    return await tx.value(Q.notifications_were_requested)
