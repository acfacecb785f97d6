"""Is this webhook really from our hub? Standard Webhooks, verified by hand: an HMAC over id, time and body."""

import hmac
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pabal.client.errors import Unverified

PREFIX = "whsec_"
VERSION = "v1,"
SECONDS = re.compile(r"[0-9]{1,12}")
TOLERANCE = 300
"""Seconds the sender's clock and ours may differ, or a message may be on its way."""


def verify(
    secrets: str | Sequence[str], headers: Mapping[str, str], body: bytes | str, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """The event in a webhook, if one of our secrets signed it a short while ago; Unverified else.

    `body` is what arrived, byte by byte. Give both secrets while one is being changed. A message may come twice:
    deduplicate by its `origin_id`, which is also the header `webhook-id`.
    """
    known = {name.lower(): value for name, value in headers.items()}
    message, moment, given = (one(known, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature"))
    if not SECONDS.fullmatch(moment) or abs(time.time() - int(moment)) > tolerance:
        raise Unverified("webhook-timestamp: too long ago, or in the future")
    raw = body.encode() if isinstance(body, str) else body
    signed = b".".join((message.encode(errors="replace"), moment.encode(), raw))
    ours = [signature(each, signed) for each in ([secrets] if isinstance(secrets, str) else secrets)]
    theirs = [each.removeprefix(VERSION).encode(errors="replace") for each in given.split() if each.startswith(VERSION)]
    if not any([hmac.compare_digest(mine, other) for mine in ours for other in theirs]):  # noqa: C419 each is compared
        raise Unverified("webhook-signature: none of it is ours")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unverified("signed, but not an event") from None


def one(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise Unverified(f"{name}: missing")
    return value


def signature(secret: str, signed: bytes) -> bytes:
    try:
        bare = secret.strip().removeprefix(PREFIX).rstrip("=")
        key = b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError("a webhook secret looks like whsec_…")
    return b64encode(hmac.digest(key, signed, "sha256"))
