"""A key, and the set of all of them: plain values, decided upon without touching a file."""

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from pabal.core.errors import Conflict, NotFound
from pabal.core.secrets import decode_base64url, encode_base64url

SECRET_BYTES = 32
"""A private number of P-256, an AES-256 key and an HMAC-SHA-256 key are all this long."""

KEY_ID_FORMAT = re.compile(r"[A-Za-z0-9_-]{1,32}")
"""The form of an id: no dot, for an envelope is divided by dots, and too short to be a secret in the wrong place."""


class KeyUse(StrEnum):
    """What a key is for; none is ever used for two things."""

    SIGNING = "signing"
    ENCRYPTION = "encryption"
    AUDIT = "audit"


class KeyState(StrEnum):
    """A key is known before it works and after it worked: whoever is one rotation behind still understands."""

    NEXT = "next"
    ACTIVE = "active"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class Key:
    """One secret, what it is for and how far it is in its life. `since` is when it came into its state."""

    id: str
    use: KeyUse
    state: KeyState
    since: datetime
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """All keys of a hub: of each use exactly one active, at most one next, any number of old ones."""

    all_keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        for place, key in enumerate(self.all_keys, start=1):
            if not KEY_ID_FORMAT.fullmatch(key.id):
                raise ValueError(f"the id of key {place} is not 1 to 32 letters, digits, - or _")
        if len({key.id for key in self.all_keys}) < len(self.all_keys):
            raise ValueError("two keys have the same id")
        for use in KeyUse:
            states = [key.state for key in self.all_keys if key.use is use]
            if states.count(KeyState.ACTIVE) != 1 or states.count(KeyState.NEXT) > 1:
                raise ValueError(f"of the {use} keys exactly one is active and at most one is next")
        if short := [key.id for key in self.all_keys if len(key.secret) != SECRET_BYTES]:
            raise ValueError(f"the secret of {short[0]} is not {SECRET_BYTES} bytes long")
        if len({key.secret for key in self.all_keys}) < len(self.all_keys):
            raise ValueError("two keys have the same secret")

    @classmethod
    def generate(cls, at: datetime) -> "KeySet":
        """A first set: for every use one that works and one that will."""
        return cls(tuple(generate_key(use, state, at) for use in KeyUse for state in (KeyState.ACTIVE, KeyState.NEXT)))

    def active(self, use: KeyUse) -> Key:
        return next(key for key in self.all_keys if key.use is use and key.state is KeyState.ACTIVE)

    def find(self, key_id: str) -> Key | None:
        return next((key for key in self.all_keys if key.id == key_id), None)

    def for_use(self, use: KeyUse) -> tuple[Key, ...]:
        return tuple(key for key in self.all_keys if key.use is use)

    def rotate(self, uses: Iterable[KeyUse], at: datetime) -> "KeySet":
        """What was next becomes active, what was active old; a new next one is made known ahead of its work.

        A use named twice turns once: the key made by the first turn is one that nobody knows yet.
        """
        turned = self
        for use in dict.fromkeys(uses):
            turned = turned._rotate_use(use, at)
        return turned

    def without(self, key_id: str) -> "KeySet":
        """Forget an old key: nothing it made can be read or checked any more."""
        key = self.find(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id}")
        if key.state is not KeyState.OLD:
            raise Conflict(f"{key_id} is {key.state}; only an old key can be retired, so rotate first")
        return KeySet(tuple(each for each in self.all_keys if each.id != key_id))

    def _rotate_use(self, use: KeyUse, at: datetime) -> "KeySet":
        coming = next((key for key in self.all_keys if key.use is use and key.state is KeyState.NEXT), None)
        coming = coming or generate_key(use, KeyState.NEXT, at)
        active = self.active(use)
        others = tuple(key for key in self.all_keys if key.id not in {coming.id, active.id})
        return KeySet(
            (
                *others,
                replace(active, state=KeyState.OLD, since=at),
                replace(coming, state=KeyState.ACTIVE, since=at),
                generate_key(use, KeyState.NEXT, at),
            )
        )


def generate_key(use: KeyUse, state: KeyState, at: datetime) -> Key:
    return Key(f"{use[0]}{secrets.token_hex(5)}", use, state, at, secrets.token_bytes(SECRET_BYTES))


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
