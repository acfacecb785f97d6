"""Cancel: an event nobody needs any more is not handed out; whoever holds it learns so at the next heartbeat."""

from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.events.read import Event

Q = beside(__file__)


async def cancel(tx: Tx, event: Event, by: Actor) -> list[UUID]:
    """End what has not ended: the event, or the open deliveries of a broadcast; their ids."""
    ended = await tx.column(
        Q.cancel, id=event.id, is_broadcast=event.is_broadcast, source=event.source_service, actor=by.name
    )
    if not ended:
        status = await tx.value(Q.standing, id=event.id, source=event.source_service)
        raise Conflict(f"the event has ended already: it is {status or 'gone'}")
    await did(tx, by, "event.cancelled", str(event.id), count=len(ended))
    return ended
