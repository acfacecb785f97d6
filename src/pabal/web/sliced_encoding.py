"""Encode long lists in slices, so that other requests get a turn in between."""

import asyncio
from typing import Any

import msgspec

from pabal.web.route import ResponseBody

SLICE_ITEMS = 2
SLICE_BYTES = 524_288
"""After so many bytes, other requests get a turn. An item can have 256 KB, or twice the size of a webhook."""

encode_response = msgspec.json.Encoder().encode


def find_list_field(kind: Any) -> str | None:
    """The list that a response consists of: its first field."""
    if not (isinstance(kind, type) and issubclass(kind, ResponseBody)):
        return None
    first, *_ = (*msgspec.structs.fields(kind), None)
    return first.name if first and getattr(first.type, "__origin__", None) is list else None


async def encode_in_slices(response: ResponseBody, field: str) -> bytes:
    """Encode a response whose first field is a list."""
    items: list[Any] = getattr(response, field)
    if len(items) <= SLICE_ITEMS:
        return encode_response(response)
    frame = encode_response(msgspec.structs.replace(response, **{field: []}))
    head, bracket, tail = frame.partition(b"[")
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(items), SLICE_ITEMS):
        part = encode_response(items[start : start + SLICE_ITEMS])[1:-1]
        parts.append(part)
        size += len(part)
        if size > SLICE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return b"".join((head, bracket, b",".join(parts), tail))
