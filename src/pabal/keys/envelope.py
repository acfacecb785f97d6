"""An envelope: text under AES-256-GCM, which opens only in the row it was made for.

`v1.<key id>.<nonce>.<sealed>`, the last two in base64url. The additional data names the table, the column and the row,
so an envelope copied to another row is as unreadable as a changed one.
"""

import secrets
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pabal.core.base64url import decoded, encoded
from pabal.core.errors import Unreadable
from pabal.keys.key import Key, Use
from pabal.keys.ring import Ring

VERSION = "v1"
NONCE = 12


@dataclass(frozen=True, slots=True)
class Place:
    """The one cell of a table an envelope belongs to."""

    table: str
    column: str
    row: UUID

    def __bytes__(self) -> bytes:
        return f"{VERSION}:{self.table}.{self.column}:{self.row}".encode()


def seal(ring: Ring, text: str, place: Place) -> str:
    key = ring.active(Use.ENCRYPTION)
    nonce = secrets.token_bytes(NONCE)
    sealed = AESGCM(key.secret).encrypt(nonce, text.encode(), bytes(place))
    return f"{written_with(key)}{encoded(nonce)}.{encoded(sealed)}"


def unseal(ring: Ring, envelope: str, place: Place) -> str:
    try:
        version, key_id, nonce, sealed = envelope.split(".")
        key = ring.find(key_id)
        if version != VERSION or key is None or key.use is not Use.ENCRYPTION:
            raise Unreadable(f"no key here opens what is in {place.table} {place.row}")
        return AESGCM(key.secret).decrypt(decoded(nonce), decoded(sealed), bytes(place)).decode()
    except (ValueError, InvalidTag):
        raise Unreadable(f"what is in {place.table} {place.row} was not put there by this hub") from None


def written_with(key: Key) -> str:
    """How every envelope of this key begins."""
    return f"{VERSION}.{key.id}."
