"""JSON of any shape: payloads that the hub stores and passes on, but does not read.

Its size is bounded by the caller. Its depth and the number of its lists and objects are bounded here, so that neither
decoding nor any later reader takes long.
"""

import re
from contextlib import nullcontext
from typing import Any, cast

import msgspec

from pabal.core.errors import Invalid
from pabal.core.garbage_collection import paused_collection

MAX_JSON_DEPTH = 64
"""Levels of nested JSON that are accepted. Python can walk a few hundred; the console shows as many as this."""
MAX_JSON_CONTAINERS = 50_000
"""Lists and objects in one document."""
MANY_CONTAINERS = 100
"""Decoding as many may start garbage collections."""
decode_json = msgspec.json.Decoder().decode
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def decode_untyped_json(data: bytes, field: str) -> Any:
    """Decode JSON; raises Invalid with the name of the field."""
    brackets = count_brackets(data)
    if brackets > MAX_JSON_CONTAINERS and count_brackets(JSON_STRING.sub(b"", data)) > MAX_JSON_CONTAINERS:
        raise Invalid.of_field(field, f"has more than {MAX_JSON_CONTAINERS} lists and objects")
    try:
        with paused_collection() if brackets > MANY_CONTAINERS else nullcontext():
            value = decode_json(data)
    except RecursionError:
        raise nested_too_deeply(field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.of_field(field, f"is not valid JSON: {error}") from None
    if brackets > MAX_JSON_DEPTH:
        check_json_depth(value, field)
    return value


def count_brackets(data: bytes) -> int:
    """At least the number of lists and objects, and so of their levels: brackets in texts count too."""
    return data.count(b"[") + data.count(b"{")


def check_json_depth(value: Any, field: str) -> None:
    """Raise Invalid if a decoded value has more than `MAX_JSON_DEPTH` levels. Works level by level, not recursively."""
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [item for container in level for item in items_of(container) if isinstance(item, (dict, list))]
        if not level:
            return
    raise nested_too_deeply(field)


def items_of(container: dict[str, Any] | list[Any]) -> Any:
    return cast("Any", container.values() if isinstance(container, dict) else container)


def nested_too_deeply(field: str) -> Invalid:
    return Invalid.of_field(field, f"is nested more than {MAX_JSON_DEPTH} levels deep")
