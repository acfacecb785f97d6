"""What an Authorization header brings."""

import base64
from urllib.parse import unquote_plus

from pabal.core.errors import InvalidClient, Unauthenticated


def bearer_token(header: str | None) -> str:
    """The token of a `Bearer` header (RFC 6750)."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("an access token is needed: Authorization: Bearer …")
    return token.strip()


def basic_credentials(header: str | None) -> tuple[str, str] | None:
    """Name and secret of a `Basic` header (RFC 7617; each form-encoded, as RFC 6749 asks); None without a header."""
    if not header:
        return None
    scheme, _, written = header.partition(" ")
    try:
        text = base64.b64decode(written.strip(), validate=True).decode()
    except ValueError:  # not base64, not ASCII to begin with, or not UTF-8 inside
        raise InvalidClient from None
    name, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise InvalidClient
    return unquote_plus(name), unquote_plus(secret)
