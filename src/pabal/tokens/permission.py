"""The permissions of a service, and two groups of permissions."""

from collections.abc import Iterable
from enum import StrEnum

from pabal.core.errors import InvalidScope


class Permission(StrEnum):
    """A permission of a token."""

    PUBLISH = "events:publish"
    CONSUME = "events:consume"
    READ_EVENTS = "events:read"
    SEND = "notifications:send"
    READ_NOTIFICATIONS = "notifications:read"
    ISSUE_PERSON_TOKENS = "people:token"
    WRITE_PEOPLE = "people:write"
    INTROSPECT = "tokens:introspect"
    MANAGE_TOKENS = "tokens:admin"
    RECEIVE_HUB_EVENTS = "hub:events"
    ADMIN = "hub:admin"
    MANAGE = "hub:manage"


READ_PERMISSIONS = (Permission.READ_EVENTS, Permission.READ_NOTIFICATIONS)
PERMISSION_GROUPS: dict[str, tuple[Permission, ...]] = {
    "read": READ_PERMISSIONS,
    "write": (*READ_PERMISSIONS, Permission.PUBLISH, Permission.CONSUME, Permission.SEND),
}
PERMISSION_NAMES = (*PERMISSION_GROUPS, *Permission)
"""All names that may be requested, granted and stored."""


def expand_permissions(names: Iterable[str]) -> frozenset[Permission]:
    """The permissions with these names. Groups are expanded."""
    return frozenset(permission for name in names for permission in PERMISSION_GROUPS.get(name) or (Permission(name),))


def format_scope(names: Iterable[str]) -> str:
    """The `scope` claim: expanded, in the order of Permission."""
    granted = expand_permissions(names)
    return " ".join(permission for permission in Permission if permission in granted)


def check_permission_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without duplicates; raises InvalidScope for an unknown name."""
    requested = tuple(dict.fromkeys(names))
    if unknown := [name for name in requested if name not in PERMISSION_NAMES]:
        raise InvalidScope(f"{unknown[0][:64]!r} is not a permission; use one of {', '.join(PERMISSION_NAMES)}")
    return requested


def grant_permissions(requested: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """The requested permissions that are allowed; raises InvalidScope if there are none.

    An empty request means all allowed permissions. Of a group that is allowed only in part, that part is granted.
    """
    allowed = tuple(allowed)
    limit = expand_permissions(allowed)
    granted: dict[str, None] = {}
    for name in check_permission_names(requested) or allowed:
        members = expand_permissions([name])
        names = [name] if members <= limit else [member for member in Permission if member in members & limit]
        granted.update(dict.fromkeys(names))
    if not granted:
        raise InvalidScope("the service has none of the requested permissions")
    return tuple(granted)
