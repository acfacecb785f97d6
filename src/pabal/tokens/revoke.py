"""Revoke: one access token, or a family with everything that came from it. Everybody hears of it at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why tokens end: as the rows say it, as the audit log says it, and the event that tells everybody, if any."""

    why: str
    action: str
    event_type: str | None = None


ASKED = Reason("Revoked", "token.revoked")
REUSED = Reason("Refresh token reused", "token.reused", "security.token_reuse")


async def lock(tx: Tx, family_id: UUID) -> None:
    """Let nobody add to a family or end it until this transaction is over."""
    await tx.run(Q.lock, family=family_id)


async def family(tx: Tx, family_id: UUID, reason: Reason, by: Actor) -> bool:
    """End a family: all its tokens, with the audit row and perhaps an event. False when it had ended already."""
    await lock(tx, family_id)
    ended = await tx.value(
        Q.family,
        family=family_id,
        why=reason.why,
        action=reason.action,
        event=new_id(),
        event_type=reason.event_type,
        actor=by.name,
        client_ip=by.client_ip,
        request_id=by.request_id,
    )
    tx.ring(Bell.TOKENS)
    if reason.event_type:
        tx.ring(Bell.EVENTS)
    return ended is not None


async def access(tx: Tx, token_id: UUID, by: Actor) -> bool:
    """End one access token; its family goes on. False when it had ended already."""
    ended = await tx.value(
        Q.access,
        token=token_id,
        why=ASKED.why,
        actor=by.name,
        client_ip=by.client_ip,
        request_id=by.request_id,
    )
    tx.ring(Bell.TOKENS)
    return ended is not None


async def service(tx: Tx, name: str, by: Actor) -> int:
    """End every family of a service; how many."""
    return await families(tx, await live(tx, name), by)


async def live(tx: Tx, name: str) -> list[UUID]:
    """The families of a service that are still good for something."""
    return await tx.column(Q.families, service=name)


async def families(tx: Tx, ids: Iterable[UUID], by: Actor) -> int:
    """End these and no others; how many had not ended already."""
    return sum([await family(tx, each, ASKED, by) for each in ids])
