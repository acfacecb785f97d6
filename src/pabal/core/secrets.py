"""Text encoding and hashing of secrets."""

import base64
import binascii
import hashlib


def encode_base64url(data: bytes) -> str:
    """Encode as base64url without padding, which fits into a URL, a header and a file name."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_base64url(text: str) -> bytes:
    """Decode base64url; ValueError for anything that `encode_base64url` would not have written."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if encode_base64url(raw) != text:
        raise ValueError("not base64url")
    return raw


def hash_token(token: str) -> bytes:
    """SHA-256 of a bearer token, as it is stored: 256 random bits need neither salt nor stretching.

    A caller may send any text, so surrogates are hashed as well.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
