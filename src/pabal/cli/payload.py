"""Read a JSON payload from an argument, a file or standard input."""

import sys
from pathlib import Path

import msgspec

from pabal.cli.options import UsageError
from pabal.core.errors import BodyTooLarge, Invalid
from pabal.events.publish.publish import MAX_EVENT_PAYLOAD_BYTES


def read_payload(payload: str) -> bytes:
    """Read `payload` itself, the file after `@`, or standard input for `-`. It must be one JSON object."""
    try:
        match payload[:1]:
            case "-" if payload == "-":
                text = sys.stdin.buffer.read(MAX_EVENT_PAYLOAD_BYTES + 1)
            case "@":
                with Path(payload[1:]).open("rb") as file:
                    text = file.read(MAX_EVENT_PAYLOAD_BYTES + 1)
            case _:
                text = payload.encode(errors="surrogateescape")
    except OSError as error:
        raise Invalid.of_field("payload", f"{payload[1:]} cannot be read: {error.strerror}") from None
    if len(text) > MAX_EVENT_PAYLOAD_BYTES:
        raise BodyTooLarge(MAX_EVENT_PAYLOAD_BYTES)
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--payload is not a JSON object: {error}") from None
    return text.strip()
