"""Paths into a payload: `order.id`, `members.discord_id`, `steps.0.name`. Of a list each is meant."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

PATH_PATTERN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
MAX_PATH_LENGTH = 255

ListPositions = Mapping[str, int]
"""Which element of which list: what lies beside a value is found through the same one."""
NO_POSITIONS: ListPositions = {}


class PayloadPathError(Exception):
    """The payload has nothing there."""


def is_payload_path(text: str) -> bool:
    return len(text) <= MAX_PATH_LENGTH and PATH_PATTERN.fullmatch(text) is not None


def find_payload_values(
    payload: Any, path: str, positions: ListPositions = NO_POSITIONS
) -> Iterator[tuple[Any, ListPositions]]:
    """Every value at a path, and through which elements it was found. An empty list has none; a gap is Missing."""
    yield from _walk_payload(payload, path.split("."), 0, positions)


def find_payload_value(payload: Any, path: str, positions: ListPositions = NO_POSITIONS) -> Any:
    """The one value at a path; several are as bad as none."""
    values = [value for value, _ in find_payload_values(payload, path, positions)]
    if len(values) != 1:
        raise PayloadPathError(f"{path} is {len(values)} values, not one")
    return values[0]


def _walk_payload(
    node: Any, parts: list[str], depth: int, positions: ListPositions
) -> Iterator[tuple[Any, ListPositions]]:
    here = ".".join(parts[:depth])
    if isinstance(node, list) and (depth == len(parts) or not parts[depth].isdecimal()):
        each = cast("list[Any]", node)
        for place in [positions[here]] if here in positions else range(len(each)):
            if isinstance(each[place], list):
                raise PayloadPathError(f"{here or 'the payload'} is a list of lists")
            yield from _walk_payload(each[place], parts, depth, {**positions, here: place})
    elif depth == len(parts):
        if node is None:
            raise PayloadPathError(f"{here} is null")
        yield node, positions
    else:
        yield from _walk_payload(_step_into_payload(node, parts[depth], here), parts, depth + 1, positions)


def _step_into_payload(node: Any, part: str, here: str) -> Any:
    inner: dict[str, Any] = {}
    if isinstance(node, dict):
        inner = cast("dict[str, Any]", node)
    elif isinstance(node, list):
        inner = {str(place): each for place, each in enumerate(cast("list[Any]", node))}
    if part not in inner:
        raise PayloadPathError(f"there is no {f'{here}.{part}' if here else part}")
    return inner[part]
