"""Bytes as text that fits into a URL, a header and a file name: base64url without padding."""

import base64
import binascii
import hashlib


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_base64url(text: str) -> bytes:
    """Read it back; ValueError for anything `encoded` would not have written."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if encode_base64url(raw) != text:
        raise ValueError("is not base64url")
    return raw


def hash_secret(secret: str) -> str:
    """SHA-256, plain: our secrets are 256 random bits, which no dictionary holds."""
    return hashlib.sha256(secret.encode()).hexdigest()
