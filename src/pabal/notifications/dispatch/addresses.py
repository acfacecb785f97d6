"""Addresses: the DM channel that Discord opened for a person, and whether an address refuses messages.

Rows are written only while the notification that led to them exists, so an erased person is not stored again.
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
from pabal.notifications.states import RecipientType

Q = load_queries(__file__)


async def save_dm_channel(tx: Tx, notification_id: UUID, dm_channel: str) -> None:
    """Store the DM channel of the notification's recipient, so that it is opened once."""
    await tx.run(Q.save_dm_channel, notification=notification_id, dm_channel=dm_channel)


async def clear_dm_channel(tx: Tx, user_id: str, dm_channel: str) -> None:
    """Forget a DM channel that no longer exists. The next message opens a new one."""
    await tx.run(Q.clear_dm_channel, user=user_id, dm_channel=dm_channel)


async def mark_address_unhealthy(tx: Tx, notification_id: UUID, reason: str) -> bool:
    """Record that the notification's address refuses messages. Return False if that was known."""
    return await tx.run(Q.mark_unhealthy, notification=notification_id, reason=reason) > 0


async def mark_address_healthy(tx: Tx, channel: NotificationChannel, recipient: str) -> bool:
    """Record that an address accepts messages again. Return False if it was healthy."""
    return await tx.run(Q.mark_healthy, channel=channel, recipient=recipient) > 0


async def unblock_address(tx: Tx, channel: NotificationChannel, recipient: str, actor: Actor) -> None:
    """Mark an address as working on behalf of an operator; the next message is sent again."""
    if not await mark_address_healthy(tx, channel, recipient):
        raise NotFound("No such unhealthy address")
    await record_action(tx, actor, "address.healed", person_pseudonym(recipient), channel=channel)


@dataclass(frozen=True, slots=True)
class UnhealthyAddress:
    """An address that refuses messages, since when, and the error it returned."""

    recipient_type: RecipientType
    recipient_id: str
    unhealthy_since: datetime
    reason: str


async def list_unhealthy_addresses(tx: Tx, limit: int) -> list[UnhealthyAddress]:
    """Unhealthy addresses, the most recent first."""
    return await tx.all(UnhealthyAddress, Q.list_unhealthy_addresses, limit=limit)
