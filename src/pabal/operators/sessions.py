"""Operator sessions: they end after two hours without activity, and after twelve hours in any case.

The cookie is rotated while the session is used. The previous one stays valid for a minute, for concurrent requests. If
it is used later, two browsers share the session, and the session ends.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.core.ids import new_id
from pabal.core.secrets import encode_base64url, hash_token
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.operators.operators import Operator, OperatorCredentials, OperatorSession
from pabal.operators.password import verify_password

Q = load_queries(__file__)

SESSION_LIFETIME = timedelta(hours=12)
SESSION_IDLE_TIMEOUT = timedelta(hours=2)
"""Pages that refresh themselves do not count as activity."""
COOKIE_ROTATION_INTERVAL = timedelta(hours=1)
PREVIOUS_COOKIE_GRACE = timedelta(minutes=1)
"""How long the previous cookie stays valid, for concurrent requests and other windows."""
MAX_USER_AGENT_LENGTH = 200


@dataclass(frozen=True, slots=True)
class OperatorSessionRow(Operator):
    """A session found by its cookie. `is_current` is False for the previous cookie."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    token_hash: bytes = field(repr=False)
    is_current: bool
    rotation_due: bool


@dataclass(frozen=True, slots=True)
class OperatorSessionSummary:
    """A session in an operator's list of sessions."""

    id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    client_ip: str | None
    user_agent: str | None


async def authenticate_operator(credentials: OperatorCredentials | None, password: str) -> OperatorCredentials:
    """Check the password. It is slow, so do not hold a connection meanwhile."""
    if not await verify_password(password, credentials.password_hash if credentials else None) or credentials is None:
        raise Unauthenticated("wrong name or password")
    return credentials


async def create_operator_session(tx: Tx, credentials: OperatorCredentials, actor: Actor) -> str:
    """Start a session, unless the operator or the password has changed since the check.

    Returns the cookie, of which only the hash is stored.
    """
    token, session = secrets.token_urlsafe(32), new_id()
    inserted = await tx.run(
        Q.insert_operator_session,
        session=session,
        token_hash=hash_token(token),
        operator=credentials.id,
        password_hash=credentials.password_hash,
        csrf=secrets.token_bytes(32),
        seed=secrets.token_bytes(32),
        lifetime=SESSION_LIFETIME,
        client_ip=actor.client_ip,
        user_agent=(actor.user_agent or "")[:MAX_USER_AGENT_LENGTH],
    )
    if not inserted:
        raise Unauthenticated("wrong name or password")
    await record_action(tx, actor, "operator.signed_in", credentials.name, session=str(session))
    return token


async def find_operator_session(tx: Tx, token: str, *, is_activity: bool = True) -> OperatorSession | None:
    """Find the session of a cookie; None if it has ended. `is_activity` extends the session."""
    token_hash = hash_token(token)
    row = await tx.maybe(
        OperatorSessionRow,
        Q.find_operator_session,
        token_hash=token_hash,
        is_activity=is_activity,
        idle=SESSION_IDLE_TIMEOUT,
        rotation_interval=COOKIE_ROTATION_INTERVAL,
        grace=PREVIOUS_COOKIE_GRACE,
    )
    if row is None:
        await tx.run(Q.end_copied_session, token_hash=token_hash, grace=PREVIOUS_COOKIE_GRACE)
        return None
    renewed = await _rotate_cookie(tx, row, token) if is_activity else None
    return OperatorSession(row.id, row.name, row.role, row.session_id, row.csrf, renewed)


async def is_operator_session_active(tx: Tx, session_id: UUID) -> bool:
    """Check a session by its id, without the cookie."""
    return await tx.value(Q.is_operator_session_active, session=session_id, idle=SESSION_IDLE_TIMEOUT)


async def list_operator_sessions(tx: Tx, operator: UUID) -> list[OperatorSessionSummary]:
    """The active sessions of an operator, newest first."""
    return await tx.all(OperatorSessionSummary, Q.list_operator_sessions, operator=operator, idle=SESSION_IDLE_TIMEOUT)


async def sign_out_operator(tx: Tx, session: OperatorSession, actor: Actor) -> None:
    if await tx.run(Q.delete_operator_sessions, operator=session.id, sessions=[session.session_id]):
        await record_action(tx, actor, "operator.signed_out", session.name, session=str(session.session_id))


async def end_operator_sessions(tx: Tx, session: OperatorSession, session_ids: list[UUID], actor: Actor) -> int:
    """End sessions of the signed-in operator; returns how many."""
    ended = await tx.run(Q.delete_operator_sessions, operator=session.id, sessions=session_ids)
    if not ended:
        raise NotFound("No such session")
    await record_action(tx, actor, "operator.sessions_ended", session.name, sessions=ended)
    return ended


async def purge_operator_sessions(tx: Tx, batch: int) -> int:
    """Delete ended sessions; returns how many."""
    return await tx.run(Q.purge_operator_sessions, idle=SESSION_IDLE_TIMEOUT, batch=batch)


async def _rotate_cookie(tx: Tx, row: OperatorSessionRow, token: str) -> str | None:
    """Return the new cookie, if it was rotated. For the previous cookie, returns the same successor again."""
    if row.is_current and not row.rotation_due:
        return None
    successor = derive_next_cookie(token, row.seed)
    if row.is_current:
        rotated = await tx.run(
            Q.rotate_cookie,
            session=row.session_id,
            before=hash_token(token),
            after=hash_token(successor),
            rotation_interval=COOKIE_ROTATION_INTERVAL,
        )
        return successor if rotated else None
    return successor if row.token_hash == hash_token(successor) else None


def derive_next_cookie(token: str, seed: bytes) -> str:
    """Derive the next cookie from the current one and the session's secret seed."""
    return encode_base64url(hmac.digest(seed, token.encode(), "sha256"))
