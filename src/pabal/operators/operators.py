"""Operators: who may sign in to the console, and as what."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.operators.password import generate_password, hash_password

Q = load_queries(__file__)

OPERATOR_NAME = re.compile(r"[\w.@+-]{1,64}")


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
class OperatorSession(Operator):
    """An operator who is signed in. `csrf` must come back with every form; `renewed` is the cookie from now on."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    renewed_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OperatorCredentials(Operator):
    """An operator with what their password is held against."""

    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorSummary(Operator):
    """An operator as a list shows them."""

    created_at: datetime
    disabled_at: datetime | None
    last_signed_in_at: datetime | None


async def add_operator(tx: Tx, name: str, password: str, role: Role, actor: Actor = HUB_ACTOR) -> Operator:
    if not OPERATOR_NAME.fullmatch(name):
        raise Invalid.of_field("name", "is 1 to 64 letters, digits and . _ @ + -")
    added = await _insert_operator(tx, name, password, role, actor)
    if added is None:
        raise Conflict(f"there is already an operator {name}")
    return added


async def ensure_first_operator(tx: Tx, password: str | None) -> str | None:
    """See that somebody can sign in. Returns a password only if one had to be made up: show it once."""
    if await tx.value(Q.operator_exists):
        return None
    chosen = password or generate_password()
    added = await _insert_operator(tx, "admin", chosen, Role.ADMIN, HUB_ACTOR)
    return chosen if added and password is None else None


async def find_operator_credentials(tx: Tx, name: str) -> OperatorCredentials | None:
    """An operator who may sign in under this name, whatever its case."""
    return await tx.maybe(OperatorCredentials, Q.find_operator_credentials, name=name)


async def list_operators(tx: Tx) -> list[OperatorSummary]:
    return await tx.all(OperatorSummary, Q.list_operators)


async def set_operator_password(
    tx: Tx, name: str, password_hash: str, actor: Actor, *, expected_hash: str | None = None
) -> Operator:
    """Give an operator another password. Whoever is signed in with the one before is out at once.

    `before` is the one it is to replace, as it was read; when somebody else has replaced it since, theirs stands.
    """
    operator = await lock_operator(tx, name)
    if not await tx.run(
        Q.set_operator_password, operator=operator.id, password_hash=password_hash, before=expected_hash
    ):
        raise Conflict("somebody else has changed the password meanwhile")
    ended = await tx.run(Q.delete_operator_sessions, operator=operator.id)
    await record_action(tx, actor, "operator.password_changed", operator.name, sessions=ended)
    return operator


async def set_operator_role(tx: Tx, name: str, role: Role, actor: Actor) -> Operator:
    """Make an operator what they are to be; who is signed in is it with the next page."""
    admins = await tx.column(Q.lock_active_admins)
    operator = await lock_operator(tx, name)
    if operator.role == role:
        return operator
    if role != Role.ADMIN:
        check_not_last_admin(operator, admins)
    await record_action(tx, actor, "operator.role_changed", operator.name, role=role)
    return await tx.one(Operator, Q.set_operator_role, operator=operator.id, role=role)


async def disable_operator(tx: Tx, name: str, actor: Actor) -> Operator:
    """Keep an operator out, from now on: who is signed in is so no longer."""
    admins = await tx.column(Q.lock_active_admins)
    operator = await lock_operator(tx, name)
    check_not_last_admin(operator, admins)
    changed = await tx.run(Q.disable_operator, operator=operator.id)
    ended = await tx.run(Q.delete_operator_sessions, operator=operator.id)
    if changed:
        await record_action(tx, actor, "operator.disabled", operator.name, sessions=ended)
    return operator


async def enable_operator(tx: Tx, name: str, actor: Actor) -> Operator:
    operator = await lock_operator(tx, name)
    if await tx.run(Q.enable_operator, operator=operator.id):
        await record_action(tx, actor, "operator.enabled", operator.name)
    return operator


async def lock_operator(tx: Tx, name: str) -> Operator:
    """An operator whom nobody else changes meanwhile."""
    operator = await tx.maybe(Operator, Q.lock_operator, name=name)
    if operator is None:
        raise NotFound(f"there is no operator {name[:64]}")
    return operator


async def _insert_operator(tx: Tx, name: str, password: str, role: Role, actor: Actor) -> Operator | None:
    """Add an operator; None when the name is taken."""
    password_hash = await hash_password(password)
    added = await tx.maybe(Operator, Q.insert_operator, id=new_id(), name=name, password_hash=password_hash, role=role)
    if added:
        await record_action(tx, actor, "operator.added", name, role=role)
    return added


def check_not_last_admin(operator: Operator, active_admins: Sequence[UUID]) -> None:
    """Refuse to take the last admin away: nobody could mend what comes after."""
    if active_admins == [operator.id]:
        raise Conflict(f"{operator.name} is the only admin who can sign in: add or enable another one first")
