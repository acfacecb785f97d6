"""Cancel: a notice nobody needs any more is not sent."""

from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.read import Notification, Reader, find

Q = beside(__file__)


async def cancel(tx: Tx, row: UUID, who: Reader, by: Actor) -> Notification:
    """Call one's own notification off. What is on its way this moment may arrive, so that is refused."""
    notification = await find(tx, row, who)
    if not await tx.run(Q.cancel, id=row, service=who.service, all=who.all):
        stands = await find(tx, row, who)
        why = "it is being sent this moment" if stands.state == "pending" else f"it is {stands.state} already"
        raise Conflict(f"the notification cannot be called off: {why}")
    await did(tx, by, "notification.cancelled", str(row), template=notification.template_key)
    return await find(tx, row, who)
