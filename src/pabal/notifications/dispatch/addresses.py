"""What was learned about an address by writing to it: the DM channel Discord opened, and whether it refuses us.

It is learned of a request, and only while that is there: whoever is erased in the meantime is not remembered again.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel

Q = load_queries(__file__)


async def save_dm_channel(tx: Tx, notification_id: UUID, dm_channel: str) -> None:
    """Remember the DM channel of a request's recipient, so that it is opened once."""
    await tx.run(Q.save_dm_channel, request=notification_id, dm_channel=dm_channel)


async def clear_dm_channel(tx: Tx, user_id: str, dm_channel: str) -> None:
    """Forget a DM channel that is no longer there; the next message opens another."""
    await tx.run(Q.clear_dm_channel, user=user_id, dm_channel=dm_channel)


async def mark_address_unhealthy(tx: Tx, notification_id: UUID, reason: str) -> bool:
    """Write down that the address of a request refuses us for good. False when that was known."""
    return await tx.run(Q.mark_unhealthy, request=notification_id, why=reason) > 0


async def mark_address_healthy(tx: Tx, channel: NotificationChannel, recipient: str) -> bool:
    """Write down that an address took something: whatever it refused before, it is healthy. False when it was."""
    return await tx.run(Q.mark_healthy, channel=channel, recipient=recipient) > 0


async def heal_address(tx: Tx, channel: NotificationChannel, recipient: str, actor: Actor) -> None:
    """Let an operator say that an address works again; the next message will show."""
    if not await mark_address_healthy(tx, channel, recipient):
        raise NotFound("there is no such unhealthy address")
    await record_action(tx, actor, "address.healed", person_pseudonym(recipient), channel=channel)


@dataclass(frozen=True, slots=True)
class UnhealthyAddress:
    """An address that takes nothing from us, since when, and what it said."""

    recipient_type: str
    recipient_id: str
    unhealthy_since: datetime
    reason: str


async def list_unhealthy_addresses(tx: Tx, limit: int) -> list[UnhealthyAddress]:
    """Those that began last."""
    return await tx.all(UnhealthyAddress, Q.list_unhealthy_addresses, limit=limit)
