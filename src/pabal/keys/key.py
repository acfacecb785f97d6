"""Keys and key sets: plain values without I/O."""

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
"""The length of a P-256 private key, an AES-256 key and an HMAC-SHA-256 key."""

KEY_ID_FORMAT = re.compile(r"[A-Za-z0-9_-]{1,32}")
"""No dots, which separate the parts of an envelope, and too short to be a misplaced secret."""


class KeyUse(StrEnum):
    """What a key is used for. A key has exactly one use."""

    SIGNING = "signing"
    ENCRYPTION = "encryption"
    AUDIT = "audit"


class KeyState(StrEnum):
    """The state of a key. Next and old keys are accepted, so processes may be one rotation behind."""

    NEXT = "next"
    ACTIVE = "active"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `since` is when it entered its state."""

    id: str
    use: KeyUse
    state: KeyState
    since: datetime
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """All keys of a hub. Each use has exactly one active key, at most one next key and any number of old keys."""

    all_keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        for position, key in enumerate(self.all_keys, start=1):
            if not KEY_ID_FORMAT.fullmatch(key.id):
                raise ValueError(f"the id of key {position} must be 1 to 32 letters, digits, - or _")
        if len({key.id for key in self.all_keys}) < len(self.all_keys):
            raise ValueError("two keys have the same id")
        for use in KeyUse:
            states = [key.state for key in self.all_keys if key.use is use]
            if states.count(KeyState.ACTIVE) != 1 or states.count(KeyState.NEXT) > 1:
                raise ValueError(f"exactly one {use} key must be active and at most one next")
        if short := [key.id for key in self.all_keys if len(key.secret) != SECRET_BYTES]:
            raise ValueError(f"the secret of {short[0]} is not {SECRET_BYTES} bytes long")
        if len({key.secret for key in self.all_keys}) < len(self.all_keys):
            raise ValueError("two keys have the same secret")

    @classmethod
    def generate(cls, at: datetime) -> "KeySet":
        """Generate a new set with an active and a next key per use."""
        return cls(tuple(generate_key(use, state, at) for use in KeyUse for state in (KeyState.ACTIVE, KeyState.NEXT)))

    def active(self, use: KeyUse) -> Key:
        return next(key for key in self.all_keys if key.use is use and key.state is KeyState.ACTIVE)

    def find(self, key_id: str) -> Key | None:
        return next((key for key in self.all_keys if key.id == key_id), None)

    def for_use(self, use: KeyUse) -> tuple[Key, ...]:
        return tuple(key for key in self.all_keys if key.use is use)

    def rotate(self, uses: Iterable[KeyUse], at: datetime) -> "KeySet":
        """Make the next key active, the active key old, and generate a new next key.

        A repeated use rotates once: other processes do not know the new key yet.
        """
        keys = self
        for use in dict.fromkeys(uses):
            keys = keys._rotate_use(use, at)
        return keys

    def without(self, key_id: str) -> "KeySet":
        """Remove an old key. Values that depend on it can no longer be decrypted or verified."""
        key = self.find(key_id)
        if key is None:
            raise NotFound(f"No such key: {key_id}")
        if key.state is not KeyState.OLD:
            raise Conflict(f"{key_id} is {key.state}; only an old key can be retired: rotate first")
        return KeySet(tuple(other for other in self.all_keys if other.id != key_id))

    def _rotate_use(self, use: KeyUse, at: datetime) -> "KeySet":
        next_key = next((key for key in self.all_keys if key.use is use and key.state is KeyState.NEXT), None)
        next_key = next_key or generate_key(use, KeyState.NEXT, at)
        active = self.active(use)
        others = tuple(key for key in self.all_keys if key.id not in {next_key.id, active.id})
        return KeySet(
            (
                *others,
                replace(active, state=KeyState.OLD, since=at),
                replace(next_key, state=KeyState.ACTIVE, since=at),
                generate_key(use, KeyState.NEXT, at),
            )
        )


def generate_key(use: KeyUse, state: KeyState, at: datetime) -> Key:
    return Key(f"{use[0]}{secrets.token_hex(5)}", use, state, at, secrets.token_bytes(SECRET_BYTES))


QUOTED_INPUT = re.compile(r"(enum value|unknown field) .*?( - at `\$[\w.\[\]]*`)?\Z", re.DOTALL)
"""The parts of msgspec's errors that quote the input, which may contain a misplaced secret."""


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key in the key file."""

    id: str
    use: KeyUse
    state: KeyState
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    secret: str

    def __repr__(self) -> str:
        return f"KeyRecord({self.use}, {self.state})"


class KeyDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key file."""

    keys: list[KeyRecord]


def encode_key_set(keys: KeySet) -> bytes:
    """Encode a key set for the key file or PABAL_KEYS."""
    records = [KeyRecord(key.id, key.use, key.state, key.since, encode_base64url(key.secret)) for key in keys.all_keys]
    return msgspec.json.encode(KeyDocument(records))


def parse_key_set(text: bytes) -> KeySet:
    """Decode a key set. The ValueError for an invalid document quotes nothing of it."""
    try:
        document = msgspec.json.decode(text, type=KeyDocument)
    except msgspec.DecodeError as error:
        raise ValueError(QUOTED_INPUT.sub(r"\1\2", str(error))) from None
    return KeySet(tuple(decode_key_record(position, record) for position, record in enumerate(document.keys, start=1)))


def decode_key_record(position: int, record: KeyRecord) -> Key:
    try:
        secret = decode_base64url(record.secret)
    except ValueError:
        raise ValueError(f"the secret of key {position} is not base64url") from None
    return Key(record.id, record.use, record.state, record.since, secret)
