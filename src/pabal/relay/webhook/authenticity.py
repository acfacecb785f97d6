"""Webhook authenticity: a shared secret in a fixed header, or a signature of the body.

The header is checked before the body is read. A signature needs the body, so it must at least have the right form.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from pabal.settings import Settings

SIGNATURE_HEADER = "x-kakao-signature"
SIGNATURE_FORM = re.compile(r"(?:sha256=)?([0-9a-f]{64})", re.IGNORECASE | re.ASCII)


def webhook_secrets(settings: Settings) -> list[str]:
    """The secrets that are accepted: the current one and, during a rotation, the previous one."""
    candidates = (settings.webhook_secret, settings.webhook_secret_previous)
    return [secret.get_secret_value() for secret in candidates if secret]


def is_secret_valid(headers: Mapping[str, str], secrets: Sequence[str], secret_header: str) -> bool:
    """Whether the header carries one of the secrets. Without any secret, none is valid."""
    value = headers.get(secret_header, "").encode("latin-1", "replace")
    matches = [hmac.compare_digest(secret.encode(), value) for secret in secrets]
    return any(matches)  # no early exit: the time must not show which secret matched


def has_signature(headers: Mapping[str, str]) -> bool:
    """Whether the request carries a signature that may be valid."""
    return SIGNATURE_FORM.fullmatch(headers.get(SIGNATURE_HEADER, "")) is not None


def is_signature_valid(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> bool:
    """Whether the signature of the body was made with one of the secrets."""
    form = SIGNATURE_FORM.fullmatch(headers.get(SIGNATURE_HEADER, ""))
    signature = form[1].lower() if form else ""
    matches = [
        hmac.compare_digest(hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), signature)
        for secret in secrets
    ]
    return any(matches)
