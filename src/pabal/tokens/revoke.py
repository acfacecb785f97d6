"""Revoke: one access token, or a family with everything that came from it. Everybody hears of it at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class RevocationReason:
    """Why tokens end: as the rows say it, as the audit log says it, and the event that tells everybody, if any."""

    text: str
    action: str
    event_type: str | None = None


REVOKED_ON_REQUEST = RevocationReason("Revoked", "token.revoked")
REFRESH_TOKEN_REUSED = RevocationReason("Refresh token reused", "token.reused", "security.token_reuse")


async def lock_family(tx: Tx, family_id: UUID) -> None:
    """Let nobody add to a family or end it until this transaction is over."""
    await tx.run(Q.lock_family, family=family_id)


async def revoke_family(tx: Tx, family_id: UUID, reason: RevocationReason, actor: Actor) -> bool:
    """End a family: all its tokens, with the audit row and perhaps an event. False when it had ended already."""
    await lock_family(tx, family_id)
    ended = await tx.value(
        Q.revoke_family,
        family=family_id,
        why=reason.text,
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
    return ended is not None


async def revoke_access_token(tx: Tx, token_id: UUID, actor: Actor) -> bool:
    """End one access token; its family goes on. False when it had ended already."""
    ended = await tx.value(
        Q.revoke_access_token,
        token=token_id,
        why=REVOKED_ON_REQUEST.text,
        actor=actor.name,
        client_ip=actor.client_ip,
        request_id=actor.request_id,
    )
    tx.notify(Channel.TOKENS)
    return ended is not None


async def revoke_service_tokens(tx: Tx, name: str, actor: Actor) -> int:
    """End every family of a service; how many."""
    return await revoke_families(tx, await list_live_family_ids(tx, name), actor)


async def list_live_family_ids(tx: Tx, name: str) -> list[UUID]:
    """The families of a service that are still good for something."""
    return await tx.column(Q.list_live_family_ids, service=name)


async def revoke_families(tx: Tx, family_ids: Iterable[UUID], actor: Actor) -> int:
    """End these and no others; how many had not ended already."""
    return sum([await revoke_family(tx, each, REVOKED_ON_REQUEST, actor) for each in family_ids])


PURGE_STEP = 50


async def expire_tokens(tx: Tx, _batch: int) -> int:
    """Mark what has expired as ended; how many access tokens. All of it at once: each is marked once in its life."""
    return await tx.value(Q.expire_tokens)


async def purge_token_families(tx: Tx, keep: timedelta, batch: int) -> int:
    """Forget up to `batch` families that ended longer ago than `keep`, a few at a time: each has many tokens."""
    gone = 0
    while gone < batch:
        step = min(PURGE_STEP, batch - gone)
        done = await tx.run(Q.purge_token_families, keep=keep, batch=step)
        gone += done
        if done < step:
            break
    return gone
