"""Envelopes: text encrypted with AES-256-GCM and bound to its row.

`v1.<key id>.<nonce>.<ciphertext>`, the last two in base64url. The additional data contains the table, the column and
the row id, so an envelope that is copied to another row cannot be decrypted.
"""

import secrets
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pabal.core.errors import DecryptionError
from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.keys.key import Key, KeyUse
from pabal.keys.keyring import KeyRing

ENVELOPE_VERSION = "v1"
NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class EnvelopeLocation:
    """The table cell that an envelope belongs to."""

    table: str
    column: str
    row: UUID

    def __bytes__(self) -> bytes:
        return f"{ENVELOPE_VERSION}:{self.table}.{self.column}:{self.row}".encode()


def encrypt_envelope(keyring: KeyRing, text: str, location: EnvelopeLocation) -> str:
    key = keyring.active(KeyUse.ENCRYPTION)
    nonce = secrets.token_bytes(NONCE_BYTES)
    ciphertext = AESGCM(key.secret).encrypt(nonce, text.encode(), bytes(location))
    return f"{envelope_prefix(key)}{encode_base64url(nonce)}.{encode_base64url(ciphertext)}"


def decrypt_envelope(keyring: KeyRing, envelope: str, location: EnvelopeLocation) -> str:
    try:
        version, key_id, nonce, ciphertext = envelope.split(".")
        key = keyring.find(key_id)
        if version != ENVELOPE_VERSION or key is None or key.use is not KeyUse.ENCRYPTION:
            raise DecryptionError(f"no key decrypts the value in {location.table} {location.row}")
        text = AESGCM(key.secret).decrypt(decode_base64url(nonce), decode_base64url(ciphertext), bytes(location))
        return text.decode()
    except (ValueError, InvalidTag):
        raise DecryptionError(f"the value in {location.table} {location.row} was changed or moved") from None


def envelope_prefix(key: Key) -> str:
    """The prefix of every envelope under this key."""
    return f"{ENVELOPE_VERSION}.{key.id}."
