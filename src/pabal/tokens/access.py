"""The mint: makes the two tokens of a grant, and what is stored of them."""

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
from pabal.core.secrets import decode_base64url, hash_secret
from pabal.keys.envelope import EnvelopeLocation, decrypt_envelope, encrypt_envelope
from pabal.keys.key import Key, KeyUse
from pabal.keys.keyring import KeyRing
from pabal.tokens.permission import format_scope

JWT_ALGORITHM, JWT_TYPE = "ES256", "at+jwt"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256: a private key is a number below it."""
MAX_TOKEN_LENGTH = 4096
"""No token of ours is longer; what is longer is not looked at."""

UNREADABLE_JWT = "this is not one of our access tokens"


class TokenClaims(msgspec.Struct, frozen=True):
    """What an access token says of itself. `family` is ours: the grant it descends from."""

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
    """Exactly what `sign` writes. Whatever else a header could ask for is not asked of us by our own tokens."""

    alg: str
    typ: str
    kid: str


def sign_access_token(key_ring: KeyRing, claims: TokenClaims) -> str:
    key = key_ring.active(KeyUse.SIGNING)
    header = {"alg": JWT_ALGORITHM, "typ": JWT_TYPE, "kid": key.id}
    return jws.serialize_compact(header, msgspec.json.encode(claims), signing_jwk(key), algorithms=[JWT_ALGORITHM])


def decode_access_token(key_ring: KeyRing, token: str, audience: str) -> TokenClaims:
    """The claims of a token one of our keys has signed; whether it is still good is another question."""
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
        raise InvalidToken("this access token is meant for somebody else")
    return claims


def build_jwks(key_ring: KeyRing) -> dict[str, Any]:
    """The JWKS: the key that signs, the one that will, and those that did."""
    return {"keys": [signing_jwk(key).as_dict(private=False) for key in key_ring.keys.for_use(KeyUse.SIGNING)]}


def epoch_seconds(at: datetime) -> int:
    return int(at.timestamp())


@lru_cache(maxsize=64)
def signing_jwk(key: Key) -> ECKey:
    """The key in the library's form; the 32 bytes we keep are its number, brought into the curve's range."""
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
                exp=epoch_seconds(ends),
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
