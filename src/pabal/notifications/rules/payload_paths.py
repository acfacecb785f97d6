"""Paths into a payload: `order.id`, `members.discord_id`, `steps.0.name`. A path through a list means every element."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

PATH_PATTERN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
MAX_PATH_LENGTH = 255

ListPositions = Mapping[str, int]
"""The element taken in each list. Values beside a recipient are read from the same elements."""
NO_POSITIONS: ListPositions = {}


class PayloadPathError(Exception):
    """The payload has no usable value at a path."""


def is_payload_path(text: str) -> bool:
    return len(text) <= MAX_PATH_LENGTH and PATH_PATTERN.fullmatch(text) is not None


def find_payload_values(
    payload: Any, path: str, positions: ListPositions = NO_POSITIONS
) -> Iterator[tuple[Any, ListPositions]]:
    """Yield every value at a path with its list positions. An empty list has none; a missing key is an error."""
    yield from _walk_payload(payload, path.split("."), 0, positions)


def find_payload_value(payload: Any, path: str, positions: ListPositions = NO_POSITIONS) -> Any:
    """Return the only value at a path. None and several are errors."""
    values = [value for value, _ in find_payload_values(payload, path, positions)]
    if len(values) != 1:
        raise PayloadPathError(f"{path} has {len(values)} values instead of one")
    return values[0]


def _walk_payload(
    node: Any, parts: list[str], depth: int, positions: ListPositions
) -> Iterator[tuple[Any, ListPositions]]:
    here = ".".join(parts[:depth])
    if isinstance(node, list) and (depth == len(parts) or not parts[depth].isdecimal()):
        elements = cast("list[Any]", node)
        for index in [positions[here]] if here in positions else range(len(elements)):
            if isinstance(elements[index], list):
                raise PayloadPathError(f"{here or 'the payload'} is a list of lists")
            yield from _walk_payload(elements[index], parts, depth, {**positions, here: index})
    elif depth == len(parts):
        if node is None:
            raise PayloadPathError(f"{here} is null")
        yield node, positions
    else:
        yield from _walk_payload(_step_into_payload(node, parts[depth], here), parts, depth + 1, positions)


def _step_into_payload(node: Any, part: str, here: str) -> Any:
    children: dict[str, Any] = {}
    if isinstance(node, dict):
        children = cast("dict[str, Any]", node)
    elif isinstance(node, list):
        children = {str(index): element for index, element in enumerate(cast("list[Any]", node))}
    if part not in children:
        raise PayloadPathError(f"{f'{here}.{part}' if here else part} is missing")
    return children[part]
