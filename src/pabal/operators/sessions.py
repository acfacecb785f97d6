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

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.core.ids import new_id
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.operators.operators import Operator, OperatorCredentials, OperatorSession
from pabal.operators.password import verify_password

Q = load_queries(__file__)

SESSION_LIFETIME = timedelta(hours=12)
SESSION_IDLE_TIMEOUT = timedelta(hours=2)
"""Without a page somebody asked for; one that keeps itself fresh asks for nothing."""
COOKIE_ROTATION_INTERVAL = timedelta(hours=1)
"""How long a cookie stays the same."""
PREVIOUS_COOKIE_GRACE = timedelta(minutes=1)
"""How long the one before is good for: other windows and what is on its way still bring it."""
MAX_USER_AGENT_LENGTH = 200


@dataclass(frozen=True, slots=True)
class OperatorSessionRow(Operator):
    """A session found by its cookie. `current` is whether it is the one in force, `due` whether that one is old."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    token_hash: bytes = field(repr=False)
    is_current: bool
    rotation_due: bool


@dataclass(frozen=True, slots=True)
class OperatorSessionSummary:
    """Where an operator is signed in, as they are shown it."""

    id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    client_ip: str | None
    user_agent: str | None


async def authenticate_operator(credentials: OperatorCredentials | None, password: str) -> OperatorCredentials:
    """See that the password fits. It takes its time, so nobody should hold a connection meanwhile."""
    if not await verify_password(password, credentials.password_hash if credentials else None) or credentials is None:
        raise Unauthenticated("the name or the password is wrong")
    return credentials


async def create_operator_session(tx: Tx, credentials: OperatorCredentials, actor: Actor) -> str:
    """Open a session for an operator whose password fitted a moment ago, and if nothing changed since.

    Returns the cookie, which is stored only as a hash.
    """
    token, session = secrets.token_urlsafe(32), new_id()
    opened = await tx.run(
        Q.insert_operator_session,
        session=session,
        token_hash=hash_cookie(token),
        operator=credentials.id,
        password_hash=credentials.password_hash,
        csrf=secrets.token_bytes(32),
        seed=secrets.token_bytes(32),
        life=SESSION_LIFETIME,
        client_ip=actor.client_ip,
        user_agent=(actor.user_agent or "")[:MAX_USER_AGENT_LENGTH],
    )
    if not opened:
        raise Unauthenticated("the name or the password is wrong")
    await record_action(tx, actor, "operator.signed_in", credentials.name, session=str(session))
    return token


async def find_operator_session(tx: Tx, token: str, *, is_activity: bool = True) -> OperatorSession | None:
    """Whose cookie this is; None when it is nobody's any more. `used` says that somebody asked for something."""
    token_hash = hash_cookie(token)
    held = await tx.maybe(
        OperatorSessionRow,
        Q.find_operator_session,
        token_hash=token_hash,
        used=is_activity,
        idle=SESSION_IDLE_TIMEOUT,
        turn=COOKIE_ROTATION_INTERVAL,
        grace=PREVIOUS_COOKIE_GRACE,
    )
    if held is None:
        await tx.run(Q.end_copied_session, token_hash=token_hash, grace=PREVIOUS_COOKIE_GRACE)
        return None
    renewed = await _rotate_cookie(tx, held, token) if is_activity else None
    return OperatorSession(held.id, held.name, held.role, held.session_id, held.csrf, renewed)


async def is_operator_session_active(tx: Tx, session_id: UUID) -> bool:
    """Whether a session goes on, for whoever asks without its cookie."""
    return await tx.value(Q.is_operator_session_active, session=session_id, idle=SESSION_IDLE_TIMEOUT)


async def list_operator_sessions(tx: Tx, operator: UUID) -> list[OperatorSessionSummary]:
    """Where an operator is signed in now, the latest first."""
    return await tx.all(OperatorSessionSummary, Q.list_operator_sessions, operator=operator, idle=SESSION_IDLE_TIMEOUT)


async def sign_out_operator(tx: Tx, session: OperatorSession, actor: Actor) -> None:
    if await tx.run(Q.delete_operator_sessions, operator=session.id, sessions=[session.session_id]):
        await record_action(tx, actor, "operator.signed_out", session.name, session=str(session.session_id))


async def end_operator_sessions(tx: Tx, session: OperatorSession, session_ids: list[UUID], actor: Actor) -> int:
    """End sessions of one's own; how many."""
    ended = await tx.run(Q.delete_operator_sessions, operator=session.id, sessions=session_ids)
    if not ended:
        raise NotFound("there is no such session")
    await record_action(tx, actor, "operator.sessions_ended", session.name, sessions=ended)
    return ended


async def purge_operator_sessions(tx: Tx, batch: int) -> int:
    """Drop the sessions that are over; how many went."""
    return await tx.run(Q.purge_operator_sessions, idle=SESSION_IDLE_TIMEOUT, batch=batch)


async def _rotate_cookie(tx: Tx, row: OperatorSessionRow, token: str) -> str | None:
    """What the cookie is from now on, if it is another: whoever brings the one before is given the same again."""
    if row.is_current and not row.rotation_due:
        return None
    successor = derive_next_cookie(token, row.seed)
    if row.is_current:
        turned = await tx.run(
            Q.rotate_cookie,
            session=row.session_id,
            before=hash_cookie(token),
            after=hash_cookie(successor),
            turn=COOKIE_ROTATION_INTERVAL,
        )
        return successor if turned else None
    return successor if row.token_hash == hash_cookie(successor) else None


def derive_next_cookie(token: str, seed: bytes) -> str:
    """The cookie that follows: made of the one before and of what only the table knows."""
    return urlsafe_b64encode(hmac.digest(seed, token.encode(), "sha256")).rstrip(b"=").decode()


def hash_cookie(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
