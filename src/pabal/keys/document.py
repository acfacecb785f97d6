"""The keys as they are kept: one JSON document, in the file or in PABAL_KEYS."""

import re
from datetime import datetime
from typing import Annotated

import msgspec

from pabal.core.base64url import decode_base64url, encode_base64url
from pabal.keys.key import Key, KeySet, KeyState, KeyUse

QUOTED_INPUT = re.compile(r"(enum value|unknown field) .*?( - at `\$[\w.\[\]]*`)?\Z", re.DOTALL)
"""Where the reader quotes what it was given: a secret may stand in the wrong place."""


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as it is kept."""

    id: str
    use: KeyUse
    state: KeyState
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    secret: str

    def __repr__(self) -> str:
        return f"Written({self.use}, {self.state})"


class KeyDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All keys as they are kept."""

    keys: list[KeyRecord]


def encode_key_set(keys: KeySet) -> bytes:
    """What `parse` reads: fit for the file and for PABAL_KEYS."""
    written = [KeyRecord(key.id, key.use, key.state, key.since, encode_base64url(key.secret)) for key in keys.all_keys]
    return msgspec.json.encode(KeyDocument(written))


def parse_key_set(text: bytes) -> KeySet:
    """Read the document; a ValueError says what is wrong with it and quotes nothing of it."""
    try:
        document = msgspec.json.decode(text, type=KeyDocument)
    except msgspec.DecodeError as error:
        raise ValueError(QUOTED_INPUT.sub(r"\1\2", str(error))) from None
    return KeySet(tuple(decode_key_record(place, written) for place, written in enumerate(document.keys, start=1)))


def decode_key_record(position: int, record: KeyRecord) -> Key:
    try:
        secret = decode_base64url(record.secret)
    except ValueError:
        raise ValueError(f"the secret of key {position} is not base64url") from None
    return Key(record.id, record.use, record.state, record.since, secret)
