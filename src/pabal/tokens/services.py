"""The registry of services: who there is, what they may, and the secrets they come with."""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import BadScope, Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Unfit
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.tokens import permission
from pabal.tokens.digest import hashed

Q = beside(__file__)

NAME = re.compile(r"[a-z][a-z0-9_]{1,62}", re.ASCII)
OVERLAP = timedelta(days=7)
"""How long the secret before works on, unless somebody says otherwise."""
OURS = "hub"


@dataclass(frozen=True, slots=True)
class Service:
    """Somebody who publishes, consumes or sends. `now` is the database's time when the row was read."""

    name: str
    description: str | None
    permissions: Sequence[str]
    is_active: bool
    disabled_at: datetime | None
    created_at: datetime
    now: datetime = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secret:
    """A client secret that works, by everything but itself."""

    id: UUID
    created_at: datetime
    expires_at: datetime | None


async def add(
    tx: Tx, name: str, permissions: Iterable[str], by: Actor, *, description: str | None = None
) -> tuple[Service, str]:
    """Add a service and its first secret, which is told this once."""
    if not NAME.fullmatch(name):
        raise Invalid.one("name", "is 2 to 63 characters: a small letter, then small letters, digits and _")
    try:
        may = permission.known(permissions)
    except BadScope as error:
        raise Invalid.one("permission", str(error)) from None
    if not may:
        raise Invalid.one("permission", "is missing: a service that may do nothing needs no token")
    service = await tx.maybe(Service, Q.add, name=name, description=description, permissions=may)
    if service is None:
        raise Conflict(f"there is already a service {name}")
    await did(tx, by, "service.added", name, permissions=may)
    return service, await _new_secret(tx, name, by, life=None)


async def find(tx: Tx, name: str) -> Service:
    service = await tx.maybe(Service, Q.find, name=name)
    if service is None:
        raise NotFound(f"there is no service {name}")
    return service


async def every(tx: Tx) -> list[Service]:
    return await tx.all(Service, Q.list)


async def set_active(tx: Tx, name: str, by: Actor, *, active: bool) -> Service:
    """Let a service in again, or keep it out: its secrets and tokens stop at once, and work again when it is let in."""
    if name == OURS and not active:
        raise Conflict("the hub cannot do without itself")
    changed = await tx.maybe(Service, Q.set_active, name=name, active=active)
    if changed is None:
        return await find(tx, name)
    await did(tx, by, "service.enabled" if active else "service.disabled", name)
    tx.ring(Bell.TOKENS)
    return changed


async def live_secrets(tx: Tx, name: str) -> list[Secret]:
    return await tx.all(Secret, Q.secrets, service=name)


async def held_secrets(tx: Tx, name: str) -> list[Secret]:
    """The same, while nobody else who asks so gives the service another one."""
    if await tx.value(Q.hold, name=name) is None:
        raise NotFound(f"there is no service {name}")
    return await live_secrets(tx, name)


async def live_families(tx: Tx, name: str) -> int:
    return await tx.value(Q.live_families, service=name)


async def rotate_secret(
    tx: Tx, name: str, by: Actor, *, overlap: timedelta = OVERLAP, life: timedelta | None = None
) -> str:
    """Give a service a new secret, told this once; the one before works on for the overlap. At most two live."""
    if name == OURS:
        raise Conflict("the hub has no secret: nobody may speak in its name")
    await find(tx, name)
    if overlap > timedelta():
        await tx.run(Q.end_secrets, service=name, overlap=overlap)
    else:
        await tx.run(Q.revoke_secrets, service=name)
    return await _new_secret(tx, name, by, life=life)


async def _new_secret(tx: Tx, name: str, by: Actor, *, life: timedelta | None) -> str:
    secret, secret_id = f"pbs_{secrets.token_urlsafe(32)}", new_id()
    try:
        await tx.run(Q.put_secret, id=secret_id, service=name, secret_hash=hashed(secret), life=life)
    except Unfit as error:
        if error.constraint != "secret_slots":
            raise
        raise Conflict(f"{name} has two live secrets already: wait until the older ends, or end both at once") from None
    await did(tx, by, "service.secret_rotated", name, secret=str(secret_id))
    return secret
