"""Ids sort by the time they were made, so new rows land at the end of every index."""

from uuid import UUID

from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """Make a UUID v7 here rather than in the database, which may be older than version 18."""
    return uuid7()
