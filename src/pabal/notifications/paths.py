"""Paths into a payload: `order.id`, `members.discord_id`, `steps.0.name`. Of a list each is meant."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

FORM = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
LONGEST = 255

At = Mapping[str, int]
"""Which element of which list: what lies beside a value is found through the same one."""
NOWHERE: At = {}


class Missing(Exception):
    """The payload has nothing there."""


def is_path(text: str) -> bool:
    return len(text) <= LONGEST and FORM.fullmatch(text) is not None


def found(payload: Any, path: str, at: At = NOWHERE) -> Iterator[tuple[Any, At]]:
    """Every value at a path, and through which elements it was found. An empty list has none; a gap is Missing."""
    yield from _walk(payload, path.split("."), 0, at)


def only(payload: Any, path: str, at: At = NOWHERE) -> Any:
    """The one value at a path; several are as bad as none."""
    values = [value for value, _ in found(payload, path, at)]
    if len(values) != 1:
        raise Missing(f"{path} is {len(values)} values, not one")
    return values[0]


def _walk(node: Any, parts: list[str], depth: int, at: At) -> Iterator[tuple[Any, At]]:
    here = ".".join(parts[:depth])
    if isinstance(node, list) and (depth == len(parts) or not parts[depth].isdecimal()):
        each = cast("list[Any]", node)
        for place in [at[here]] if here in at else range(len(each)):
            if isinstance(each[place], list):
                raise Missing(f"{here or 'the payload'} is a list of lists")
            yield from _walk(each[place], parts, depth, {**at, here: place})
    elif depth == len(parts):
        if node is None:
            raise Missing(f"{here} is null")
        yield node, at
    else:
        yield from _walk(_step(node, parts[depth], here), parts, depth + 1, at)


def _step(node: Any, part: str, here: str) -> Any:
    inner: dict[str, Any] = {}
    if isinstance(node, dict):
        inner = cast("dict[str, Any]", node)
    elif isinstance(node, list):
        inner = {str(place): each for place, each in enumerate(cast("list[Any]", node))}
    if part not in inner:
        raise Missing(f"there is no {f'{here}.{part}' if here else part}")
    return inner[part]
