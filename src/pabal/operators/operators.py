"""Operators and their sessions."""

import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from pabal.core.errors import Unauthenticated
from pabal.core.ids import new_id
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.operators import password as passwords

Q = beside(__file__)

SESSION_LIFE = timedelta(hours=12)


class Role(StrEnum):
    VIEWER = "viewer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who may sign in to the console."""

    id: UUID
    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Session(Operator):
    """An operator who is signed in. `csrf` must come back with every form."""

    csrf: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Known(Operator):
    password_hash: str = field(repr=False)


async def add(tx: Tx, name: str, password: str, role: Role) -> Operator | None:
    """Add an operator; None when the name is taken."""
    password_hash = await passwords.hashed(password)
    return await tx.maybe(Operator, Q.add, id=new_id(), name=name, password_hash=password_hash, role=role)


async def ensure_first(tx: Tx, password: str | None) -> str | None:
    """See that somebody can sign in. Returns a password only if one had to be made up: show it once."""
    if await tx.value(Q.any_operator):
        return None
    chosen = password or passwords.made_up()
    added = await add(tx, "admin", chosen, Role.ADMIN)
    return chosen if added and password is None else None


async def sign_in(tx: Tx, name: str, password: str, *, client_ip: str | None, user_agent: str | None) -> str:
    """Check the password and open a session; returns its token, which is stored only as a hash."""
    known = await tx.maybe(Known, Q.by_name, name=name)
    if not await passwords.fits(password, known.password_hash if known else None) or known is None:
        raise Unauthenticated("the name or the password is wrong")
    token = secrets.token_urlsafe(32)
    await tx.run(
        Q.open_session,
        token_hash=digest(token),
        operator=known.id,
        csrf=secrets.token_bytes(32),
        life=SESSION_LIFE,
        client_ip=client_ip,
        user_agent=(user_agent or "")[:200],
    )
    await tx.run(Q.signed_in, operator=known.id)
    return token


async def session(tx: Tx, token: str) -> Session | None:
    return await tx.maybe(Session, Q.session, token_hash=digest(token))


async def sign_out(tx: Tx, token: str) -> None:
    await tx.run(Q.close_session, token_hash=digest(token))


async def sweep(tx: Tx, batch: int) -> int:
    """Drop the sessions that have expired; how many went."""
    return await tx.run(Q.sweep_sessions, batch=batch)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
