"""Event types: their form, patterns that match several of them, and the types that only the hub publishes.

The database has the same rules, in `event_type_form`, `pabal.are_event_patterns` and `pabal.hub_event_types`.
"""

import re
from collections.abc import Iterable

EVENT_TYPE_PATTERN = r"^[a-z0-9_]+(\.[a-z0-9_]+)*$(?!\n)"
"""The lookahead rejects a trailing newline, which `$` accepts in Python and not in PostgreSQL."""
EVENT_WILDCARD_PATTERN = r"^[a-z0-9_*]+(\.[a-z0-9_*]+)*$(?!\n)"
"""An event type in which `*` matches anything."""
MAX_EVENT_TYPE_LENGTH = 128
MAX_EVENT_PATTERNS = 50
ANY_EVENT_TYPE = "*"

HUB_SERVICE = "hub"
"""The service that the hub's own events come from."""
HUB_EVENT_TYPES = frozenset(
    {
        "pabal.test",
        "relay.callback.failed",
        "relay.message.received",
        "relay.pairing.verified",
        "security.token_reuse",
        "token.issued",
    }
)
"""Event types that only the hub publishes. A service receives them only with the permission hub:events."""

EVENT_WILDCARD = re.compile(EVENT_WILDCARD_PATTERN, re.ASCII)


def is_event_pattern(pattern: str) -> bool:
    return len(pattern) <= MAX_EVENT_TYPE_LENGTH and EVENT_WILDCARD.fullmatch(pattern) is not None


def matches_event_pattern(event_type: str, pattern: str) -> bool:
    """Whether a pattern matches the whole type, as LIKE does in SQL. Takes linear time, unlike a regular expression."""
    head, *parts = pattern.split("*")
    if not parts:
        return event_type == head
    *middle, tail = parts
    start, end = len(head), len(event_type) - len(tail)
    if start > end or not event_type.startswith(head) or not event_type.endswith(tail):
        return False
    for part in middle:
        found_at = event_type.find(part, start, end)
        if found_at < 0:
            return False
        start = found_at + len(part)
    return True


def is_allowed_event_type(event_type: str, patterns: Iterable[str] | None) -> bool:
    """Whether one of the patterns matches; None allows every type."""
    return patterns is None or any(matches_event_pattern(event_type, pattern) for pattern in patterns)


def patterns_overlap(first: str, second: str) -> bool:
    """Whether some event type may match both patterns. Of two patterns with `*`, only the beginnings are compared."""
    if "*" not in first:
        return matches_event_pattern(first, second)
    if "*" not in second:
        return matches_event_pattern(second, first)
    first_prefix, second_prefix = first.partition("*")[0], second.partition("*")[0]
    return first_prefix.startswith(second_prefix) or second_prefix.startswith(first_prefix)
