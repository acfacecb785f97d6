"""Pairing codes that an owner creates. Each connects one user and expires within minutes."""

import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import AccountDisabled, Invalid, NotFound, RateLimited
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit

CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without characters that look alike."""
CODE_HALF_LENGTH = 4
CODE_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015\u2212]+")
"""Phones replace a hyphen with various dashes."""
MAX_CODE_INPUT_LENGTH = 64
"""Longer input is no code. Checked before normalising, which is slow on long input."""
CODE_PATTERN = re.compile(rf"[{CODE_ALPHABET}]{{{2 * CODE_HALF_LENGTH}}}")


def random_pairing_code() -> str:
    """A random code of 40 bits, enough where five wrong attempts lock the conversation."""
    return format_pairing_code("".join(secrets.choice(CODE_ALPHABET) for _ in range(2 * CODE_HALF_LENGTH)))


def parse_pairing_code(text: str) -> str | None:
    """Parse user input into the stored form, XXXX-XXXX; None if it cannot be a code."""
    if len(text) > MAX_CODE_INPUT_LENGTH:
        return None
    letters = CODE_SEPARATORS.sub("", unicodedata.normalize("NFKC", text)).upper()
    return format_pairing_code(letters) if CODE_PATTERN.fullmatch(letters) else None


def format_pairing_code(letters: str) -> str:
    return f"{letters[:CODE_HALF_LENGTH]}-{letters[CODE_HALF_LENGTH:]}"


Q = load_queries(__file__)

DEFAULT_CODE_LIFETIME = timedelta(minutes=10)
MAX_CODE_LIFETIME = timedelta(minutes=30)
MAX_LIVE_CODES = 5
MAX_METADATA_BYTES = 4096
"""Bytes of an owner's own data on a code."""
PAIRING_CODE_RATE_LIMIT = RateLimit("pairing codes a minute", 10, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class PairingCode:
    """An unused code."""

    code: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LiveCodeCount:
    """How many unused codes an account has, and when the next one expires."""

    is_disabled: bool
    live_codes: int
    next_expires_in: timedelta | None


async def create_pairing_code(
    tx: Tx,
    account: UUID,
    actor: Actor,
    *,
    lifetime: timedelta = DEFAULT_CODE_LIFETIME,
    metadata: Mapping[str, Any] | None = None,
) -> PairingCode:
    """Create a code for an account, which may have at most `MAX_LIVE_CODES`."""
    if not timedelta() < lifetime <= MAX_CODE_LIFETIME:
        raise Invalid.of_field("expiresInSeconds", f"must be 1 to {MAX_CODE_LIFETIME // timedelta(seconds=1)}")
    if metadata is not None and len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
        raise Invalid.of_field("metadata", f"is longer than {MAX_METADATA_BYTES} bytes")
    if not await tx.value(Q.lock_account, account=account):
        raise NotFound("No such account")
    live = await tx.one(LiveCodeCount, Q.count_live_codes, account=account)
    if live.is_disabled:
        raise AccountDisabled
    if live.live_codes >= MAX_LIVE_CODES:
        raise RateLimited("live pairing codes", live.next_expires_in or DEFAULT_CODE_LIFETIME)
    while True:
        code = await tx.maybe(
            PairingCode,
            Q.insert_pairing_code,
            code=random_pairing_code(),
            account=account,
            life=lifetime,
            metadata=metadata,
        )
        if code is not None:
            break
    await record_action(tx, actor, "pairing.code_made", str(account))
    return code


async def purge_pairing_codes(tx: Tx, batch: int) -> int:
    """Delete expired codes; used ones are kept for a week."""
    return await tx.run(Q.purge_pairing_codes, batch=batch)
