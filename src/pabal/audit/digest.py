"""What is put under a seal, and how: values in, bytes out.

Both structs are hashed as JSON arrays of their fields, so every column counts and none can run into the next. Times
come as PostgreSQL's exact seconds and details as jsonb's own text: neither depends on a session's settings.
"""

import hmac

import msgspec

from pabal.keys.key import Key

MAC_BYTES = 8
"""Bytes kept for each row: enough to tell which one changed; the seal's digest, which is whole, covers them all."""


class AuditRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the log, every column of it."""

    id: int
    at: str
    actor: str
    action: str
    subject: str | None
    details: str
    client_ip: str | None
    request_id: str | None
    xid: int


class SealContent(msgspec.Struct, frozen=True, array_like=True):
    """All that a seal says."""

    previous: bytes | None
    first_id: int
    last_id: int
    count: int
    ids: list[int]
    macs: bytes
    below: int
    floor: int
    key_id: str
    sealed: str


def row_mac(key: Key, row: AuditRow) -> bytes:
    return hmac.digest(key.secret, b"row " + msgspec.json.encode(row), "sha256")[:MAC_BYTES]


def seal_digest(key: Key, content: SealContent) -> bytes:
    return hmac.digest(key.secret, b"seal " + msgspec.json.encode(content), "sha256")
