"""A template: what a notice says, in each language and for each channel, and what it needs to be told for that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from pabal.core.errors import Mistake
from pabal.notifications.plan import Category, Channel, Criticality

LOCALES: tuple[str, ...] = ("ko", "en")
"""Every text is there in each of these."""


class Kind(StrEnum):
    """What a variable may be: plain values, so that a text has nothing to reach into."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"

    def fits(self, value: Any) -> bool:
        match self:
            case Kind.TEXT:
                return isinstance(value, str)
            case Kind.BOOLEAN:
                return isinstance(value, bool)
            case Kind.NUMBER:
                return Kind.INTEGER.fits(value) or (isinstance(value, float) and math.isfinite(value))
            case Kind.INTEGER:  # in JSON 1.0 is one as well
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class Text:
    """What is said in one language through one channel."""

    body: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of notice, as a file defines it. `checksum` is the file's: equal means unchanged."""

    key: str
    category: Category
    criticality: Criticality
    variables: Mapping[str, Kind]
    texts: Mapping[Channel, Mapping[str, Text]]
    checksum: str

    def wrong(self, payload: Mapping[str, Any]) -> list[Mistake]:
        """Which variables a payload lacks, or brings as something else. What it brings besides is passed over."""
        return [
            Mistake(
                f"payload.{name}",
                f"is not of the kind {kind}" if name in payload else f"is missing: {self.key} needs it, {kind}",
            )
            for name, kind in sorted(self.variables.items())
            if not kind.fits(payload.get(name))
        ]
