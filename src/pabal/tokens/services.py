"""Services, their permissions and their secrets."""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, InvalidScope, NotFound
from pabal.core.event_types import ANY_EVENT_TYPE, HUB_SERVICE, MAX_EVENT_PATTERNS, is_event_pattern
from pabal.core.ids import new_id
from pabal.core.secrets import hash_token
from pabal.db.doorbell.channels import Channel
from pabal.db.errors import CheckViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.explain import MAX_COUNTED_FAMILIES
from pabal.tokens.permission import check_permission_names
from pabal.tokens.revoke import revoke_service_tokens

Q = load_queries(__file__)

SERVICE_NAME_PATTERN = r"^[a-z][a-z0-9_]{1,62}$(?!\n)"
"""The same form as `service_name_form` in the database. The lookahead rejects a trailing newline."""
SERVICE_NAME = re.compile(SERVICE_NAME_PATTERN, re.ASCII)
MAX_SERVICE_DESCRIPTION = 500
SECRET_OVERLAP = timedelta(days=7)
"""How long the previous secret stays valid after a rotation, by default."""


@dataclass(frozen=True, slots=True)
class Service:
    """A program that publishes, consumes or sends. `now` is the database's time when the row was read.

    `may_publish` and `may_subscribe` are patterns of event types; None means all. The hub's own types are never part
    of what a service may publish, and it receives them only with the permission hub:events.
    """

    name: str
    description: str | None
    permissions: Sequence[str]
    may_publish: Sequence[str] | None
    may_subscribe: Sequence[str] | None
    is_active: bool
    disabled_at: datetime | None
    created_at: datetime
    now: datetime = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServiceSecret:
    """A valid client secret, without the secret itself."""

    id: UUID
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ServiceRights:
    """What a service may do. Empty patterns, or `*` among them, mean every event type that a service may use."""

    permissions: Sequence[str]
    may_publish: Sequence[str] = ()
    may_subscribe: Sequence[str] = ()

    def columns(self) -> dict[str, Any]:
        """The columns of the row; raises Invalid for a value that the table would refuse."""
        try:
            permissions = check_permission_names(self.permissions)
        except InvalidScope as error:
            raise Invalid.of_field("permission", str(error)) from None
        if not permissions:
            raise Invalid.of_field("permission", "is required: a service needs at least one permission")
        return {
            "permissions": permissions,
            "may_publish": check_event_patterns("may_publish", self.may_publish),
            "may_subscribe": check_event_patterns("may_subscribe", self.may_subscribe),
        }


@dataclass(frozen=True, slots=True)
class ServicePatch:
    """The fields to change; None keeps a value. Empty patterns mean all event types, an empty description none."""

    permissions: Sequence[str] | None = None
    may_publish: Sequence[str] | None = None
    may_subscribe: Sequence[str] | None = None
    description: str | None = None

    def apply_rights(self, service: Service) -> ServiceRights | None:
        """The rights after the change; None if they stay."""
        if self.permissions is self.may_publish is self.may_subscribe is None:
            return None
        return ServiceRights(
            service.permissions if self.permissions is None else self.permissions,
            (service.may_publish or ()) if self.may_publish is None else self.may_publish,
            (service.may_subscribe or ()) if self.may_subscribe is None else self.may_subscribe,
        )


def check_event_patterns(field_name: str, patterns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the patterns without duplicates; None for all event types."""
    unique = tuple(dict.fromkeys(patterns))
    if len(unique) > MAX_EVENT_PATTERNS or not all(map(is_event_pattern, unique)):
        raise Invalid.of_field(field_name, "must be up to 50 types such as order.paid or order.*, of 128 characters")
    return None if not unique or ANY_EVENT_TYPE in unique else unique


async def add_service(
    tx: Tx,
    name: str,
    permissions: Iterable[str],
    actor: Actor,
    *,
    description: str | None = None,
    may_publish: Sequence[str] = (),
    may_subscribe: Sequence[str] = (),
) -> tuple[Service, str]:
    """Add a service; returns it and its first secret, which cannot be read again."""
    if not SERVICE_NAME.fullmatch(name):
        raise Invalid.of_field("name", "must be 2 to 63 lower-case letters, digits and _, starting with a letter")
    rights = ServiceRights((*permissions,), may_publish, may_subscribe).columns()
    service = await tx.maybe(
        Service, Q.insert_service, name=name, description=check_service_description(description), **rights
    )
    if service is None:
        raise Conflict(f"Service {name} already exists")
    await revoke_service_tokens(tx, name, actor)  # issued while a former service of this name was being removed
    await record_action(tx, actor, "service.added", name, **given_rights(rights))
    return service, await _insert_service_secret(tx, name, actor, lifetime=None)


async def set_service_rights(tx: Tx, name: str, rights: ServiceRights, actor: Actor) -> Service:
    """Replace the rights of a service. They apply to its tokens and its subscriptions at once, in every process."""
    if name == HUB_SERVICE:
        raise Conflict("The rights of the hub's own service cannot be changed")
    columns = rights.columns()
    service = await tx.maybe(Service, Q.set_service_rights, name=name, **columns)
    if service is None:
        raise NotFound(f"No such service: {name}")
    await record_action(tx, actor, "service.rights_changed", name, **given_rights(columns))
    tx.notify(Channel.TOKENS)
    return service


def given_rights(columns: dict[str, Any]) -> dict[str, Any]:
    """The rights for the audit log, without unlimited patterns."""
    return {name: value for name, value in columns.items() if value is not None}


async def update_service(tx: Tx, name: str, patch: ServicePatch, actor: Actor) -> Service:
    """Change the fields of a service that the patch names. A concurrent change waits, and keeps these fields."""
    await lock_service(tx, name)
    service = await find_service(tx, name)
    if rights := patch.apply_rights(service):
        service = await set_service_rights(tx, name, rights, actor)
    if patch.description is not None and patch.description.strip() != (service.description or ""):
        service = await set_service_description(tx, name, patch.description, actor)
    return service


async def set_service_description(tx: Tx, name: str, description: str | None, actor: Actor) -> Service:
    """Replace the description of a service; None removes it."""
    service = await tx.maybe(
        Service, Q.set_service_description, name=name, description=check_service_description(description)
    )
    if service is None:
        raise NotFound(f"No such service: {name}")
    await record_action(tx, actor, "service.described", name)
    return service


async def remove_service(tx: Tx, name: str, actor: Actor) -> None:
    """Remove a service that nothing refers to, with its secrets. Raises Conflict for any other one."""
    if name == HUB_SERVICE:
        raise Conflict("The hub's own service cannot be removed")
    await lock_live_secrets(tx, name)
    if uses := await tx.value(Q.find_service_uses, name=name):
        raise Conflict(f"{name} cannot be removed, because it has {join_words(uses)}. Disable it instead")
    await tx.run(Q.revoke_service_secrets, service=name)
    await tx.run(Q.remove_service, name=name)
    await record_action(tx, actor, "service.removed", name)
    tx.notify(Channel.TOKENS)


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def check_service_description(description: str | None) -> str | None:
    """Return the description without surrounding space; None if it is empty."""
    text = (description or "").strip()
    if len(text) > MAX_SERVICE_DESCRIPTION or not text.isprintable():
        raise Invalid.of_field("description", f"must be one line of at most {MAX_SERVICE_DESCRIPTION} characters")
    return text or None


async def find_service(tx: Tx, name: str) -> Service:
    service = await tx.maybe(Service, Q.find_service, name=name)
    if service is None:
        raise NotFound(f"No such service: {name}")
    return service


async def list_services(tx: Tx, *, after: str = "", limit: int | None = None) -> list[Service]:
    """Services by name, starting after `after`."""
    return await tx.all(Service, Q.list_services, after=after, limit=limit)


async def has_active_services(tx: Tx) -> bool:
    """Whether there is an enabled service besides the hub's own."""
    return await tx.value(Q.has_active_services)


async def set_service_active(tx: Tx, name: str, actor: Actor, *, active: bool) -> Service:
    """Enable or disable a service. While it is disabled, its secrets and tokens are rejected."""
    if name == HUB_SERVICE and not active:
        raise Conflict("The hub's own service cannot be disabled")
    service = await tx.maybe(Service, Q.set_service_active, name=name, active=active)
    if service is None:
        return await find_service(tx, name)
    await record_action(tx, actor, "service.enabled" if active else "service.disabled", name)
    tx.notify(Channel.TOKENS)
    return service


async def list_live_secrets(tx: Tx, name: str) -> list[ServiceSecret]:
    return await tx.all(ServiceSecret, Q.list_live_secrets, service=name)


async def lock_live_secrets(tx: Tx, name: str) -> list[ServiceSecret]:
    """List the valid secrets and lock the service against concurrent rotations."""
    await lock_service(tx, name)
    return await list_live_secrets(tx, name)


async def lock_service(tx: Tx, name: str) -> None:
    """Lock a service against concurrent changes and its removal, until the transaction ends."""
    if await tx.value(Q.lock_service, name=name) is None:
        raise NotFound(f"No such service: {name}")


async def count_live_families(tx: Tx, name: str) -> int:
    return await tx.value(Q.count_live_families, service=name)


async def rotate_service_secret(
    tx: Tx, name: str, actor: Actor, *, overlap: timedelta = SECRET_OVERLAP, lifetime: timedelta | None = None
) -> str:
    """Create a new secret and return it; it cannot be read again. The previous one stays valid for `overlap`."""
    if name == HUB_SERVICE:
        raise Conflict("The hub's own service has no secret")
    await lock_service(tx, name)
    if overlap > timedelta():
        await tx.run(Q.limit_secret_lifetimes, service=name, overlap=overlap)
    else:
        await tx.run(Q.revoke_service_secrets, service=name)
    return await _insert_service_secret(tx, name, actor, lifetime=lifetime)


async def _insert_service_secret(tx: Tx, name: str, actor: Actor, *, lifetime: timedelta | None) -> str:
    secret, secret_id = f"pbs_{secrets.token_urlsafe(32)}", new_id()
    try:
        await tx.run(
            Q.insert_service_secret, id=secret_id, service=name, secret_hash=hash_token(secret).hex(), lifetime=lifetime
        )
    except CheckViolation as error:
        if error.constraint != "secret_slots":
            raise
        raise Conflict(
            f"{name} already has two valid secrets: wait until the older one expires, or revoke both at once"
        ) from None
    await record_action(tx, actor, "service.secret_rotated", name, secret=str(secret_id))
    return secret


@dataclass(frozen=True, slots=True)
class ServiceSummary(Service):
    """A service with the number of its secrets and token families, and when it last got a token."""

    live_secret_count: int
    live_family_count: int
    last_token_at: datetime | None


async def list_service_summaries(tx: Tx, *, after: str = "", limit: int = 50) -> list[ServiceSummary]:
    """Services by name, starting after `after`. Families are counted up to MAX_COUNTED_FAMILIES."""
    return await tx.all(
        ServiceSummary, Q.list_service_summaries, after=after, max_families=MAX_COUNTED_FAMILIES, limit=limit
    )
