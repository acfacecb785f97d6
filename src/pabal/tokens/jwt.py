"""The access token as anybody can check it: a JWT under ES256, and the public halves of the keys that sign it.

ES256 because every JOSE library takes it without being asked twice; EdDSA goes by two names, and not all know both.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from pabal.core.base64url import decode_base64url
from pabal.core.errors import InvalidToken
from pabal.keys.key import Key, KeyUse
from pabal.keys.ring import KeyRing

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
