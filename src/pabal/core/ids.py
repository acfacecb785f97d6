"""Ids sort by the time they were made, so new rows land at the end of every index."""

from uuid import UUID

from uuid_utils.compat import uuid7

SHORTEST = 8
"""Characters of an id that may stand for it."""
WHOLE = 32


def new_id() -> UUID:
    """Make a UUID v7 here rather than in the database, which may be older than version 18."""
    return uuid7()


def spanned(beginning: str) -> tuple[UUID, UUID] | None:
    """The lowest and the highest id that begin so; None for what cannot be the beginning of one."""
    digits = beginning.replace("-", "").lower()
    if not SHORTEST <= len(digits) <= WHOLE or not {*digits} <= {*"0123456789abcdef"}:
        return None
    return UUID(digits.ljust(WHOLE, "0")), UUID(digits.ljust(WHOLE, "f"))
