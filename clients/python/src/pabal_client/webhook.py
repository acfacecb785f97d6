"""Verify webhooks of the hub (Standard Webhooks): an HMAC over id, timestamp and body."""

import hmac
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pabal_client.errors import WebhookVerificationError

SECRET_PREFIX = "whsec_"  # noqa: S105
SIGNATURE_VERSION = "v1,"
TIMESTAMP_PATTERN = re.compile(r"[0-9]{1,12}")
TOLERANCE = 300
"""Seconds that the timestamp may differ from the local clock."""


def verify_webhook(
    secrets: str | Sequence[str], headers: Mapping[str, str], body: bytes | str, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Return the event of a webhook; raise WebhookVerificationError if its signature is wrong or too old.

    Pass the raw `body`, and both secrets during a rotation. A webhook may arrive twice: deduplicate by `origin_id`,
    which is also the header `webhook-id`.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp, signature_header = (
        required_header(headers, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    )
    if not TIMESTAMP_PATTERN.fullmatch(timestamp) or abs(time.time() - int(timestamp)) > tolerance:
        raise WebhookVerificationError("webhook-timestamp: too old, or in the future")
    raw = body.encode() if isinstance(body, str) else body
    signed = b".".join((message_id.encode(errors="replace"), timestamp.encode(), raw))
    expected = [webhook_signature(secret, signed) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    signatures = [
        signature.removeprefix(SIGNATURE_VERSION).encode(errors="replace")
        for signature in signature_header.split()
        if signature.startswith(SIGNATURE_VERSION)
    ]
    matches = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in signatures]  # compares all of them
    if not any(matches):
        raise WebhookVerificationError("webhook-signature: does not match")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise WebhookVerificationError("the body is not a JSON object") from None


def required_header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise WebhookVerificationError(f"{name}: missing")
    return value


def webhook_signature(secret: str, signed: bytes) -> bytes:
    try:
        encoded = secret.strip().removeprefix(SECRET_PREFIX).rstrip("=")
        key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError("not a webhook secret: it must look like whsec_…")
    return b64encode(hmac.digest(key, signed, "sha256"))
