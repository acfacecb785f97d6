"""Operators: the users of the console, and their roles."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.operators.password import generate_password, hash_password

Q = load_queries(__file__)

OPERATOR_NAME = re.compile(r"(?!\.+$)[\w.@+-]{1,64}")
"""Not only dots: browsers leave `..` out of a path, so that the pages of such an operator could not be opened."""


class Role(StrEnum):
    VIEWER = "viewer"
    ADMIN = "admin"


RoleValue = Literal["viewer", "admin"]
"""The values of `Role`, as rows hold them."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A user of the console."""

    id: UUID
    name: str
    role: RoleValue


@dataclass(frozen=True, slots=True)
class OperatorSession(Operator):
    """A signed-in operator. Forms must send `csrf`; `renewed_token` replaces the cookie, if it is not None."""

    session_id: UUID
    csrf: bytes = field(repr=False)
    renewed_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OperatorCredentials(Operator):
    """An operator with the hash of the password."""

    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorSummary(Operator):
    """An operator in a list."""

    created_at: datetime
    disabled_at: datetime | None
    last_signed_in_at: datetime | None


async def add_operator(tx: Tx, name: str, password_hash: str, role: Role, actor: Actor = HUB_ACTOR) -> Operator:
    """Add an operator. Hash the password before the transaction: it takes long."""
    if not OPERATOR_NAME.fullmatch(name):
        raise Invalid.of_field("name", "must be 1 to 64 letters, digits and . _ @ + -, and not only dots")
    operator = await _insert_operator(tx, name, password_hash, role, actor)
    if operator is None:
        raise Conflict(f"Operator {name} already exists")
    return operator


async def ensure_first_operator(tx: Tx, password: str | None) -> str | None:
    """Add the operator `admin` if there is no operator. Returns its password only if it was generated: show it once."""
    if await tx.value(Q.operator_exists):
        return None
    new_password = password or generate_password()
    operator = await _insert_operator(tx, "admin", await hash_password(new_password), Role.ADMIN, HUB_ACTOR)
    return new_password if operator and password is None else None


async def find_operator_credentials(tx: Tx, name: str) -> OperatorCredentials | None:
    """Find an enabled operator by name, ignoring case."""
    return await tx.maybe(OperatorCredentials, Q.find_operator_credentials, name=name)


async def list_operators(tx: Tx) -> list[OperatorSummary]:
    return await tx.all(OperatorSummary, Q.list_operators)


async def find_operator(tx: Tx, name: str) -> OperatorSummary:
    operator = await tx.maybe(OperatorSummary, Q.find_operator, name=name)
    if operator is None:
        raise NotFound(f"No such operator: {name[:64]}")
    return operator


async def set_operator_password(
    tx: Tx, name: str, password_hash: str, actor: Actor, *, expected_hash: str | None = None
) -> Operator:
    """Change an operator's password and end all of their sessions.

    With `expected_hash`, raises Conflict if the password has been changed since that hash was read.
    """
    operator = await lock_operator(tx, name)
    if not await tx.run(
        Q.set_operator_password, operator=operator.id, password_hash=password_hash, before=expected_hash
    ):
        raise Conflict("The password has been changed in the meantime")
    ended = await tx.run(Q.delete_operator_sessions, operator=operator.id)
    await record_action(tx, actor, "operator.password_changed", operator.name, sessions=ended)
    return operator


async def set_operator_role(tx: Tx, name: str, role: Role, actor: Actor) -> Operator:
    """Change an operator's role. It applies to their sessions from the next request on."""
    admins = await tx.column(Q.lock_active_admins)
    operator = await lock_operator(tx, name)
    if operator.role == role:
        return operator
    if role != Role.ADMIN:
        check_not_last_admin(operator, admins)
    await record_action(tx, actor, "operator.role_changed", operator.name, role=role)
    return await tx.one(Operator, Q.set_operator_role, operator=operator.id, role=role)


async def disable_operator(tx: Tx, name: str, actor: Actor) -> Operator:
    """Disable an operator and end all of their sessions."""
    admins = await tx.column(Q.lock_active_admins)
    operator = await lock_operator(tx, name)
    check_not_last_admin(operator, admins)
    disabled = await tx.run(Q.disable_operator, operator=operator.id)
    ended = await tx.run(Q.delete_operator_sessions, operator=operator.id)
    if disabled:
        await record_action(tx, actor, "operator.disabled", operator.name, sessions=ended)
    return operator


async def enable_operator(tx: Tx, name: str, actor: Actor) -> Operator:
    operator = await lock_operator(tx, name)
    if await tx.run(Q.enable_operator, operator=operator.id):
        await record_action(tx, actor, "operator.enabled", operator.name)
    return operator


async def remove_operator(tx: Tx, name: str, actor: Actor) -> Operator:
    """Remove an operator and end all of their sessions. The audit log keeps the name."""
    admins = await tx.column(Q.lock_active_admins)
    operator = await lock_operator(tx, name)
    check_not_last_admin(operator, admins)
    ended = await tx.run(Q.delete_operator_sessions, operator=operator.id)
    await tx.run(Q.delete_operator, operator=operator.id)
    await record_action(tx, actor, "operator.removed", operator.name, sessions=ended)
    return operator


async def lock_operator(tx: Tx, name: str) -> Operator:
    """Find an operator and lock the row."""
    operator = await tx.maybe(Operator, Q.lock_operator, name=name)
    if operator is None:
        raise NotFound(f"No such operator: {name[:64]}")
    return operator


async def _insert_operator(tx: Tx, name: str, password_hash: str, role: Role, actor: Actor) -> Operator | None:
    """Insert an operator; None if the name exists."""
    operator = await tx.maybe(
        Operator, Q.insert_operator, id=new_id(), name=name, password_hash=password_hash, role=role
    )
    if operator:
        await record_action(tx, actor, "operator.added", name, role=role)
    return operator


def check_not_last_admin(operator: Operator, active_admins: Sequence[UUID]) -> None:
    """Raise Conflict if the operator is the only enabled admin."""
    if active_admins == [operator.id]:
        raise Conflict(f"{operator.name} is the only enabled admin. Add or enable another one first")
