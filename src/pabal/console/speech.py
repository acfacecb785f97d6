"""What a person reads of a bot's answer."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pabal.relay.response import outputs_of

DEEPEST = 64
"""Levels of an answer that are read: Kakao has no more than six."""
WORDS = ("title", "text", "description", "altText")


def spoken(response: Mapping[str, Any] | str | None) -> list[str]:
    """One text for each thing an answer shows; one without any words is called what it is.

    An answer that is nested too deeply to be read at all comes as it was written, and has none.
    """
    shown = outputs_of(dict(response)) if isinstance(response, Mapping) else []
    return ["\n".join(words(output)) or f"[{', '.join(output)}]" for output in shown]


def words(value: object, deep: int = 0) -> Iterator[str]:
    if deep > DEEPEST:
        return
    match value:
        case dict():
            for key, held in cast("dict[str, object]", value).items():
                if key in WORDS and isinstance(held, str):
                    yield held
                else:
                    yield from words(held, deep + 1)
        case list():
            for each in cast("list[object]", value):
                yield from words(each, deep + 1)
        case _:
            return
