"""Is this webhook really from our hub? Standard Webhooks, verified by hand: an HMAC over id, time and body."""

import hmac
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pabal.client.errors import WebhookVerificationError

SECRET_PREFIX = "whsec_"  # noqa: S105
SIGNATURE_VERSION = "v1,"
TIMESTAMP_PATTERN = re.compile(r"[0-9]{1,12}")
TOLERANCE = 300
"""Seconds the sender's clock and ours may differ, or a message may be on its way."""


def verify_webhook(
    secrets: str | Sequence[str], headers: Mapping[str, str], body: bytes | str, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """The event in a webhook, if one of our secrets signed it a short while ago; Unverified else.

    `body` is what arrived, byte by byte. Give both secrets while one is being changed. A message may come twice:
    deduplicate by its `origin_id`, which is also the header `webhook-id`.
    """
    known = {name.lower(): value for name, value in headers.items()}
    message, moment, given = (
        required_header(known, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    )
    if not TIMESTAMP_PATTERN.fullmatch(moment) or abs(time.time() - int(moment)) > tolerance:
        raise WebhookVerificationError("webhook-timestamp: too long ago, or in the future")
    raw = body.encode() if isinstance(body, str) else body
    signed = b".".join((message.encode(errors="replace"), moment.encode(), raw))
    ours = [webhook_signature(each, signed) for each in ([secrets] if isinstance(secrets, str) else secrets)]
    theirs = [
        each.removeprefix(SIGNATURE_VERSION).encode(errors="replace")
        for each in given.split()
        if each.startswith(SIGNATURE_VERSION)
    ]
    if not any([hmac.compare_digest(mine, other) for mine in ours for other in theirs]):  # noqa: C419 each is compared
        raise WebhookVerificationError("webhook-signature: none of it is ours")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise WebhookVerificationError("signed, but not an event") from None


def required_header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise WebhookVerificationError(f"{name}: missing")
    return value


def webhook_signature(secret: str, signed: bytes) -> bytes:
    try:
        bare = secret.strip().removeprefix(SECRET_PREFIX).rstrip("=")
        key = b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError("a webhook secret looks like whsec_…")
    return b64encode(hmac.digest(key, signed, "sha256"))
