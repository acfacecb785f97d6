"""Cancel: an event nobody needs any more is not handed out; whoever holds it learns so at the next heartbeat."""

from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.events.read import Event

Q = load_queries(__file__)


async def cancel_event(tx: Tx, event: Event, actor: Actor) -> list[UUID]:
    """End what has not ended: the event, or the open deliveries of a broadcast; their ids."""
    ended = await tx.column(
        Q.cancel_event, id=event.id, is_broadcast=event.is_broadcast, source=event.source_service, actor=actor.name
    )
    if not ended:
        status = await tx.value(Q.find_event_status, id=event.id, source=event.source_service)
        raise Conflict(f"the event has ended already: it is {status or 'gone'}")
    await record_action(tx, actor, "event.cancelled", str(event.id), count=len(ended))
    return ended
