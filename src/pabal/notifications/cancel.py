"""Cancel: a notice nobody needs any more is not sent."""

from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.read import Notification, NotificationAccess, find_notification

Q = load_queries(__file__)


async def cancel_notification(tx: Tx, notification_id: UUID, access: NotificationAccess, actor: Actor) -> Notification:
    """Call one's own notification off. What is on its way this moment may arrive, so that is refused."""
    notification = await find_notification(tx, notification_id, access)
    if not await tx.run(Q.cancel_request, id=notification_id, service=access.service, all=access.all_services):
        stands = await find_notification(tx, notification_id, access)
        why = "it is being sent this moment" if stands.state == "pending" else f"it is {stands.state} already"
        raise Conflict(f"the notification cannot be called off: {why}")
    await record_action(tx, actor, "notification.cancelled", str(notification_id), template=notification.template_key)
    return await find_notification(tx, notification_id, access)
