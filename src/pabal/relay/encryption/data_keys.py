"""Data keys: each account has one, stored encrypted under the key ring. It encrypts the texts of its messages.

An envelope is `d1.<owner>.<nonce and ciphertext>`, the owner in hex and the rest in base64. Its additional data
contains the owner, the column and the row, so an envelope that is copied to another row or account cannot be decrypted.
"""

import hmac
import secrets
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from os import urandom
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pabal.core.errors import DecryptionError
from pabal.core.log import get_logger
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.keyring import KeyRing

Q = load_queries(__file__)
log = get_logger()

HUB_KEY_OWNER = UUID(int=(1 << 128) - 1)
"""The owner of the key that hashes webhooks. Their account is not known yet. Not the lowest id: paging begins there."""
ENVELOPE_PREFIX = "d1."
OWNER_END = len(ENVELOPE_PREFIX) + 32
DATA_KEY_BYTES = 32
NONCE_BYTES = 12
MAX_CACHED_KEYS = 10_000
"""Keys that a process keeps decrypted; the one that was used first is dropped first."""


class DataKey:
    """A decrypted data key. Random nonces: one key is safe for billions of texts."""

    __slots__ = ("_additional", "_cipher", "_hash_key", "_prefix", "owner")

    def __init__(self, owner: UUID, secret: bytes) -> None:
        self.owner = owner
        self._cipher = AESGCM(secret)
        self._hash_key = hmac.digest(secret, b"hash", sha256)
        self._prefix = f"{ENVELOPE_PREFIX}{owner.hex}."
        self._additional = self._prefix.encode()

    def encrypt(self, data: bytes, column: bytes, row: bytes) -> str:
        nonce = urandom(NONCE_BYTES)
        ciphertext = self._cipher.encrypt(nonce, data, self._additional + column + row)
        return self._prefix + b2a_base64(nonce + ciphertext, newline=False).decode()

    def decrypt(self, envelope: str, column: bytes, row: bytes) -> bytes:
        try:
            data = a2b_base64(envelope[OWNER_END + 1 :])
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], self._additional + column + row)
        except (Base64Error, InvalidTag, ValueError):
            raise DecryptionError(f"a value of {column.decode().rstrip(':')} was changed or moved") from None

    def hash(self, data: bytes) -> bytes:
        """HMAC-SHA-256: without the key, a guessed text cannot be compared with the hash."""
        return hmac.digest(self._hash_key, data, sha256)


def envelope_owner(envelope: str) -> UUID | None:
    """The owner of the key that an envelope needs; None for a text that is not an envelope."""
    if not envelope.startswith(ENVELOPE_PREFIX) or envelope[OWNER_END : OWNER_END + 1] != ".":
        return None
    try:
        return UUID(hex=envelope[len(ENVELOPE_PREFIX) : OWNER_END])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class DataKeyRow:
    id: UUID
    data_key: str


class DataKeyCache:
    """The data keys that this process has decrypted. A key never changes; rotating the key ring only wraps it anew.

    A fail-over may lose a key that was just stored. Texts must not be encrypted with it any more, so all keys are
    forgotten with every new connection to the database.
    """

    def __init__(self, key_ring: KeyRing, max_keys: int = MAX_CACHED_KEYS) -> None:
        self._key_ring = key_ring
        self._max_keys = max_keys
        self._keys: dict[UUID, DataKey] = {}
        self.unreadable: set[UUID] = set()
        """Owners whose key this process could not decrypt when it last tried."""

    def __len__(self) -> int:
        return len(self._keys)

    def forget(self) -> None:
        self._keys.clear()

    def get(self, owner: UUID) -> DataKey | None:
        return self._keys.get(owner)

    async def load(self, tx: Tx, owners: Collection[UUID], *, create: bool = False) -> dict[UUID, DataKey]:
        """The keys of these owners that exist and can be decrypted. `create` generates missing ones.

        A new key is cached at its next use: until the caller's transaction commits, it is not durable.
        """
        keys = {owner: key for owner in owners if (key := self._keys.get(owner))}
        if len(keys) == len(owners):
            return keys
        missing = {owner for owner in owners if owner not in keys}
        rows = await tx.all(DataKeyRow, Q.find_data_keys, ids=[*missing])
        for row in rows:
            if key := self._unwrap(row):
                keys[row.id] = key
                self._keep(key)
        new = missing - {row.id for row in rows}
        if create and new:
            await self._create(tx, new)
            created = await tx.all(DataKeyRow, Q.find_data_keys, ids=[*new])
            keys |= {row.id: key for row in created if (key := self._unwrap(row))}
        return keys

    async def _create(self, tx: Tx, owners: Collection[UUID]) -> None:
        wrapped = {
            owner: encrypt_envelope(
                self._key_ring, encode_base64url(secrets.token_bytes(DATA_KEY_BYTES)), data_key_location(owner)
            )
            for owner in owners
        }
        await tx.run(Q.insert_data_keys, ids=[*wrapped], data_keys=[*wrapped.values()], hub=HUB_KEY_OWNER)

    def _unwrap(self, row: DataKeyRow) -> DataKey | None:
        try:
            secret = decode_base64url(decrypt_envelope(self._key_ring, row.data_key, data_key_location(row.id)))
        except DecryptionError as error:
            if row.id not in self.unreadable and len(self.unreadable) < self._max_keys:
                log.error("data key unreadable", account=str(row.id), error=str(error))
                self.unreadable.add(row.id)
            return None
        self.unreadable.discard(row.id)
        return DataKey(row.id, secret)

    def _keep(self, key: DataKey) -> None:
        self._keys[key.owner] = key
        if len(self._keys) > self._max_keys:
            del self._keys[next(iter(self._keys))]


def data_key_location(owner: UUID) -> EnvelopeLocation:
    return EnvelopeLocation("pabal.relay_keys", "data_key", owner)
