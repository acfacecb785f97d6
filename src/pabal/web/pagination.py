"""Keyset pagination: `{"items": […], "cursor": … or null}`."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from pabal.core.errors import Invalid
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.web.route import RequestQuery

PageLimit = Annotated[int, msgspec.Meta(ge=1, le=100)]
PageCursor = tuple[Annotated[datetime, msgspec.Meta(tz=True)], UUID]


class PageQuery(RequestQuery, frozen=True, kw_only=True):
    """The query parameters of every paginated list."""

    cursor: str | None = None
    limit: PageLimit = 50


def decode_cursor(cursor: str | None) -> PageCursor | None:
    """The time and id of the row that the page starts after; None for the first page."""
    if cursor is None:
        return None
    try:
        at, row = msgspec.json.decode(decode_base64url(cursor), type=PageCursor)
        return at.astimezone(UTC), row
    except (ValueError, OverflowError):
        raise Invalid.of_field("cursor", "is not a cursor of this list") from None


def next_cursor(rows: list[Any], limit: int, time_field: str = "created_at") -> str | None:
    """The cursor of the next page, or None if this page is the last one."""
    return encode_cursor(rows[-1], time_field) if len(rows) >= limit else None


def encode_cursor(row: Any, time_field: str = "created_at") -> str | None:
    """The cursor of the page that starts after this row; None without a row."""
    return None if row is None else encode_base64url(msgspec.json.encode((getattr(row, time_field), row.id)))
