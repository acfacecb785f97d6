"""What a person reads of a bot's answer."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pabal.relay.response import list_skill_outputs

MAX_RESPONSE_DEPTH = 64
"""Levels of an answer that are read: Kakao has no more than six."""
TEXT_KEYS = ("title", "text", "description", "altText")


def reply_texts(response: Mapping[str, Any] | str | None) -> list[str]:
    """One text for each thing an answer shows; one without any words is called what it is.

    An answer that is nested too deeply to be read at all comes as it was written, and has none.
    """
    shown = list_skill_outputs(dict(response)) if isinstance(response, Mapping) else []
    return ["\n".join(find_texts(output)) or f"[{', '.join(output)}]" for output in shown]


def find_texts(value: object, depth: int = 0) -> Iterator[str]:
    if depth > MAX_RESPONSE_DEPTH:
        return
    match value:
        case dict():
            for key, held in cast("dict[str, object]", value).items():
                if key in TEXT_KEYS and isinstance(held, str):
                    yield held
                else:
                    yield from find_texts(held, depth + 1)
        case list():
            for each in cast("list[object]", value):
                yield from find_texts(each, depth + 1)
        case _:
            return
