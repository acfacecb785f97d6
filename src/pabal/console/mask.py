"""What a payload may hold that nobody should read on a screen."""

import re
from typing import Any, cast

import msgspec

REDACTED_TEXT = "•••"
MAX_PAYLOAD_DEPTH = 64
"""Levels of a payload that are shown: more is no reading, and Python itself gives up at some."""
TOO_DEEP_TEXT = "…"
SECRET_KEY_PATTERN = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|(api|access)_?key|authorization|bearer|cookie|credential|private|signature"
    r"|session_?id|(^|_)(pass|pwd|pw|pin|otp|jwt|auth|dsn|cvc|cvv|ssn|rrn)($|_)|connection_?string"
    r"|(callback|webhook)_?url|card_?(no|num)|account_?no|phone|mobile|email|주민|비밀|전화|계좌|카드",
    re.IGNORECASE,
)
"""Keys whose values are not shown. It errs on the side of hiding: whoever must read one has `pabal event show`."""


def redact_payload(value: Any, depth: int = 0) -> Any:
    """The same, with the values of such keys covered, however deep they are; what nobody would read is left out."""
    match value:
        case str() if not depth and value.startswith(("{", "[")):  # so deep that it came as it was written
            return TOO_DEEP_TEXT
        case dict() | list() | tuple() if depth >= MAX_PAYLOAD_DEPTH:
            return TOO_DEEP_TEXT
        case dict():
            facts = cast("dict[object, Any]", value)
            return {
                key: REDACTED_TEXT if is_secret_key(key) and held is not None else redact_payload(held, depth + 1)
                for key, held in facts.items()
            }
        case list() | tuple():
            return [redact_payload(each, depth + 1) for each in cast("list[Any]", value)]
        case _:
            return value


def redacted_json(value: Any) -> str:
    """A payload as a page shows it: covered, indented, in the writing of its author."""
    return msgspec.json.format(msgspec.json.encode(redact_payload(value)), indent=2).decode()


def is_secret_key(key: object) -> bool:
    return SECRET_KEY_PATTERN.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]+", "_", str(key))) is not None
