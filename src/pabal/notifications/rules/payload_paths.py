"""Paths into a payload: `order.id`, `members.discord_id`, `steps.0.name`. A path through a list means every element.

Payloads come from publishers, so the work is bounded: every step of an event's rules is counted, and a walk over a long
list can be interrupted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

PATH_PATTERN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
MAX_PATH_LENGTH = 255
MAX_STEPS_PER_EVENT = 1_000_000
"""The steps into payloads that all rules of one event may make: about a second."""
STEPS_PER_SLICE = 1000
"""After this many steps without a result a walk yields, so that its caller can interrupt it: about a millisecond."""

ListPositions = Mapping[str, int]
"""The element taken in each list. Values beside a recipient are read from the same elements."""
NO_POSITIONS: ListPositions = {}


class PayloadPathError(Exception):
    """The payload has no usable value at a path."""


@dataclass(frozen=True, slots=True)
class PayloadPath:
    """A parsed path. `prefixes[n]` is the path of the first n parts."""

    text: str
    parts: tuple[str, ...]
    prefixes: tuple[str, ...]


def is_payload_path(text: str) -> bool:
    return len(text) <= MAX_PATH_LENGTH and PATH_PATTERN.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def parse_payload_path(text: str) -> PayloadPath:
    parts = tuple(text.split("."))
    return PayloadPath(text, parts, tuple(".".join(parts[:depth]) for depth in range(len(parts) + 1)))


class PayloadReader:
    """Reads one event's payload, and counts the steps of all its rules."""

    def __init__(self, payload: Any, max_steps: int = MAX_STEPS_PER_EVENT) -> None:
        self._payload = payload
        self._max_steps = max_steps
        self.steps = 0

    def find_values(self, path: str) -> Iterator[tuple[Any, ListPositions] | None]:
        """Yield every value at a path with its list positions, and None after each slice of work.

        An empty list has no values; a missing key is an error.
        """
        yield from self._walk(self._payload, parse_payload_path(path), 0, NO_POSITIONS)

    def find_value(self, path: str, positions: ListPositions = NO_POSITIONS) -> Any:
        """Return the only value at a path. None and several are errors."""
        parsed = parse_payload_path(path)
        node, depth = self._payload, 0
        while True:
            self._count_step()
            here = parsed.prefixes[depth]
            if is_walked_list(node, parsed, depth):
                elements = cast("list[Any]", node)
                if here not in positions and len(elements) != 1:
                    raise PayloadPathError(f"{path} has {len(elements)} values instead of one")
                node = refuse_nested_list(elements[positions.get(here, 0)], here)
            elif depth == len(parsed.parts):
                return refuse_null(node, here)
            else:
                node, depth = step_into_payload(node, parsed, depth), depth + 1

    def _walk(
        self, node: Any, path: PayloadPath, depth: int, positions: ListPositions
    ) -> Iterator[tuple[Any, ListPositions] | None]:
        self._count_step()
        if self.steps % STEPS_PER_SLICE == 0:
            yield None
        here = path.prefixes[depth]
        if is_walked_list(node, path, depth):
            for index, element in enumerate(cast("list[Any]", node)):
                yield from self._walk(refuse_nested_list(element, here), path, depth, {**positions, here: index})
        elif depth == len(path.parts):
            yield refuse_null(node, here), positions
        else:
            yield from self._walk(step_into_payload(node, path, depth), path, depth + 1, positions)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            raise PayloadPathError(f"the rules for this event need more than {self._max_steps} steps into its payload")


def is_walked_list(node: Any, path: PayloadPath, depth: int) -> bool:
    """Whether the path goes through every element of the node. A number selects one element instead."""
    return isinstance(node, list) and (depth == len(path.parts) or not path.parts[depth].isdecimal())


def refuse_nested_list(element: Any, here: str) -> Any:
    if isinstance(element, list):
        raise PayloadPathError(f"{here or 'the payload'} is a list of lists")
    return element


def refuse_null(node: Any, here: str) -> Any:
    if node is None:
        raise PayloadPathError(f"{here} is null")
    return node


def step_into_payload(node: Any, path: PayloadPath, depth: int) -> Any:
    """Return the member of an object, or the element of a list whose number the path gives."""
    part = path.parts[depth]
    if isinstance(node, dict):
        children = cast("dict[str, Any]", node)
        if part in children:
            return children[part]
    elif isinstance(node, list):
        elements = cast("list[Any]", node)
        if part == str(int(part)) and int(part) < len(elements):
            return elements[int(part)]
    raise PayloadPathError(f"{path.prefixes[depth + 1]} is missing")
