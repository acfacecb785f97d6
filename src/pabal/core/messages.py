"""Phrases: what stories are told with. English, and ready to be told again in another language."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

MAX_DECIMAL_SECONDS = 10.0


class Message(str):
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


def message_table(*words: str) -> dict[str, Message]:
    """The words that rows are written with."""
    return {word: Message(word) for word in words}


def join_messages(parts: Iterable[object]) -> Message:
    """Several, with commas between them."""
    several = [*parts]
    return Message(", ".join(["{}"] * len(several)), *several)


def duration_message(duration: timedelta) -> Message:
    """How long, as a person would say it: two units at most."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return Message("{} ms", f"{seconds * 1000:.0f}")
    if seconds < MAX_DECIMAL_SECONDS:
        return Message("{} s", f"{seconds:.1f}")
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return Message("{} d {} h", days, hours)
    if hours:
        return Message("{} h {} min", hours, minutes)
    return Message("{} min {} s", minutes, seconds) if minutes else Message("{} s", seconds)
