"""Cursors of lists that are ordered by time and id."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from pabal.core.errors import Invalid
from pabal.core.secrets import decode_base64url, encode_base64url

PageCursor = tuple[Annotated[datetime, msgspec.Meta(tz=True)], UUID]


def decode_cursor(cursor: str | None) -> PageCursor | None:
    """Return the time and id after which the page begins, or None for the first page."""
    if cursor is None:
        return None
    try:
        at, row = msgspec.json.decode(decode_base64url(cursor), type=PageCursor)
        return at.astimezone(UTC), row
    except (ValueError, OverflowError):
        raise Invalid.of_field("cursor", "is not a cursor of this list") from None


def next_cursor(rows: list[Any], limit: int, time_field: str = "created_at") -> str | None:
    """Return the cursor of the next page, or None if this page is not full."""
    return encode_cursor(rows[-1], time_field) if len(rows) >= limit else None


def encode_cursor(row: Any, time_field: str = "created_at") -> str | None:
    """Return the cursor of the page after `row`, or None without a row."""
    return None if row is None else encode_base64url(msgspec.json.encode((getattr(row, time_field), row.id)))
