"""NUL: the one character PostgreSQL cannot keep, found before it gets there."""

import re

import msgspec

NUL_MESSAGE = "contains the character NUL, which PostgreSQL cannot keep"
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def find_nul_field(body: bytes, default: str) -> str | None:
    """The field of a JSON object that has one in it, `otherwise` where no field can be named; None for most bodies."""
    if b"\\u0000" not in body or not ESCAPED_NUL.search(body):
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
    return next((name for name, value in fields.items() if ESCAPED_NUL.search(bytes(value))), default)
