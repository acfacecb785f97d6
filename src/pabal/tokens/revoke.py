"""Revoke one access token or a whole family. All processes are notified at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RevocationReason:
    """Why tokens are revoked: the text of the rows, the action of the audit log, and an event to publish, if any."""

    text: str
    action: str
    event_type: str | None = None


REVOKED_ON_REQUEST = RevocationReason("Revoked", "token.revoked")
REFRESH_TOKEN_REUSED = RevocationReason("Refresh token reused", "token.reused", "security.token_reuse")


async def lock_family(tx: Tx, family_id: UUID) -> None:
    """Lock a family against concurrent refresh and revocation until the end of the transaction."""
    await tx.run(Q.lock_family, family=family_id)


async def revoke_family(tx: Tx, family_id: UUID, reason: RevocationReason, actor: Actor) -> bool:
    """Revoke a family with all its tokens. Returns False if it was already revoked."""
    await lock_family(tx, family_id)
    revoked_id = await tx.value(
        Q.revoke_family,
        family=family_id,
        reason=reason.text,
        action=reason.action,
        event=new_id(),
        event_type=reason.event_type,
        actor=actor.name,
        client_ip=actor.client_ip,
        request_id=actor.request_id,
    )
    tx.notify(Channel.TOKENS)
    if reason.event_type:
        tx.notify(Channel.EVENTS)
    return revoked_id is not None


async def revoke_access_token(tx: Tx, token_id: UUID, actor: Actor) -> bool:
    """Revoke one access token but not its family. Returns False if it was already revoked."""
    revoked_id = await tx.value(
        Q.revoke_access_token,
        token=token_id,
        reason=REVOKED_ON_REQUEST.text,
        actor=actor.name,
        client_ip=actor.client_ip,
        request_id=actor.request_id,
    )
    tx.notify(Channel.TOKENS)
    return revoked_id is not None


async def revoke_service_tokens(tx: Tx, name: str, actor: Actor) -> int:
    """Revoke all live families of a service; returns how many."""
    return await revoke_families(tx, await list_live_family_ids(tx, name), actor)


async def list_live_family_ids(tx: Tx, name: str) -> list[UUID]:
    """The families of a service that are neither revoked nor expired."""
    return await tx.column(Q.list_live_family_ids, service=name)


async def revoke_families(tx: Tx, family_ids: Iterable[UUID], actor: Actor) -> int:
    """Revoke these families; returns how many were not revoked before."""
    return sum([await revoke_family(tx, family_id, REVOKED_ON_REQUEST, actor) for family_id in family_ids])


PURGE_STEP = 50


async def expire_tokens(tx: Tx, _batch: int) -> int:
    """Mark all expired tokens as revoked; returns the number of access tokens."""
    return await tx.value(Q.expire_tokens, actor=HUB_ACTOR.name)


async def purge_token_families(tx: Tx, keep: timedelta, batch: int) -> int:
    """Delete up to `batch` families that ended longer ago than `keep`, a few at a time: each has many tokens."""
    purged = 0
    while purged < batch:
        step = min(PURGE_STEP, batch - purged)
        rows = await tx.run(Q.purge_token_families, keep=keep, batch=step)
        purged += rows
        if rows < step:
            break
    return purged
