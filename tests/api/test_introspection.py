"""Revocation, introspection, metadata and published keys (RFC 7009, 7662, 8414, 7517)."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens.permission import PERMISSION_NAMES
from support.clusters import open_connection
from support.oauth_client import RegisteredService, bearer, json_of, register_oauth_service
from support.server import serve_hub

pytestmark = pytest.mark.anyio


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_test", "write")


@pytest.fixture
async def other(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_other", "read")


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_admin", "tokens:admin", "tokens:introspect")


async def test_revocation_returns_an_empty_body_for_any_token(minu: RegisteredService) -> None:
    revoked = (await minu.tokens())["refresh_token"]
    await minu.call("revoke", token=revoked)

    for token in (revoked, "pbr_" + "A" * 43, "x.y.z", "파발", "x" * 4096):
        for hint in ("", "access_token", "refresh_token", "nonsense"):
            response = await minu.call("revoke", token=token, token_type_hint=hint)
            assert (response.status_code, response.content) == (200, b"")
            assert response.headers["cache-control"] == "no-store"


async def test_revoking_an_access_token_keeps_its_family(minu: RegisteredService) -> None:
    pair = await minu.tokens()
    await minu.call("revoke", token=pair["access_token"], token_type_hint="refresh_token")

    assert not await minu.is_active(pair["access_token"])
    assert await minu.is_active(pair["refresh_token"])
    assert await minu.is_active((await minu.refresh(pair["refresh_token"]))["access_token"])


async def test_revoking_a_refresh_token_revokes_its_family(minu: RegisteredService) -> None:
    first, other_family = await minu.tokens(), await minu.tokens()
    second = await minu.refresh(first["refresh_token"])
    await minu.call("revoke", token=second["refresh_token"], token_type_hint="access_token")

    for pair in (first, second):
        assert not await minu.is_active(pair["access_token"])
        assert not await minu.is_active(pair["refresh_token"])
    assert await minu.is_active(other_family["access_token"])


async def test_a_service_can_revoke_its_own_tokens_with_a_token(
    minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    pair, credentials = await minu.tokens(), await minu.tokens(scope="events:read")
    response = await web.post(
        "/oauth/revoke", data={"token": pair["refresh_token"]}, headers=bearer(credentials["access_token"])
    )

    assert (response.status_code, response.content) == (200, b"")
    assert not await minu.is_active(pair["access_token"])


async def test_a_service_cannot_revoke_tokens_of_another(
    minu: RegisteredService, other: RegisteredService, web: httpx2.AsyncClient
) -> None:
    pair, other_pair = await minu.tokens(), await other.tokens()
    for token in (pair["access_token"], pair["refresh_token"]):
        by_secret = await other.call("revoke", token=token)
        by_token = await web.post("/oauth/revoke", data={"token": token}, headers=bearer(other_pair["access_token"]))

        for response in (by_secret, by_token):
            assert (response.status_code, response.content) == (200, b"")
    assert await minu.is_active(pair["access_token"])
    assert await minu.is_active(pair["refresh_token"])


async def test_tokens_admin_can_revoke_tokens_of_any_service(
    minu: RegisteredService, admin: RegisteredService, web: httpx2.AsyncClient
) -> None:
    first, second = await minu.tokens(), await minu.tokens()
    without_admin = (await admin.tokens(scope="tokens:introspect"))["access_token"]
    await web.post("/oauth/revoke", data={"token": first["refresh_token"]}, headers=bearer(without_admin))
    assert await minu.is_active(first["access_token"])

    with_admin = (await admin.tokens(scope="tokens:admin"))["access_token"]
    await web.post("/oauth/revoke", data={"token": first["refresh_token"]}, headers=bearer(with_admin))
    await admin.call("revoke", token=second["access_token"])

    assert not await minu.is_active(first["access_token"])
    assert not await minu.is_active(second["access_token"])
    assert await minu.is_active(second["refresh_token"])


async def test_a_revoked_token_is_rejected_at_once(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    token = (await minu.tokens())["access_token"]
    first = await web.post("/oauth/revoke", data={"token": token}, headers=bearer(token))
    second = await web.post("/oauth/revoke", data={"token": token}, headers=bearer(token))

    assert first.status_code == 200
    assert (second.status_code, second.json()["error"]) == (401, "invalid_token")
    assert second.headers["www-authenticate"].startswith('Bearer realm="pabal", error="invalid_token"')


async def test_introspection_of_a_valid_token_returns_its_claims(hub: Hub, minu: RegisteredService) -> None:
    pair = await minu.tokens(scope="events:publish")
    access, refresh = await minu.introspect(pair["access_token"]), await minu.introspect(pair["refresh_token"])

    for claims, kind, lifetime in ((access, "Bearer", 3600), (refresh, "refresh_token", 7 * 86400)):
        assert claims.pop("active") is True
        assert claims["sub"] == claims["client_id"] == minu.name
        assert claims["token_type"] == kind
        assert claims["iss"] == hub.settings.issuer
        assert claims["aud"] == "pabal"
        assert abs(claims["exp"] - claims["iat"] - lifetime) <= 1
        assert claims["nbf"] == claims["iat"]
    assert access["scope"] == refresh["scope"] == "events:publish"
    assert access["family"] == refresh["family"]
    assert access["jti"] != refresh["jti"]


async def test_introspection_of_an_invalid_token_returns_only_inactive(
    minu: RegisteredService, other: RegisteredService
) -> None:
    pair = await other.tokens()
    used = (await other.tokens())["refresh_token"]
    await other.refresh(used)
    await other.set_active(active=False)

    for token in (pair["access_token"], pair["refresh_token"], used, "pbr_x", "x.y.z", "", " "):
        if token:
            assert await minu.introspect(token) == {"active": False}
    await other.set_active(active=True)
    assert await minu.is_active(pair["access_token"])


async def test_introspection_requires_a_secret_or_the_permission(
    minu: RegisteredService, admin: RegisteredService, web: httpx2.AsyncClient
) -> None:
    token = (await minu.tokens())["access_token"]
    with_permission = (await admin.tokens(scope="tokens:introspect"))["access_token"]
    without_permission = (await admin.tokens(scope="tokens:admin"))["access_token"]
    form = {"token": token}

    assert json_of(await web.post("/oauth/introspect", data=form, headers=bearer(with_permission)))["active"]
    rejected = await web.post("/oauth/introspect", data=form, headers=bearer(without_permission))
    assert (rejected.status_code, rejected.json()["error"]) == (403, "insufficient_scope")
    assert rejected.headers["www-authenticate"] == (
        'Bearer realm="pabal", error="insufficient_scope", scope="tokens:introspect"'
    )


@pytest.mark.parametrize("endpoint", ["revoke", "introspect"])
async def test_a_token_and_a_secret_together_are_rejected(
    endpoint: str, admin: RegisteredService, web: httpx2.AsyncClient
) -> None:
    token = (await admin.tokens())["access_token"]
    credentials = {"client_id": admin.name, "client_secret": admin.secret}
    response = await web.post(f"/oauth/{endpoint}", data={"token": token} | credentials, headers=bearer(token))

    assert (response.status_code, response.json()["error"]) == (400, "invalid_request")
    assert await admin.is_active(token)


async def test_introspection_reads_the_table_and_not_a_cache(
    minu: RegisteredService, database_urls: DatabaseUrls
) -> None:
    pair = await minu.tokens()
    await minu.hub.token_verifier.verify(pair["access_token"])
    revocations = {
        "access_token": "update public.service_tokens set is_revoked = true, revoked_at = now()",
        "refresh_token": "update public.refresh_tokens set revoked_at = now()",
    }
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        for kind, revocation in revocations.items():
            assert await minu.is_active(pair[kind])
            await conn.execute(revocation)  # without a notification
            assert not await minu.is_active(pair[kind])


METADATA = {
    "type": "object",
    "required": ["issuer", "token_endpoint", "response_types_supported", "jwks_uri"],
    "properties": {
        "issuer": {"type": "string", "pattern": "^https?://[^?#]+[^/?#]$"},
        "response_types_supported": {"const": []},
        "grant_types_supported": {"const": ["client_credentials", "refresh_token"]},
        "scopes_supported": {"const": [*PERMISSION_NAMES]},
    },
    "patternProperties": {
        "_(endpoint|uri|documentation)$": {"type": "string", "pattern": "^https?://[^?#]+$"},
        "_auth_methods_supported$": {"const": ["client_secret_basic", "client_secret_post"]},
    },
}
KEY = {
    "type": "object",
    "required": ["kty", "crv", "x", "y", "kid", "use", "alg"],
    "properties": {
        "kty": {"const": "EC"},
        "crv": {"const": "P-256"},
        "use": {"const": "sig"},
        "alg": {"const": "ES256"},
        "x": {"type": "string", "pattern": "^[A-Za-z0-9_-]{43}$"},
        "y": {"type": "string", "pattern": "^[A-Za-z0-9_-]{43}$"},
        "kid": {"type": "string", "minLength": 1},
    },
    "additionalProperties": False,
}
"""A public key only: `d` would be the private part."""


@pytest.fixture
async def public_hub(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of a hub with a public URL."""
    with_public_url = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(with_public_url, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        yield client


async def test_the_metadata_names_existing_endpoints(hub: Hub, web: httpx2.AsyncClient) -> None:
    response = await web.get("/.well-known/oauth-authorization-server")
    metadata = response.json()

    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "public, max-age=3600"
    jsonschema_rs.validate(METADATA, metadata)
    assert metadata["issuer"] == hub.settings.issuer
    for name, value in metadata.items():
        if name.endswith(("_endpoint", "_uri")):
            path = value.removeprefix(hub.settings.issuer)
            endpoint_response = await (web.get(path) if name == "jwks_uri" else web.post(path))
            assert endpoint_response.status_code == (200 if name == "jwks_uri" else 400), name


async def test_the_metadata_uses_the_public_url(public_hub: httpx2.AsyncClient) -> None:
    metadata: dict[str, Any] = (await public_hub.get("/.well-known/oauth-authorization-server")).json()

    assert metadata["issuer"] == "https://hub.example.org"
    addresses = [value for name, value in metadata.items() if name.endswith(("_endpoint", "_uri", "_documentation"))]
    assert len(addresses) == 5
    assert all(address.startswith("https://hub.example.org/") for address in addresses)


async def test_only_public_keys_are_published(hub: Hub, web: httpx2.AsyncClient) -> None:
    response = await web.get("/.well-known/jwks.json")
    keys = response.json()["keys"]

    assert response.headers["cache-control"] == "public, max-age=300"
    assert len(keys) == 2  # the signing key and the next one
    for key in keys:
        jsonschema_rs.validate(KEY, key)
    assert len({key["kid"] for key in keys}) == len(keys)
