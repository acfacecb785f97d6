"""JSON of the database as text: what is not looked into is passed on without being decoded."""

import json
from typing import Any

import msgspec

from pabal.core.garbage_collection import paused_collection

MAX_RESPONSE_BYTES = 8 << 20
"""A page or a claim ends after the payload with which its payloads reach this size."""
MAX_USUAL_NESTING = 64
"""Deeper JSON may be too deep for a decoder."""
MAX_NUMBER_DIGITS = 300
"""A longer number may be too large for a double, or for a decoder."""
LONG_JSON_CHARS = 16_384
"""Decoding a longer text may create thousands of values."""
DIGIT_RUN = b"0" * MAX_NUMBER_DIGITS
DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)


def decode_jsonb(text: str) -> Any:
    """Decode JSON. PostgreSQL stores numbers and nesting depths that msgspec refuses."""
    if len(text) > LONG_JSON_CHARS:
        with paused_collection():
            return decode_any_json(text)
    return decode_any_json(text)


def decode_any_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(text)
        except (RecursionError, ValueError):  # nested too deep, or a number with too many digits for Python
            return text  # a row that cannot be decoded could never be settled


def encode_jsonb(value: object) -> str:
    return msgspec.json.encode(value).decode()


def raw_json(text: str) -> msgspec.Raw:
    """The JSON text of a `jsonb`, for a response. What a client may be unable to decode is decoded here first."""
    data = text.encode()
    if is_unusual_json(data):
        return msgspec.Raw(msgspec.json.encode(decode_jsonb(text)))
    return msgspec.Raw(data)


def is_unusual_json(data: bytes) -> bool:
    """Whether JSON may have too long a number or be nested too deep. Texts may look like that too."""
    if len(data) >= MAX_NUMBER_DIGITS and DIGIT_RUN in data.translate(DIGITS_TO_ZERO):
        return True
    if data.count(b"[") + data.count(b"{") <= MAX_USUAL_NESTING:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)  # skips over the values, and counts levels
    except (msgspec.DecodeError, RecursionError):
        return True
    return False
