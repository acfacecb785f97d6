"""Ids sort by the time they were made, so new rows land at the end of every index."""

from uuid import UUID

from uuid_utils.compat import uuid7

MIN_ID_PREFIX = 8
"""Characters of an id that may stand for it."""
ID_HEX_DIGITS = 32


def new_id() -> UUID:
    """Make a UUID v7 here rather than in the database, which may be older than version 18."""
    return uuid7()


def id_prefix_range(prefix: str) -> tuple[UUID, UUID] | None:
    """The lowest and the highest id that begin so; None for what cannot be the beginning of one."""
    digits = prefix.replace("-", "").lower()
    if not MIN_ID_PREFIX <= len(digits) <= ID_HEX_DIGITS or not {*digits} <= {*"0123456789abcdef"}:
        return None
    return UUID(digits.ljust(ID_HEX_DIGITS, "0")), UUID(digits.ljust(ID_HEX_DIGITS, "f"))
