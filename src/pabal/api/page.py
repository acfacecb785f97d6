"""A page of a list: `{"items": […], "cursor": … or null}`, and where the next one begins."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from pabal.api.door import Query
from pabal.core.base64url import decoded, encoded
from pabal.core.errors import Invalid

Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Place = tuple[Annotated[datetime, msgspec.Meta(tz=True)], UUID]


class PageQuery(Query, frozen=True, kw_only=True):
    """Which page of a list."""

    cursor: str | None = None
    limit: Limit = 50


def place_of(cursor: str | None) -> Place | None:
    """Where a page begins: after the row the cursor names."""
    if cursor is None:
        return None
    try:
        at, row = msgspec.json.decode(decoded(cursor), type=Place)
        return at.astimezone(UTC), row
    except (ValueError, OverflowError):
        raise Invalid.one("cursor", "is not one this list gave") from None


def cursor_of(rows: list[Any], limit: int, at: str = "created_at") -> str | None:
    """Where the next page begins; nowhere when this one was not full."""
    return cursor_at(rows[-1], at) if len(rows) >= limit else None


def cursor_at(row: Any, at: str = "created_at") -> str | None:
    """Where a page begins that follows this row; nowhere after none."""
    return None if row is None else encoded(msgspec.json.encode((getattr(row, at), row.id)))
