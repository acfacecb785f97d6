"""Messages: English texts that keep their pattern and arguments, so that they can be translated later."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

MAX_DECIMAL_SECONDS = 10.0


class Message(str):
    """An English text with its pattern and arguments.

    An argument is a Message, or a value that is the same in every language: an id, a name, a text of another system.
    """

    __slots__ = ("parts", "pattern")

    pattern: str
    parts: tuple[object, ...]

    def __new__(cls, pattern: str, *parts: object) -> Self:
        message = super().__new__(cls, pattern.format(*parts))
        message.pattern, message.parts = str(pattern), parts
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pattern, *self.parts)  # str.__reduce__ would use the text as the pattern


def message_table(*words: str) -> dict[str, Message]:
    """Messages for fixed words, by word."""
    return {word: Message(word) for word in words}


def join_messages(parts: Iterable[object]) -> Message:
    """Join texts with commas."""
    messages = [*parts]
    return Message(", ".join(["{}"] * len(messages)), *messages)


def duration_message(duration: timedelta) -> Message:
    """Format a duration with at most two units."""
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
