"""NUL: the one character PostgreSQL cannot keep, found before it gets there."""

import re

import msgspec

NO_NUL = "contains the character NUL, which PostgreSQL cannot keep"
ESCAPED = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def field_with_nul(body: bytes, otherwise: str) -> str | None:
    """The field of a JSON object that has one in it, `otherwise` where no field can be named; None for most bodies."""
    if b"\\u0000" not in body or not ESCAPED.search(body):
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return otherwise
    return next((name for name, value in fields.items() if ESCAPED.search(bytes(value))), otherwise)
