"""Webhook authenticity: a signature of the body, or a shared secret in a fixed header."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

SIGNATURE_HEADER = "x-kakao-signature"


def is_webhook_authentic(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], secret_header: str) -> bool:
    """Whether the request proves one of `secrets`. Without any secret, every request is accepted."""
    if not secrets:
        return True
    signature = headers.get(SIGNATURE_HEADER, "").removeprefix("sha256=").lower().encode()
    header_value = headers.get(secret_header, "").encode()
    matches = [
        signature_matches(secret, body, signature) | secret_matches(secret, header_value) for secret in secrets
    ]  # no early exit: the time must not show which secret matched
    return any(matches)


def signature_matches(secret: str, body: bytes, signature: bytes) -> bool:
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(expected, signature)


def secret_matches(secret: str, header_value: bytes) -> bool:
    return hmac.compare_digest(secret.encode(), header_value)
