"""Keyset pagination: `{"items": […], "cursor": … or null}`."""

from typing import Annotated

import msgspec

from pabal.core.cursor import decode_cursor, encode_cursor, next_cursor
from pabal.web.field_types import CursorText
from pabal.web.route import RequestQuery

__all__ = ["PageLimit", "PageQuery", "decode_cursor", "encode_cursor", "next_cursor"]

PageLimit = Annotated[int, msgspec.Meta(ge=1, le=100)]


class PageQuery(RequestQuery, frozen=True, kw_only=True):
    """The query parameters of every paginated list."""

    cursor: CursorText | None = None
    limit: PageLimit = 50
