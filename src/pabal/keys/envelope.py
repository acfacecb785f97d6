"""An envelope: text under AES-256-GCM, which opens only in the row it was made for.

`v1.<key id>.<nonce>.<sealed>`, the last two in base64url. The additional data names the table, the column and the row,
so an envelope copied to another row is as unreadable as a changed one.
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
    """The one cell of a table an envelope belongs to."""

    table: str
    column: str
    row: UUID

    def __bytes__(self) -> bytes:
        return f"{ENVELOPE_VERSION}:{self.table}.{self.column}:{self.row}".encode()


def encrypt_envelope(keyring: KeyRing, text: str, location: EnvelopeLocation) -> str:
    key = keyring.active(KeyUse.ENCRYPTION)
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed = AESGCM(key.secret).encrypt(nonce, text.encode(), bytes(location))
    return f"{envelope_prefix(key)}{encode_base64url(nonce)}.{encode_base64url(sealed)}"


def decrypt_envelope(keyring: KeyRing, envelope: str, location: EnvelopeLocation) -> str:
    try:
        version, key_id, nonce, sealed = envelope.split(".")
        key = keyring.find(key_id)
        if version != ENVELOPE_VERSION or key is None or key.use is not KeyUse.ENCRYPTION:
            raise DecryptionError(f"no key here opens what is in {location.table} {location.row}")
        return AESGCM(key.secret).decrypt(decode_base64url(nonce), decode_base64url(sealed), bytes(location)).decode()
    except (ValueError, InvalidTag):
        raise DecryptionError(f"what is in {location.table} {location.row} was not put there by this hub") from None


def envelope_prefix(key: Key) -> str:
    """How every envelope of this key begins."""
    return f"{ENVELOPE_VERSION}.{key.id}."
