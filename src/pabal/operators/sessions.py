"""Sessions: an operator who signed in, for as long as somebody is there and half a day at most.

The cookie changes as the session is used. The one before is good for another minute, for what is under way; later it
means that two browsers have the same session, and ends it.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.core.ids import new_id
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.operators import password as passwords
from pabal.operators.operators import Known, Operator, Session

Q = beside(__file__)

LIFE = timedelta(hours=12)
IDLE = timedelta(hours=2)
"""Without a page somebody asked for; one that keeps itself fresh asks for nothing."""
TURN = timedelta(hours=1)
"""How long a cookie stays the same."""
GRACE = timedelta(minutes=1)
"""How long the one before is good for: other windows and what is on its way still bring it."""
USER_AGENT = 200


@dataclass(frozen=True, slots=True)
class Held(Operator):
    """A session found by its cookie. `current` is whether it is the one in force, `due` whether that one is old."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    token_hash: bytes = field(repr=False)
    current: bool
    due: bool


@dataclass(frozen=True, slots=True)
class Sitting:
    """Where an operator is signed in, as they are shown it."""

    id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    client_ip: str | None
    user_agent: str | None


async def check(known: Known | None, password: str) -> Known:
    """See that the password fits. It takes its time, so nobody should hold a connection meanwhile."""
    if not await passwords.fits(password, known.password_hash if known else None) or known is None:
        raise Unauthenticated("the name or the password is wrong")
    return known


async def begin(tx: Tx, known: Known, by: Actor) -> str:
    """Open a session for an operator whose password fitted a moment ago, and if nothing changed since.

    Returns the cookie, which is stored only as a hash.
    """
    token, session = secrets.token_urlsafe(32), new_id()
    opened = await tx.run(
        Q.begin,
        session=session,
        token_hash=digest(token),
        operator=known.id,
        password_hash=known.password_hash,
        csrf=secrets.token_bytes(32),
        seed=secrets.token_bytes(32),
        life=LIFE,
        client_ip=by.client_ip,
        user_agent=(by.user_agent or "")[:USER_AGENT],
    )
    if not opened:
        raise Unauthenticated("the name or the password is wrong")
    await did(tx, by, "operator.signed_in", known.name, session=str(session))
    return token


async def session(tx: Tx, token: str, *, used: bool = True) -> Session | None:
    """Whose cookie this is; None when it is nobody's any more. `used` says that somebody asked for something."""
    token_hash = digest(token)
    held = await tx.maybe(Held, Q.find, token_hash=token_hash, used=used, idle=IDLE, turn=TURN, grace=GRACE)
    if held is None:
        await tx.run(Q.end_copied, token_hash=token_hash, grace=GRACE)
        return None
    renewed = await _renewed(tx, held, token) if used else None
    return Session(held.id, held.name, held.role, held.session_id, held.csrf, renewed)


async def stands(tx: Tx, session_id: UUID) -> bool:
    """Whether a session goes on, for whoever asks without its cookie."""
    return await tx.value(Q.stands, session=session_id, idle=IDLE)


async def every(tx: Tx, operator: UUID) -> list[Sitting]:
    """Where an operator is signed in now, the latest first."""
    return await tx.all(Sitting, Q.every, operator=operator, idle=IDLE)


async def leave(tx: Tx, session: Session, by: Actor) -> None:
    if await tx.run(Q.end, operator=session.id, sessions=[session.session_id]):
        await did(tx, by, "operator.signed_out", session.name, session=str(session.session_id))


async def end(tx: Tx, session: Session, sessions: list[UUID], by: Actor) -> int:
    """End sessions of one's own; how many."""
    ended = await tx.run(Q.end, operator=session.id, sessions=sessions)
    if not ended:
        raise NotFound("there is no such session")
    await did(tx, by, "operator.sessions_ended", session.name, sessions=ended)
    return ended


async def sweep(tx: Tx, batch: int) -> int:
    """Drop the sessions that are over; how many went."""
    return await tx.run(Q.sweep, idle=IDLE, batch=batch)


async def _renewed(tx: Tx, held: Held, token: str) -> str | None:
    """What the cookie is from now on, if it is another: whoever brings the one before is given the same again."""
    if held.current and not held.due:
        return None
    successor = next_after(token, held.seed)
    if held.current:
        turned = await tx.run(Q.turn, session=held.session_id, before=digest(token), after=digest(successor), turn=TURN)
        return successor if turned else None
    return successor if held.token_hash == digest(successor) else None


def next_after(token: str, seed: bytes) -> str:
    """The cookie that follows: made of the one before and of what only the table knows."""
    return urlsafe_b64encode(hmac.digest(seed, token.encode(), "sha256")).rstrip(b"=").decode()


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
