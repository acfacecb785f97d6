"""What was learned about an address by writing to it: the DM channel Discord opened, and whether it refuses us.

It is learned of a request, and only while that is there: whoever is erased in the meantime is not remembered again.
"""

from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias
from pabal.notifications.plan import Channel

Q = beside(__file__)


async def opened(tx: Tx, request: UUID, dm_channel: str) -> None:
    """Remember the DM channel of a request's recipient, so that it is opened once."""
    await tx.run(Q.opened, request=request, dm_channel=dm_channel)


async def closed(tx: Tx, user: str, dm_channel: str) -> None:
    """Forget a DM channel that is no longer there; the next message opens another."""
    await tx.run(Q.closed, user=user, dm_channel=dm_channel)


async def refused(tx: Tx, request: UUID, why: str) -> bool:
    """Write down that the address of a request refuses us for good. False when that was known."""
    return await tx.run(Q.refused, request=request, why=why) > 0


async def took(tx: Tx, channel: Channel, recipient: str) -> bool:
    """Write down that an address took something: whatever it refused before, it is healthy. False when it was."""
    return await tx.run(Q.took, channel=channel, recipient=recipient) > 0


async def heal(tx: Tx, channel: Channel, recipient: str, by: Actor) -> None:
    """Let an operator say that an address works again; the next message will show."""
    if not await took(tx, channel, recipient):
        raise NotFound("there is no such unhealthy address")
    await did(tx, by, "address.healed", alias(recipient), channel=channel)
