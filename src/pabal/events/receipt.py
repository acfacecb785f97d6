"""A receipt: what a consumer shows to say what became of an event it was handed. Opaque to it; the fence to us."""

from dataclasses import dataclass
from uuid import UUID

from pabal.core.base64url import decode_base64url, encode_base64url

RECEIPT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Receipt:
    """An event and the lease it was handed out under."""

    id: UUID
    lease: UUID

    def __str__(self) -> str:
        return encode_base64url(self.lease.bytes + self.id.bytes)

    @classmethod
    def parse(cls, text: str) -> "Receipt | None":
        """Read one back; None for anything we never wrote."""
        try:
            raw = decode_base64url(text)
        except ValueError:
            return None
        return cls(UUID(bytes=raw[16:]), UUID(bytes=raw[:16])) if len(raw) == RECEIPT_BYTES else None
