"""Phrases: what stories are told with. English, and ready to be told again in another language."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

SOON = 10.0


class Phrase(str):
    """An English sentence that remembers its pattern and its parts.

    A part is a phrase again, or it is the same in every language: an id, a name, what somebody else wrote.
    """

    __slots__ = ("parts", "pattern")

    pattern: str
    parts: tuple[object, ...]

    def __new__(cls, pattern: str, *parts: object) -> Self:
        made = super().__new__(cls, pattern.format(*parts))
        made.pattern, made.parts = str(pattern), parts
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pattern, *self.parts)  # a string's own way would take the text for a pattern


def words(*written: str) -> dict[str, Phrase]:
    """The words that rows are written with."""
    return {word: Phrase(word) for word in written}


def listed(parts: Iterable[object]) -> Phrase:
    """Several, with commas between them."""
    several = [*parts]
    return Phrase(", ".join(["{}"] * len(several)), *several)


def lasting(span: timedelta) -> Phrase:
    """How long, as a person would say it: two units at most."""
    seconds = span.total_seconds()
    if seconds < 1:
        return Phrase("{} ms", f"{seconds * 1000:.0f}")
    if seconds < SOON:
        return Phrase("{} s", f"{seconds:.1f}")
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return Phrase("{} d {} h", days, hours)
    if hours:
        return Phrase("{} h {} min", hours, minutes)
    return Phrase("{} min {} s", minutes, seconds) if minutes else Phrase("{} s", seconds)
