"""The result of a check of the environment."""

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do; it is empty if there is nothing to do."""

    level: FindingLevel
    what: str
    seen: str
    advice: str = ""
