"""The mint: makes the two tokens of a grant, and what is stored of them."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from pabal.core.ids import new_id
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.ring import KeyRing
from pabal.tokens import jwt
from pabal.tokens.digest import hash_secret
from pabal.tokens.permission import format_scope

ACCESS_TOKEN_LIFETIME = timedelta(hours=1)
REFRESH_TOKEN_LIFETIME = timedelta(days=7)
TOKEN_FAMILY_LIFETIME = timedelta(days=30)

REFRESH_PREFIX = "pbr_"
"""So that whoever scans for leaked secrets knows ours when they see one."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token: itself, to be told once, and what the table holds of it."""

    id: UUID
    token: str = field(repr=False)
    envelope: str = field(repr=False)
    token_hash: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class TokenPair:
    """What a client is given: an access token, and what to refresh it with."""

    family_id: UUID
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    permissions: tuple[str, ...]
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Who issues, for whom, and with which keys."""

    key_ring: KeyRing
    issuer_url: str
    audience: str

    def create_access_token(
        self, service: str, permissions: Sequence[str], family_id: UUID, *, now: datetime, latest_expiry: datetime
    ) -> NewToken:
        """An access token for an hour, or for what is left of its family."""
        token_id, ends = new_id(), min(now + ACCESS_TOKEN_LIFETIME, latest_expiry).replace(microsecond=0)
        token = jwt.sign_access_token(
            self.key_ring,
            jwt.TokenClaims(
                iss=self.issuer_url,
                aud=self.audience,
                sub=service,
                client_id=service,
                scope=format_scope(permissions),
                jti=token_id,
                iat=jwt.epoch_seconds(now),
                nbf=jwt.epoch_seconds(now),
                exp=jwt.epoch_seconds(ends),
                family=family_id,
            ),
        )
        return NewToken(
            token_id,
            token,
            encrypt_envelope(self.key_ring, token, access_token_cell(token_id)),
            hash_secret(token),
            ends,
        )

    def create_refresh_token(self, *, now: datetime, latest_expiry: datetime) -> NewToken:
        """A refresh token for a week, or for what is left of its family."""
        token_id, token = new_id(), REFRESH_PREFIX + secrets.token_urlsafe(32)
        ends = min(now + REFRESH_TOKEN_LIFETIME, latest_expiry)
        return NewToken(
            token_id,
            token,
            encrypt_envelope(self.key_ring, token, refresh_token_cell(token_id)),
            hash_secret(token),
            ends,
        )

    def decrypt_access_token(self, token_id: UUID, envelope: str) -> str:
        return decrypt_envelope(self.key_ring, envelope, access_token_cell(token_id))

    def decrypt_refresh_token(self, token_id: UUID, envelope: str) -> str:
        return decrypt_envelope(self.key_ring, envelope, refresh_token_cell(token_id))


def access_token_cell(token_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation("service_tokens", "access_token", token_id)


def refresh_token_cell(token_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation("refresh_tokens", "refresh_token", token_id)
