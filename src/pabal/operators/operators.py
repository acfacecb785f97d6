"""Operators: who may sign in to the console, and as what."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import HUB, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.operators import password as passwords

Q = beside(__file__)

NAME = re.compile(r"[\w.@+-]{1,64}")


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
    """An operator who is signed in. `csrf` must come back with every form; `renewed` is the cookie from now on."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    renewed: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Known(Operator):
    """An operator with what their password is held against."""

    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Portrait(Operator):
    """An operator as a list shows them."""

    created_at: datetime
    disabled_at: datetime | None
    last_signed_in_at: datetime | None


async def add(tx: Tx, name: str, password: str, role: Role, by: Actor = HUB) -> Operator:
    if not NAME.fullmatch(name):
        raise Invalid.one("name", "is 1 to 64 letters, digits and . _ @ + -")
    added = await _put(tx, name, password, role, by)
    if added is None:
        raise Conflict(f"there is already an operator {name}")
    return added


async def ensure_first(tx: Tx, password: str | None) -> str | None:
    """See that somebody can sign in. Returns a password only if one had to be made up: show it once."""
    if await tx.value(Q.any_operator):
        return None
    chosen = password or passwords.made_up()
    added = await _put(tx, "admin", chosen, Role.ADMIN, HUB)
    return chosen if added and password is None else None


async def known(tx: Tx, name: str) -> Known | None:
    """An operator who may sign in under this name, whatever its case."""
    return await tx.maybe(Known, Q.known, name=name)


async def every(tx: Tx) -> list[Portrait]:
    return await tx.all(Portrait, Q.every)


async def set_password(tx: Tx, name: str, password_hash: str, by: Actor, *, before: str | None = None) -> Operator:
    """Give an operator another password. Whoever is signed in with the one before is out at once.

    `before` is the one it is to replace, as it was read; when somebody else has replaced it since, theirs stands.
    """
    operator = await held(tx, name)
    if not await tx.run(Q.set_password, operator=operator.id, password_hash=password_hash, before=before):
        raise Conflict("somebody else has changed the password meanwhile")
    ended = await tx.run(Q.end_sessions, operator=operator.id)
    await did(tx, by, "operator.password_changed", operator.name, sessions=ended)
    return operator


async def set_role(tx: Tx, name: str, role: Role, by: Actor) -> Operator:
    """Make an operator what they are to be; who is signed in is it with the next page."""
    admins = await tx.column(Q.admins)
    operator = await held(tx, name)
    if operator.role == role:
        return operator
    if role != Role.ADMIN:
        spare(operator, admins)
    await did(tx, by, "operator.role_changed", operator.name, role=role)
    return await tx.one(Operator, Q.set_role, operator=operator.id, role=role)


async def disable(tx: Tx, name: str, by: Actor) -> Operator:
    """Keep an operator out, from now on: who is signed in is so no longer."""
    admins = await tx.column(Q.admins)
    operator = await held(tx, name)
    spare(operator, admins)
    changed = await tx.run(Q.disable, operator=operator.id)
    ended = await tx.run(Q.end_sessions, operator=operator.id)
    if changed:
        await did(tx, by, "operator.disabled", operator.name, sessions=ended)
    return operator


async def enable(tx: Tx, name: str, by: Actor) -> Operator:
    operator = await held(tx, name)
    if await tx.run(Q.enable, operator=operator.id):
        await did(tx, by, "operator.enabled", operator.name)
    return operator


async def held(tx: Tx, name: str) -> Operator:
    """An operator whom nobody else changes meanwhile."""
    operator = await tx.maybe(Operator, Q.hold, name=name)
    if operator is None:
        raise NotFound(f"there is no operator {name[:64]}")
    return operator


async def _put(tx: Tx, name: str, password: str, role: Role, by: Actor) -> Operator | None:
    """Add an operator; None when the name is taken."""
    password_hash = await passwords.hashed(password)
    added = await tx.maybe(Operator, Q.add, id=new_id(), name=name, password_hash=password_hash, role=role)
    if added:
        await did(tx, by, "operator.added", name, role=role)
    return added


def spare(operator: Operator, admins: Sequence[UUID]) -> None:
    """Refuse to take the last admin away: nobody could mend what comes after."""
    if admins == [operator.id]:
        raise Conflict(f"{operator.name} is the only admin who can sign in: add or enable another one first")
