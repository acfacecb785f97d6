"""Ids sort by creation time, so that new rows go to the end of every index."""

import time
from datetime import timedelta
from uuid import UUID

import uuid_utils
from uuid_utils.compat import uuid7

MIN_ID_PREFIX = 8
"""The shortest prefix that may be used in place of an id."""
ID_HEX_DIGITS = 32
TIMESTAMP_SHIFT = 80
"""A UUIDv7 begins with 48 bits of epoch milliseconds."""
LOWEST_ID = UUID(int=0)


def new_id() -> UUID:
    """Generate a UUIDv7. PostgreSQL has a function for it only since version 18."""
    return uuid7()


def new_id_text() -> str:
    """A new id in 32 hexadecimal digits, without the object."""
    return uuid_utils.uuid7().hex


def id_age(made_id: UUID) -> timedelta:
    """The time since `new_id` made the id, by the host's clock. It counts while the process is stopped."""
    return timedelta(milliseconds=time.time_ns() // 1_000_000 - (made_id.int >> TIMESTAMP_SHIFT))


def id_prefix_range(prefix: str) -> tuple[UUID, UUID] | None:
    """The lowest and the highest id with this prefix; None if it is too short or not hexadecimal."""
    digits = prefix.replace("-", "").lower()
    if not MIN_ID_PREFIX <= len(digits) <= ID_HEX_DIGITS or not {*digits} <= {*"0123456789abcdef"}:
        return None
    return UUID(digits.ljust(ID_HEX_DIGITS, "0")), UUID(digits.ljust(ID_HEX_DIGITS, "f"))
