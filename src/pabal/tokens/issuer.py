"""Creates access and refresh tokens, and verifies the signature of access tokens."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from pabal.core.errors import InvalidToken
from pabal.core.ids import new_id
from pabal.core.secrets import decode_base64url, hash_token
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.key import Key, KeyUse
from pabal.keys.keyring import KeyRing
from pabal.tokens.permission import format_scope

JWT_ALGORITHM, JWT_TYPE = "ES256", "at+jwt"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256: a private key is a number below it."""
MAX_TOKEN_LENGTH = 4096
"""Longer tokens are rejected without parsing."""

UNREADABLE_JWT = "not an access token of this hub"


class TokenClaims(msgspec.Struct, frozen=True):
    """The claims of an access token. `family` is a private claim: the grant it descends from."""

    iss: str
    aud: str
    sub: str
    client_id: str
    scope: str
    jti: UUID
    iat: int
    nbf: int
    exp: int
    family: UUID


class TokenHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly the header that `sign_access_token` writes; any other field is rejected."""

    alg: str
    typ: str
    kid: str


def sign_access_token(key_ring: KeyRing, claims: TokenClaims) -> str:
    key = key_ring.active(KeyUse.SIGNING)
    header = {"alg": JWT_ALGORITHM, "typ": JWT_TYPE, "kid": key.id}
    return jws.serialize_compact(header, msgspec.json.encode(claims), signing_jwk(key), algorithms=[JWT_ALGORITHM])


def decode_access_token(key_ring: KeyRing, token: str, audience: str) -> TokenClaims:
    """Verify the signature and return the claims. Expiry and revocation are checked elsewhere."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidToken(UNREADABLE_JWT)
    try:
        header = msgspec.json.decode(decode_base64url(token.partition(".")[0]), type=TokenHeader)
        key = key_ring.find(header.kid)
        if (header.alg, header.typ) != (JWT_ALGORITHM, JWT_TYPE) or key is None or key.use is not KeyUse.SIGNING:
            raise InvalidToken(UNREADABLE_JWT)
        signed = jws.deserialize_compact(token, signing_jwk(key), algorithms=[JWT_ALGORITHM])
        claims = msgspec.json.decode(signed.payload, type=TokenClaims)
    except (JoseError, ValueError):
        raise InvalidToken(UNREADABLE_JWT) from None
    if claims.aud != audience:
        raise InvalidToken("the access token has another audience")
    return claims


def build_jwks(key_ring: KeyRing) -> dict[str, Any]:
    """The JWKS: the current, the next and the former signing keys."""
    return {"keys": [signing_jwk(key).as_dict(private=False) for key in key_ring.keys.for_use(KeyUse.SIGNING)]}


def epoch_seconds(at: datetime) -> int:
    return int(at.timestamp())


@lru_cache(maxsize=64)
def signing_jwk(key: Key) -> ECKey:
    """Convert a key to a JWK. Its 32 bytes, reduced to the curve's range, are the private number."""
    number = int.from_bytes(key.secret, "big") % (P256_ORDER - 1) + 1
    return ECKey(
        ec.derive_private_key(number, ec.SECP256R1()),
        None,
        {"kid": key.id, "use": "sig", "alg": JWT_ALGORITHM},
    )


ACCESS_TOKEN_LIFETIME = timedelta(hours=1)
REFRESH_TOKEN_LIFETIME = timedelta(days=7)
TOKEN_FAMILY_LIFETIME = timedelta(days=30)

REFRESH_PREFIX = "pbr_"
"""Lets secret scanners recognise leaked tokens."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token, returned once, and the columns that store it."""

    id: UUID
    token: str = field(repr=False)
    envelope: str = field(repr=False)
    token_hash: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class TokenPair:
    """The tokens that a client receives."""

    family_id: UUID
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    permissions: tuple[str, ...]
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Creates tokens with an issuer, an audience and keys."""

    key_ring: KeyRing
    issuer_url: str
    audience: str

    def create_access_token(
        self, service: str, permissions: Sequence[str], family_id: UUID, *, now: datetime, latest_expiry: datetime
    ) -> NewToken:
        """Create an access token for an hour, or for the rest of its family's lifetime."""
        token_id, expires_at = new_id(), min(now + ACCESS_TOKEN_LIFETIME, latest_expiry).replace(microsecond=0)
        token = sign_access_token(
            self.key_ring,
            TokenClaims(
                iss=self.issuer_url,
                aud=self.audience,
                sub=service,
                client_id=service,
                scope=format_scope(permissions),
                jti=token_id,
                iat=epoch_seconds(now),
                nbf=epoch_seconds(now),
                exp=epoch_seconds(expires_at),
                family=family_id,
            ),
        )
        return NewToken(
            token_id,
            token,
            encrypt_envelope(self.key_ring, token, access_token_cell(token_id)),
            hash_token(token).hex(),
            expires_at,
        )

    def create_refresh_token(self, *, now: datetime, latest_expiry: datetime) -> NewToken:
        """Create a refresh token for a week, or for the rest of its family's lifetime."""
        token_id, token = new_id(), REFRESH_PREFIX + secrets.token_urlsafe(32)
        expires_at = min(now + REFRESH_TOKEN_LIFETIME, latest_expiry)
        return NewToken(
            token_id,
            token,
            encrypt_envelope(self.key_ring, token, refresh_token_cell(token_id)),
            hash_token(token).hex(),
            expires_at,
        )

    def decrypt_access_token(self, token_id: UUID, envelope: str) -> str:
        return decrypt_envelope(self.key_ring, envelope, access_token_cell(token_id))

    def decrypt_refresh_token(self, token_id: UUID, envelope: str) -> str:
        return decrypt_envelope(self.key_ring, envelope, refresh_token_cell(token_id))


def access_token_cell(token_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation("service_tokens", "access_token", token_id)


def refresh_token_cell(token_id: UUID) -> EnvelopeLocation:
    return EnvelopeLocation("refresh_tokens", "refresh_token", token_id)
