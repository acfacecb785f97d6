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

from pabal.core.base64url import decoded
from pabal.core.errors import BadToken
from pabal.keys.key import Key, Use
from pabal.keys.ring import Ring

ALGORITHM, TYPE = "ES256", "at+jwt"
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256: a private key is a number below it."""
LONGEST = 4096
"""No token of ours is longer; what is longer is not looked at."""

CANNOT_READ = "this is not one of our access tokens"


class Claims(msgspec.Struct, frozen=True):
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


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly what `sign` writes. Whatever else a header could ask for is not asked of us by our own tokens."""

    alg: str
    typ: str
    kid: str


def sign(ring: Ring, claims: Claims) -> str:
    key = ring.active(Use.SIGNING)
    header = {"alg": ALGORITHM, "typ": TYPE, "kid": key.id}
    return jws.serialize_compact(header, msgspec.json.encode(claims), private(key), algorithms=[ALGORITHM])


def read(ring: Ring, token: str, audience: str) -> Claims:
    """The claims of a token one of our keys has signed; whether it is still good is another question."""
    if len(token) > LONGEST:
        raise BadToken(CANNOT_READ)
    try:
        header = msgspec.json.decode(decoded(token.partition(".")[0]), type=Header)
        key = ring.find(header.kid)
        if (header.alg, header.typ) != (ALGORITHM, TYPE) or key is None or key.use is not Use.SIGNING:
            raise BadToken(CANNOT_READ)
        signed = jws.deserialize_compact(token, private(key), algorithms=[ALGORITHM])
        claims = msgspec.json.decode(signed.payload, type=Claims)
    except (JoseError, ValueError):
        raise BadToken(CANNOT_READ) from None
    if claims.aud != audience:
        raise BadToken("this access token is meant for somebody else")
    return claims


def published(ring: Ring) -> dict[str, Any]:
    """The JWKS: the key that signs, the one that will, and those that did."""
    return {"keys": [private(key).as_dict(private=False) for key in ring.keys.of(Use.SIGNING)]}


def seconds(at: datetime) -> int:
    return int(at.timestamp())


@lru_cache(maxsize=64)
def private(key: Key) -> ECKey:
    """The key in the library's form; the 32 bytes we keep are its number, brought into the curve's range."""
    number = int.from_bytes(key.secret, "big") % (ORDER - 1) + 1
    return ECKey(
        ec.derive_private_key(number, ec.SECP256R1()),
        None,
        {"kid": key.id, "use": "sig", "alg": ALGORITHM},
    )
