"""The hub's tokens work with a generic OAuth client and a JOSE library, without code of the hub."""

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx2
import msgspec
import pytest
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.client import OAuth2Client
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet
from joserfc.jwt import JWTClaimsRegistry

from pabal.core.secrets import decode_base64url, encode_base64url
from pabal.hub import Hub
from pabal.keys.key import KeyUse
from pabal.tokens.issuer import signing_jwk
from support.oauth_client import RegisteredService, bearer, register_oauth_service

pytestmark = pytest.mark.anyio


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_test", "write", "tokens:introspect")


class Session:
    """Carries the requests of an authlib client over httpx2."""

    def __init__(self, address: str) -> None:
        self._web = httpx2.Client(base_url=address)

    def post(self, url: str, data: dict[str, str], headers: dict[str, str], auth: Any) -> httpx2.Response:
        target, headers, body = auth.prepare("POST", url, dict(headers), urlencode(data))
        return self._web.post(target, content=body, headers=headers)

    def close(self) -> None:
        self._web.close()


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_generic_oauth_client_works(method: str, minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    metadata = (await web.get("/.well-known/oauth-authorization-server")).json()
    endpoints = {
        name: value.removeprefix(metadata["issuer"])
        for name, value in metadata.items()
        if "_endpoint" in name and "_auth_" not in name
    }
    assert method in metadata["token_endpoint_auth_methods_supported"]

    await asyncio.to_thread(run_oauth_client, str(web.base_url), minu, method, endpoints)


def run_oauth_client(address: str, minu: RegisteredService, method: str, endpoints: dict[str, str]) -> None:
    """Get, refresh, introspect and revoke tokens with a client made for any OAuth server."""
    session = Session(address)
    client: Any = OAuth2Client(
        session,
        minu.name,
        minu.secret,
        token_endpoint_auth_method=method,
        revocation_endpoint_auth_method=method,
        token_endpoint=endpoints["token_endpoint"],
        scope="events:publish events:read",
    )
    try:
        first = dict(client.fetch_token(grant_type="client_credentials"))
        second = dict(client.refresh_token())
        introspected = client.introspect_token(endpoints["introspection_endpoint"], token=second["access_token"])
        client.revoke_token(
            endpoints["revocation_endpoint"], token=second["refresh_token"], token_type_hint="refresh_token"
        )
        after_revocation = client.introspect_token(endpoints["introspection_endpoint"], token=second["access_token"])
        with pytest.raises(OAuth2Error) as error:
            client.refresh_token()
    finally:
        session.close()

    assert first["token_type"] == "Bearer"
    assert second["refresh_token"] != first["refresh_token"]
    assert (introspected.json()["active"], introspected.json()["scope"]) == (True, "events:publish events:read")
    assert after_revocation.json() == {"active": False}
    assert error.value.error == "invalid_grant"


async def test_a_token_can_be_verified_with_the_published_keys_alone(
    hub: Hub, minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    token = (await minu.tokens(scope="read"))["access_token"]
    published = KeySet.import_key_set((await web.get("/.well-known/jwks.json")).json())
    claims = verify_offline(hub, published, token)

    assert claims.keys() == {"iss", "aud", "sub", "client_id", "scope", "jti", "iat", "nbf", "exp", "family"}
    assert (claims["sub"], claims["scope"]) == (minu.name, "events:read notifications:read")
    assert claims["exp"] - claims["iat"] == 3600
    assert jws.extract_compact(token.encode()).headers()["typ"] == "at+jwt"


def verify_offline(hub: Hub, published: KeySet, token: str) -> dict[str, Any]:
    """Verify a token as a service does that cannot call the hub."""
    decoded = jwt.decode(token, published, algorithms=["ES256"])
    registry = JWTClaimsRegistry(
        iss={"essential": True, "value": hub.settings.issuer},
        aud={"essential": True, "value": hub.settings.token_audience},
        exp={"essential": True},
    )
    registry.validate(decoded.claims)
    return decoded.claims


Forgery = Callable[[Hub, str, dict[str, Any]], str]


def tampered(_hub: Hub, token: str, claims: dict[str, Any]) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{encode_part(claims | {'scope': 'hub:admin'})}.{signature}"


def unsigned(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    head = {"alg": "none", "typ": "at+jwt", "kid": hub.key_ring.active(KeyUse.SIGNING).id}
    return f"{encode_part(head)}.{token.split('.')[1]}."


def public_key_as_secret(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    hub_key = signing_jwk(hub.key_ring.active(KeyUse.SIGNING))
    signing_input = f"{encode_part({'alg': 'HS256', 'typ': 'at+jwt', 'kid': hub_key.kid})}.{encode_part(claims)}"
    signature = hmac.digest(hub_key.as_pem(private=False), signing_input.encode(), "sha256")
    return f"{signing_input}.{encode_base64url(signature)}"


def another_key_with_the_hubs_key_id(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    return sign(hub, claims, ECKey.generate_key("P-256"))


def without_a_kid(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "ES256", "typ": "at+jwt"}, claims, signing_jwk(hub.key_ring.active(KeyUse.SIGNING)))


def expired(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    return sign(hub, claims | {"exp": int(time.time()) - 1})


def wrong_audience(hub: Hub, token: str, claims: dict[str, Any]) -> str:
    return sign(hub, claims | {"aud": "other-service"})


def sign(hub: Hub, claims: dict[str, Any], key: ECKey | None = None) -> str:
    hub_key = signing_jwk(hub.key_ring.active(KeyUse.SIGNING))
    return jwt.encode({"alg": "ES256", "typ": "at+jwt", "kid": hub_key.kid}, claims, key or hub_key)


def encode_part(document: dict[str, Any]) -> str:
    return encode_base64url(msgspec.json.encode(document))


FORGERIES: tuple[Forgery, ...] = (
    tampered,
    unsigned,
    public_key_as_secret,
    another_key_with_the_hubs_key_id,
    without_a_kid,
    expired,
    wrong_audience,
)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
async def test_a_forgery_is_rejected_offline_and_by_the_hub(
    forge: Forgery, hub: Hub, minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    token = (await minu.tokens())["access_token"]
    published = KeySet.import_key_set((await web.get("/.well-known/jwks.json")).json())
    forged = forge(hub, token, msgspec.json.decode(decode_base64url(token.split(".")[1])))

    assert verify_offline(hub, published, token)
    with pytest.raises((JoseError, ValueError)):
        verify_offline(hub, published, forged)
    assert (await web.post("/oauth/introspect", data={"token": token}, headers=bearer(token))).json()["active"]
    response = await web.post("/oauth/introspect", data={"token": token}, headers=bearer(forged))
    assert (response.status_code, response.json()["error"]) == (401, "invalid_token")
    assert await minu.introspect(forged) == {"active": False}
