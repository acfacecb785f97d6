"""A page of a list: `{"items": […], "cursor": … or null}`, and where the next one begins."""

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
    """Which page of a list."""

    cursor: str | None = None
    limit: PageLimit = 50


def decode_cursor(cursor: str | None) -> PageCursor | None:
    """Where a page begins: after the row the cursor names."""
    if cursor is None:
        return None
    try:
        at, row = msgspec.json.decode(decode_base64url(cursor), type=PageCursor)
        return at.astimezone(UTC), row
    except (ValueError, OverflowError):
        raise Invalid.of_field("cursor", "is not one this list gave") from None


def next_cursor(rows: list[Any], limit: int, time_field: str = "created_at") -> str | None:
    """Where the next page begins; nowhere when this one was not full."""
    return encode_cursor(rows[-1], time_field) if len(rows) >= limit else None


def encode_cursor(row: Any, time_field: str = "created_at") -> str | None:
    """Where a page begins that follows this row; nowhere after none."""
    return None if row is None else encode_base64url(msgspec.json.encode((getattr(row, time_field), row.id)))
