"""The token endpoint follows RFC 6749."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.settings import Settings
from pabal.tokens.permission import Permission
from support.oauth_client import RegisteredService, basic, bearer, register_oauth_service

pytestmark = pytest.mark.anyio

FORM = "application/x-www-form-urlencoded"
CHALLENGE = 'Basic realm="pabal", charset="UTF-8"'
GRANT = {"grant_type": "client_credentials"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"trusted_proxies": ["127.0.0.0/8"]})


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_test", "read", "events:publish")


def error_of(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of an RFC error response, which must not be cached."""
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error", "error_description"}
    assert ("www-authenticate" in response.headers) == (response.status_code in {401, 403})
    return response.status_code, response.json()["error"]


async def test_credentials_may_be_in_the_header_or_in_the_body(
    minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    in_header = await web.post("/oauth/token", data=GRANT, headers=minu.basic)
    in_body = await web.post("/oauth/token", data=GRANT | {"client_id": minu.name, "client_secret": minu.secret})
    named_twice = await web.post("/oauth/token", data=GRANT | {"client_id": minu.name}, headers=minu.basic)

    for response in (in_header, in_body, named_twice):
        assert response.status_code == 200
        assert (response.headers["cache-control"], response.headers["pragma"]) == ("no-store", "no-cache")
        assert response.headers["content-type"] == "application/json"
        assert response.json().keys() == {"access_token", "token_type", "expires_in", "scope", "refresh_token"}
        assert (response.json()["token_type"], response.json()["expires_in"]) == ("Bearer", 3600)
        assert response.json()["scope"] == "events:publish events:read notifications:read"


async def test_credentials_in_the_header_are_form_encoded(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    encoded = basic(f"{minu.name.replace('_', '%5F')}:{minu.secret.replace('_', '%5f')}".encode())

    assert (await web.post("/oauth/token", data=GRANT, headers=encoded)).status_code == 200


async def test_authorization_schemes_are_case_insensitive(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    upper_case = {"authorization": minu.basic["authorization"].replace("Basic", "BASIC")}
    token = (await minu.tokens())["access_token"]

    assert (await web.post("/oauth/token", data=GRANT, headers=upper_case)).status_code == 200
    lower_case = {"authorization": f"bearer {token}"}
    assert (await web.post("/oauth/revoke", data={"token": "x"}, headers=lower_case)).status_code == 200


SCOPES = {
    "": "events:publish events:read notifications:read",
    "read": "events:read notifications:read",
    "events:read": "events:read",
    "write": "events:publish events:read notifications:read",
    "hub:admin events:publish": "events:publish",
    "events:publish  events:publish": "events:publish",
}


async def test_the_scope_is_what_was_requested_and_allowed(minu: RegisteredService) -> None:
    granted = {scope: (await minu.tokens(scope=scope))["scope"] for scope in SCOPES}

    assert granted == SCOPES


async def test_the_refresh_token_is_optional(minu: RegisteredService) -> None:
    assert "refresh_token" not in await minu.tokens(refresh="false")
    assert "refresh_token" in await minu.tokens(refresh="true")


async def test_unknown_parameters_are_ignored(minu: RegisteredService) -> None:
    token = await minu.tokens(resource="https://other.example", client_assertion="", x="1")

    assert token["scope"]


async def test_an_empty_parameter_counts_as_absent(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    empty = {"scope": "", "refresh": "", "client_id": "", "client_secret": "", "refresh_token": ""}

    assert "refresh_token" in await minu.tokens(**empty)
    assert error_of(await minu.call("token", grant_type="")) == (400, "invalid_request")
    assert error_of(await minu.call("introspect", token="")) == (400, "invalid_request")


async def test_the_query_string_is_ignored(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    credentials = {"client_id": minu.name, "client_secret": minu.secret}

    assert error_of(await web.post("/oauth/token", params=GRANT | credentials, data=GRANT)) == (401, "invalid_client")
    response = await web.post("/oauth/token", params={"scope": "hub:nonsense"}, data=GRANT, headers=minu.basic)
    assert response.status_code == 200


Request = tuple[dict[str, Any], tuple[int, str]]


def wrong_requests(minu: RegisteredService, refresh_token: str) -> dict[str, Request]:
    """Wrong requests with the expected errors. By default the credentials are in the header."""
    credentials = {"client_id": minu.name, "client_secret": minu.secret}
    form, missing = {"content-type": FORM}, (400, "invalid_request")
    return {
        "no grant_type": ({"data": {"scope": "read"}}, missing),
        "an empty body": ({"content": b"", "headers": form}, missing),
        "a parameter twice": ({"content": b"grant_type=client_credentials&scope=a&scope=a", "headers": form}, missing),
        "an unknown parameter twice": ({"content": b"grant_type=client_credentials&x=1&x=2", "headers": form}, missing),
        "json": ({"json": GRANT}, missing),
        "multipart": ({"files": {"grant_type": b"client_credentials"}}, missing),
        "no content type": ({"content": b"grant_type=client_credentials"}, missing),
        "a secret twice": ({"data": GRANT | credentials}, missing),
        "another client_id": ({"data": GRANT | {"client_id": "minu_find"}}, missing),
        "an invalid refresh value": ({"data": GRANT | {"refresh": "maybe"}}, missing),
        "no refresh token": ({"data": {"grant_type": "refresh_token"}}, missing),
        "another grant": ({"data": {"grant_type": "password"}}, (400, "unsupported_grant_type")),
        "a grant in capitals": ({"data": {"grant_type": "Client_Credentials"}}, (400, "unsupported_grant_type")),
        "an unknown scope": ({"data": GRANT | {"scope": "read everything"}}, (400, "invalid_scope")),
        "no allowed scope": ({"data": GRANT | {"scope": "hub:admin tokens:admin"}}, (400, "invalid_scope")),
        "a wider scope while refreshing": (
            {"data": {"grant_type": "refresh_token", "refresh_token": refresh_token, "scope": "hub:admin"}},
            (400, "invalid_scope"),
        ),
        "an unknown refresh token": (
            {"data": {"grant_type": "refresh_token", "refresh_token": "pbr_" + "A" * 43}},
            (400, "invalid_grant"),
        ),
        "no client": ({"data": GRANT, "headers": {"authorization": ""}}, (401, "invalid_client")),
        "a client_id without a secret": (
            {"data": GRANT | {"client_id": minu.name}, "auth": None},
            (401, "invalid_client"),
        ),
        "a token instead of a secret": ({"data": GRANT, "headers": bearer("x.y.z")}, (401, "invalid_client")),
    }


async def test_each_error_has_the_code_of_the_rfc(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    refresh_token = (await minu.tokens())["refresh_token"]
    wrong_requests_by_name = wrong_requests(minu, refresh_token)

    results: dict[str, tuple[int, str]] = {}
    for name, (request, _) in wrong_requests_by_name.items():
        anonymous = "auth" in request
        request["headers"] = ({} if anonymous else minu.basic) | request.get("headers", {})
        request.pop("auth", None)
        results[name] = error_of(await web.post("/oauth/token", **request))

    assert results == {name: expected for name, (_, expected) in wrong_requests_by_name.items()}
    await minu.refresh(refresh_token)  # none of these used the refresh token


async def test_missing_credentials_get_a_challenge(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    for endpoint in ("token", "revoke", "introspect"):
        response = await web.post(f"/oauth/{endpoint}", data=GRANT | {"token": "x"})

        assert error_of(response) == (401, "invalid_client")
        assert response.headers["www-authenticate"] == CHALLENGE


async def test_unknown_and_disabled_services_get_the_same_response(
    hub: Hub, minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    disabled = await register_oauth_service(hub, web, "minu_disabled", "read")
    await disabled.set_active(active=False)
    attempts = {
        "unknown": (basic(b"minu_nosuch:" + minu.secret.encode()), {}),
        "an invalid name": (basic(b"DROP TABLE:" + minu.secret.encode()), {}),
        "wrong secret": (basic(b"minu_test:" + disabled.secret.encode()), {}),
        "disabled": (disabled.basic, {}),
        "disabled, in the body": ({}, {"client_id": disabled.name, "client_secret": disabled.secret}),
    }

    results: dict[str, tuple[int, bytes, dict[str, str]]] = {}
    for name, (headers, credentials) in attempts.items():
        response = await web.post("/oauth/token", data=GRANT | credentials, headers=headers)
        headers_without_ids = {
            key: value for key, value in response.headers.items() if key not in {"x-request-id", "date"}
        }
        results[name] = (response.status_code, response.content, headers_without_ids)

    assert all(result == results["unknown"] for result in results.values())
    assert results["unknown"][0] == 401
    await disabled.set_active(active=True)
    await disabled.tokens()


async def test_failed_authentications_are_rate_limited(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    wrong_credentials = basic(b"minu_test:wrong")
    responses = [await web.post("/oauth/token", data=GRANT, headers=wrong_credentials) for _ in range(21)]

    assert [response.status_code for response in responses] == [401] * 20 + [429]
    assert error_of(responses[-1]) == (429, "temporarily_unavailable")
    assert 1 <= int(responses[-1].headers["retry-after"]) <= 300


async def test_a_refresh_returns_a_new_pair_and_may_reduce_the_scope(minu: RegisteredService) -> None:
    first = await minu.tokens()
    second = await minu.refresh(first["refresh_token"], scope="events:read")
    third = await minu.refresh(second["refresh_token"])

    assert len({pair["refresh_token"] for pair in (first, second, third)}) == 3
    assert (second["scope"], third["scope"]) == ("events:read", first["scope"])
    assert await minu.is_active(first["access_token"])  # a refresh does not revoke the old access token


async def test_a_refresh_token_works_only_for_its_service(
    hub: Hub, minu: RegisteredService, web: httpx2.AsyncClient
) -> None:
    other = await register_oauth_service(hub, web, "minu_other", *Permission)
    refresh_token = (await minu.tokens())["refresh_token"]
    response = await other.call("token", grant_type="refresh_token", refresh_token=refresh_token)

    assert error_of(response) == (400, "invalid_grant")
    await minu.refresh(refresh_token)


async def test_an_access_token_is_not_a_refresh_token(minu: RegisteredService) -> None:
    access_token = (await minu.tokens())["access_token"]

    assert error_of(await minu.call("token", grant_type="refresh_token", refresh_token=access_token)) == (
        400,
        "invalid_grant",
    )


async def test_late_reuse_of_a_refresh_token_revokes_the_family(
    minu: RegisteredService, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    first = await minu.tokens()
    second = await minu.refresh(first["refresh_token"])
    repeated = await minu.refresh(first["refresh_token"])
    await travel(timedelta(seconds=31))
    reuse = await minu.call("token", grant_type="refresh_token", refresh_token=first["refresh_token"])

    assert repeated["refresh_token"] == second["refresh_token"]
    assert error_of(reuse) == (400, "invalid_grant")
    for pair in (first, second):
        assert not await minu.is_active(pair["access_token"])
        assert not await minu.is_active(pair["refresh_token"])


async def test_a_wrong_method_gets_an_rfc_error(web: httpx2.AsyncClient) -> None:
    for endpoint in ("token", "revoke", "introspect"):
        response = await web.get(f"/oauth/{endpoint}")

        assert error_of(response) == (405, "invalid_request")
        assert response.headers["allow"] == "POST"


ODD_HEADERS = {
    "user-agent": (b"", b"caf\xe9 \xff", b"a" * 12_000, b"a\tb", "파발".encode()),
    "x-request-id": (b"", b"\xff" * 20, b"a" * 12_000),
    "x-forwarded-for": (
        b"",
        b"fe80::1%eth0",
        b"fe80::1%\xff",
        b"not-an-address",
        b"1.2.3.4:80",
        b"::ffff:1.2.3.4",
        b"," * 999,
    ),
    "x-real-ip": (b"fe80::1%eth0", b"\xff", b"::1"),
}


async def test_odd_headers_do_not_prevent_a_token(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    for name, values in ODD_HEADERS.items():
        for value in values:
            headers = [(b"authorization", minu.basic["authorization"].encode()), (name.encode(), value)]
            response = await web.post("/oauth/token", data=GRANT, headers=headers)

            assert (name, value[:50], response.status_code) == (name, value[:50], 200)
