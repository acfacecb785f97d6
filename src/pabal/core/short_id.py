"""Short ids: the first 8 and the last 6 characters, as lists show them, or a prefix of at least 8 characters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pabal.core.errors import Invalid
from pabal.core.ids import id_prefix_range

SHORT_ID_PATTERN = re.compile(r"([0-9a-f]{8})(?:…|\.{2,3})([0-9a-f]{6})", re.IGNORECASE)
MAX_LISTED_IDS = 5


@dataclass(frozen=True, slots=True)
class IdPattern:
    """The ids a short form can stand for.

    The range bounds the index scan: 8 characters are 65 seconds of a UUIDv7's clock. The suffix decides among the ids
    in it.
    """

    text: str
    low: UUID
    high: UUID
    suffix: str = ""

    @property
    def bounds(self) -> dict[str, UUID | str]:
        """The arguments of a query that matches ids."""
        return {"low": self.low, "high": self.high, "suffix": self.suffix}


def parse_id_pattern(text: str) -> IdPattern | None:
    """Return the pattern of an id, a short id or a prefix, or None if `text` is none of them."""
    short = SHORT_ID_PATTERN.fullmatch(text)
    id_range = id_prefix_range(short[1] if short else text)
    if id_range is None:
        return None
    return IdPattern(text, *id_range, suffix=short[2].lower() if short else "")


def ambiguous_id(text: str, ids: Sequence[UUID]) -> Invalid:
    """The error for a prefix or short id that matches several ids. Lists the first of them."""
    more = " …" if len(ids) > MAX_LISTED_IDS else ""
    return Invalid.of_field("id", f"{text} is ambiguous: {', '.join(map(str, ids[:MAX_LISTED_IDS]))}{more}")
