"""The keys as they are kept: one JSON document, in the file or in PABAL_KEYS."""

import re
from datetime import datetime
from typing import Annotated

import msgspec

from pabal.core.base64url import decoded, encoded
from pabal.keys.key import Key, Keys, State, Use

QUOTED = re.compile(r"(enum value|unknown field) .*?( - at `\$[\w.\[\]]*`)?\Z", re.DOTALL)
"""Where the reader quotes what it was given: a secret may stand in the wrong place."""


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as it is kept."""

    id: str
    use: Use
    state: State
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    secret: str

    def __repr__(self) -> str:
        return f"Written({self.use}, {self.state})"


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All keys as they are kept."""

    keys: list[Written]


def text(keys: Keys) -> bytes:
    """What `parse` reads: fit for the file and for PABAL_KEYS."""
    written = [Written(key.id, key.use, key.state, key.since, encoded(key.secret)) for key in keys.every]
    return msgspec.json.encode(Document(written))


def parse(text: bytes) -> Keys:
    """Read the document; a ValueError says what is wrong with it and quotes nothing of it."""
    try:
        document = msgspec.json.decode(text, type=Document)
    except msgspec.DecodeError as error:
        raise ValueError(QUOTED.sub(r"\1\2", str(error))) from None
    return Keys(tuple(key(place, written) for place, written in enumerate(document.keys, start=1)))


def key(place: int, written: Written) -> Key:
    try:
        secret = decoded(written.secret)
    except ValueError:
        raise ValueError(f"the secret of key {place} is not base64url") from None
    return Key(written.id, written.use, written.state, written.since, secret)
