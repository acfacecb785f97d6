"""Refresh: a refresh token is used once and names its successor.

A token that comes back after it was spent was stolen, or its answer was lost on the way. For thirty seconds, and as
long as nobody has used the successor, it is taken for lost and the same answer is given again; after that the whole
family ends, since nobody can say which of the two holders is the thief.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.actor import Actor
from pabal.core.errors import BadGrant
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Contended
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens import permission, revoke
from pabal.tokens.digest import hashed
from pabal.tokens.mint import Mint, Pair

Q = beside(__file__)

LOST_ANSWER = timedelta(seconds=30)
BRIEF = timedelta(seconds=1)
"""What is left of a family's life when it is not worth a token any more."""
LOOKS = 3


@dataclass(frozen=True, slots=True)
class Held:
    """A refresh token as it stands; the `next_` fields are its successor's, which was made when it was spent."""

    id: UUID
    family_id: UUID
    revoked_at: datetime | None
    expires_at: datetime
    replaced_by: UUID | None
    permissions: Sequence[str]
    family_revoked_at: datetime | None
    family_ends: datetime
    allowed: Sequence[str]
    is_active: bool
    spent_at: datetime | None
    next_uses: int | None
    next_revoked_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Rotate:
    """It is good: spend it."""


@dataclass(frozen=True, slots=True)
class Again:
    """It was just spent and the answer may have been lost: give the same one."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """It was spent, and somebody has it still: end the family."""


@dataclass(frozen=True, slots=True)
class No:
    """It is good for nothing. `why` is what the client is told."""

    why: str


Decision = Rotate | Again | Reuse | No


@dataclass(frozen=True, slots=True)
class Given:
    refresh_id: UUID
    refresh_token: str = field(repr=False)
    access_id: UUID
    access_token: str = field(repr=False)
    permissions: Sequence[str]
    expires_at: datetime
    now: datetime


def decide(held: Held) -> Decision:
    """What becomes of a refresh token that somebody brings."""
    if held.family_revoked_at is not None:
        return No("the refresh token was revoked")
    if held.family_ends <= held.now + BRIEF or not held.is_active:
        return No("the refresh token has expired")
    if held.replaced_by is not None:
        lost = held.spent_at is not None and held.now - held.spent_at <= LOST_ANSWER
        unused = held.next_uses == 0 and held.next_revoked_at is None
        return Again() if lost and unused else Reuse()
    if held.revoked_at is not None:
        return No("the refresh token was revoked")
    if held.expires_at <= held.now:
        return No("the refresh token has expired")
    return Rotate()


async def refresh(tx: Tx, mint: Mint, service: str, token: str, *, asked: Sequence[str], by: Actor) -> Pair | BadGrant:
    """Spend a refresh token for a new pair, or say why not.

    The refusal is given back, not raised: ending a family must be committed together with it.
    """
    for _ in range(LOOKS):
        held = await tx.maybe(Held, Q.held, hash=hashed(token), service=service)
        if held is None:
            return BadGrant("the refresh token is not known")
        match decide(held):
            case Rotate():
                pair = await _rotate(tx, mint, service, held, asked=asked, by=by)
            case Again():
                pair = await _again(tx, mint, service, token, held, by)
            case Reuse():
                if await revoke.family(tx, held.family_id, revoke.REUSED, by):
                    return BadGrant("the refresh token was used before; all tokens that came from it are revoked")
                pair = None
            case No(why):
                return BadGrant(why)
        if pair is not None:
            return pair  # otherwise somebody was quicker: look again at what they left
    raise Contended("others keep changing this family")


async def _rotate(tx: Tx, mint: Mint, service: str, held: Held, *, asked: Sequence[str], by: Actor) -> Pair | None:
    allowed = permission.granted(held.permissions, held.allowed)  # what the service lost since is lost here too
    permissions = permission.granted(asked, allowed)
    access = mint.access(service, permissions, held.family_id, now=held.now, until=held.family_ends)
    successor = mint.refresh(now=held.now, until=held.family_ends)
    done = await tx.value(
        Q.rotate,
        family=held.family_id,
        spent=held.id,
        permissions=permissions,
        access_id=access.id,
        access=access.envelope,
        access_hash=access.hash,
        access_ends=access.expires_at,
        refresh_id=successor.id,
        refresh=successor.envelope,
        refresh_hash=successor.hash,
        refresh_ends=successor.expires_at,
        event=new_id(),
        actor=by.name,
        client_ip=by.client_ip,
        user_agent=by.user_agent,
        request_id=by.request_id,
    )
    if done is None:
        return None
    tx.ring(Bell.EVENTS)
    return Pair(held.family_id, access.token, successor.token, permissions, access.expires_at - held.now)


async def _again(tx: Tx, mint: Mint, service: str, token: str, held: Held, by: Actor) -> Pair | None:  # noqa: PLR0917
    """Give the same answer, if it is still true once nobody can change the family any more."""
    await revoke.lock(tx, held.family_id)
    now = await tx.maybe(Held, Q.held, hash=hashed(token), service=service)
    if now is None or decide(now) != Again():
        return None
    given = await tx.one(Given, Q.again, spent=held.id, actor=by.name, client_ip=by.client_ip, request_id=by.request_id)
    return Pair(
        held.family_id,
        mint.open_access(given.access_id, given.access_token),
        mint.open_refresh(given.refresh_id, given.refresh_token),
        tuple(given.permissions),
        given.expires_at - given.now,
    )
