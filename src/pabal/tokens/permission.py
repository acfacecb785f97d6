"""What a service may do: eight permissions and two groups of them."""

from collections.abc import Iterable
from enum import StrEnum

from pabal.core.errors import InvalidScope


class Permission(StrEnum):
    """One thing a token may carry the right to."""

    PUBLISH = "events:publish"
    CONSUME = "events:consume"
    READ_EVENTS = "events:read"
    SEND = "notifications:send"
    READ_NOTIFICATIONS = "notifications:read"
    INTROSPECT = "tokens:introspect"
    MANAGE_TOKENS = "tokens:admin"
    ADMIN = "hub:admin"


READ_PERMISSIONS = (Permission.READ_EVENTS, Permission.READ_NOTIFICATIONS)
PERMISSION_GROUPS: dict[str, tuple[Permission, ...]] = {
    "read": READ_PERMISSIONS,
    "write": (*READ_PERMISSIONS, Permission.PUBLISH, Permission.CONSUME, Permission.SEND),
}
PERMISSION_NAMES = (*PERMISSION_GROUPS, *Permission)
"""Everything that may be asked for, granted and stored."""


def expand_permissions(names: Iterable[str]) -> frozenset[Permission]:
    """What these names stand for, groups taken apart."""
    return frozenset(each for name in names for each in PERMISSION_GROUPS.get(name) or (Permission(name),))


def format_scope(names: Iterable[str]) -> str:
    """As a token says it: taken apart, in the order of the table."""
    carried = expand_permissions(names)
    return " ".join(each for each in Permission if each in carried)


def check_permission_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; a name nobody knows is refused."""
    asked = tuple(dict.fromkeys(names))
    if strange := [name for name in asked if name not in PERMISSION_NAMES]:
        raise InvalidScope(f"{strange[0][:64]!r} is not a permission; there are {', '.join(PERMISSION_NAMES)}")
    return asked


def grant_permissions(requested: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """What is given of what was asked: all that is allowed of it, or a refusal when that is nothing.

    Who asks for nothing in particular asks for everything. A group that is allowed only in part is given in part.
    """
    allowed = tuple(allowed)
    limit = expand_permissions(allowed)
    given: dict[str, None] = {}
    for name in check_permission_names(requested) or allowed:
        whole = expand_permissions([name])
        given.update(
            dict.fromkeys([name] if whole <= limit else [each for each in Permission if each in whole & limit])
        )
    if not given:
        raise InvalidScope("the service is allowed none of the permissions asked for")
    return tuple(given)
