"""What a payload may hold that nobody should read on a screen."""

import re
from typing import Any, cast

import msgspec

HIDDEN = "•••"
SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|api_?key|authorization|cookie|credential|private|(^|_)(pin|cvc|cvv|ssn|rrn)($|_)"
    r"|callback_?url|card_?(no|num)|account_?no|phone|email|주민|비밀|전화|계좌|카드",
    re.IGNORECASE,
)
"""Keys whose values are not shown. It errs on the side of hiding: whoever must read one has `pabal event show`."""


def covered(value: Any) -> Any:
    """The same, with the values of such keys covered, however deep they are."""
    match value:
        case dict():
            facts = cast("dict[object, Any]", value)
            return {
                key: HIDDEN if is_secret(key) and held is not None else covered(held) for key, held in facts.items()
            }
        case list() | tuple():
            return [covered(each) for each in cast("list[Any]", value)]
        case _:
            return value


def masked(value: Any) -> str:
    """A payload as a page shows it: covered, indented, in the writing of its author."""
    return msgspec.json.format(msgspec.json.encode(covered(value)), indent=2).decode()


def is_secret(key: object) -> bool:
    return SECRET.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key))) is not None
