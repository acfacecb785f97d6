"""Every route that requires a permission, called with every wrong credential (RFC 6750)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx2
import pytest

from pabal.api import routes
from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing, open_or_create_keyring
from pabal.notifications.people.tokens import issue_person_link
from pabal.tokens.issuer import TokenIssuer
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.route import RequestBody, ResponseBody, Route
from support.oauth_client import TESTER, RegisteredService, bearer, register_oauth_service
from support.server import serve_hub

pytestmark = pytest.mark.anyio


class Parcel(RequestBody, frozen=True):
    weight: int


class Receipt(ResponseBody, frozen=True):
    sender: str
    weight: int


async def send(caller: AuthenticatedService, parcel: Parcel) -> Receipt:
    """Send a parcel."""
    return Receipt(caller.service, parcel.weight)


TABLE = tuple(Route("POST", f"/permission/{scope.name.lower()}", send, permission=scope) for scope in Permission)
PROTECTED = (*TABLE, *(route for route in routes.ROUTES if route.permission))

NO_TOKEN = (401, 'Bearer realm="pabal"')
INVALID_TOKEN = (401, 'Bearer realm="pabal", error="invalid_token", error_description="{}"')
EXPIRED_OR_REVOKED = (401, INVALID_TOKEN[1].format("the access token has expired or was revoked"))
UNREADABLE = (401, INVALID_TOKEN[1].format("not an access token of this hub"))
WRONG_AUDIENCE = (401, INVALID_TOKEN[1].format("the access token has another audience"))

Expected = tuple[int, str]


@dataclass(frozen=True, slots=True)
class WrongCredential:
    """A header that no route accepts."""

    header: dict[str, str]
    expected: Expected


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serve_hub(hub, (*TABLE, *routes.ROUTES)) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "minu_test", *Permission)


@pytest.fixture
async def wrong_credentials(
    hub: Hub,
    web: httpx2.AsyncClient,
    minu: RegisteredService,
    tmp_path: Path,
    travel: Callable[[timedelta], Awaitable[None]],
) -> dict[str, WrongCredential]:
    """Every wrong credential. Expired and revoked tokens are verified once before, so that they are cached."""
    expired = (await minu.tokens())["access_token"]
    await hub.token_verifier.verify(expired)
    await travel(timedelta(hours=1))
    hub.token_verifier.invalidate()  # `travel` moves only the database's clock

    pair, revoked, revoked_family = await minu.tokens(), await minu.tokens(), await minu.tokens()
    disabled_service = await register_oauth_service(hub, web, "minu_disabled", *Permission)
    disabled = (await disabled_service.tokens())["access_token"]
    for token in (revoked["access_token"], revoked_family["access_token"], disabled):
        await hub.token_verifier.verify(token)
    await minu.call("revoke", token=revoked["access_token"])
    await minu.call("revoke", token=revoked_family["refresh_token"])
    await disabled_service.set_active(active=False)

    other_keys = open_or_create_keyring(tmp_path / "other")
    same_key_ids = KeyRing(
        KeySet(tuple(replace(key, secret=bytes(reversed(key.secret))) for key in hub.key_ring.keys.all_keys))
    )
    return {
        "no header": WrongCredential({}, NO_TOKEN),
        "an empty header": WrongCredential({"authorization": ""}, NO_TOKEN),
        "a scheme alone": WrongCredential({"authorization": "Bearer"}, NO_TOKEN),
        "the service's secret": WrongCredential(minu.basic, NO_TOKEN),
        "another scheme": WrongCredential({"authorization": f"Token {pair['access_token']}"}, NO_TOKEN),
        "no scheme": WrongCredential({"authorization": pair["access_token"]}, NO_TOKEN),
        "a person's token": WrongCredential(bearer(await person_token(hub)), UNREADABLE),
        "garbage": WrongCredential(bearer("garbage"), UNREADABLE),
        "a refresh token": WrongCredential(bearer(pair["refresh_token"]), UNREADABLE),
        "two tokens": WrongCredential(bearer(f"{pair['access_token']} {pair['access_token']}"), UNREADABLE),
        "a token cut short": WrongCredential(bearer(pair["access_token"][:-1]), UNREADABLE),
        "expired": WrongCredential(bearer(expired), EXPIRED_OR_REVOKED),
        "revoked": WrongCredential(bearer(revoked["access_token"]), EXPIRED_OR_REVOKED),
        "of a revoked family": WrongCredential(bearer(revoked_family["access_token"]), EXPIRED_OR_REVOKED),
        "of a disabled service": WrongCredential(bearer(disabled), EXPIRED_OR_REVOKED),
        "of another hub": WrongCredential(bearer(issue_unknown_token(hub, other_keys)), UNREADABLE),
        "of another hub with the same key id": WrongCredential(
            bearer(issue_unknown_token(hub, same_key_ids)), UNREADABLE
        ),
        "for another audience": WrongCredential(
            bearer(issue_unknown_token(hub, hub.key_ring, audience="other")), WRONG_AUDIENCE
        ),
        "signed by the hub but never issued": WrongCredential(
            bearer(issue_unknown_token(hub, hub.key_ring)), EXPIRED_OR_REVOKED
        ),
    }


async def person_token(hub: Hub) -> str:
    """A valid token of the person that no path of these tests names."""
    async with hub.transaction() as tx:
        return (await issue_person_link(tx, "80351110224678912", TESTER)).token


def issue_unknown_token(hub: Hub, keys: KeyRing, audience: str = "pabal") -> str:
    """A token with all permissions that was never issued."""
    issuer = TokenIssuer(keys, hub.settings.issuer, audience)
    now = datetime.now(UTC)
    return issuer.create_access_token(
        "minu_test", [*Permission], new_id(), now=now, latest_expiry=now + timedelta(days=1)
    ).token


async def call_with(web: httpx2.AsyncClient, route: Route, header: dict[str, str]) -> httpx2.Response:
    """Send an invalid body: authorization must be checked before the body is parsed."""
    path = route.path.format(**{name: example(kind) for name, kind in route.path_types.items()})
    return await web.request(route.method, path, content=b"{" if route.body_type else None, headers=header)


def example(kind: object) -> str:
    return str(new_id()) if kind is UUID else "7"


def status_and_challenge(response: httpx2.Response) -> Expected:
    return response.status_code, response.headers.get("www-authenticate", "")


async def test_no_route_accepts_a_wrong_credential(
    web: httpx2.AsyncClient, wrong_credentials: dict[str, WrongCredential]
) -> None:
    cases = [
        (route, name, credential)
        for route in PROTECTED
        for name, credential in wrong_credentials.items()
        if not (route.person_auth and name == "a person's token")  # for them, other people do not exist
    ]
    results = {
        (route.path, name): status_and_challenge(await call_with(web, route, credential.header))
        for route, name, credential in cases
    }

    assert results == {(route.path, name): credential.expected for route, name, credential in cases}


async def test_a_person_reaches_nothing_of_other_people(hub: Hub, web: httpx2.AsyncClient) -> None:
    header = bearer(await person_token(hub))
    for route in PROTECTED:
        if route.person_auth:
            path = route.path.format(**{name: example(kind) for name, kind in route.path_types.items()})
            response = await web.request(route.method, path, content=b"{}" if route.body_type else None, headers=header)

            assert (route.path, response.status_code) == (route.path, 404)


async def test_a_secret_introspects_only_with_the_permission(
    hub: Hub, web: httpx2.AsyncClient, minu: RegisteredService
) -> None:
    """The secret opens what a token of the service opens, and nothing more."""
    token = (await minu.tokens())["access_token"]
    others = [permission for permission in Permission if permission is not Permission.INTROSPECT]
    without = await register_oauth_service(hub, web, "minu_without", *others)
    body = {"token": token, "client_id": without.name, "client_secret": without.secret}

    for response in (
        await without.call("introspect", token=token),
        await without.call("introspect", token=(await without.tokens())["access_token"]),
        await web.post("/oauth/introspect", data=body),
        await web.post(
            "/oauth/introspect", data={"token": token}, headers=bearer((await without.tokens())["access_token"])
        ),
    ):
        assert (response.status_code, response.json()["error"]) == (403, "insufficient_scope")
        assert "active" not in response.json()
    for service in (await register_oauth_service(hub, web, "minu_with", Permission.INTROSPECT), minu):
        assert (await service.call("introspect", token=token)).json()["active"] is True


async def test_a_route_accepts_only_its_permission(web: httpx2.AsyncClient, minu: RegisteredService) -> None:
    for route in PROTECTED:
        permission = route.permission
        assert permission
        sufficient = {permission, *route.other_permissions}
        others = " ".join(other for other in Permission if other not in sufficient)
        with_other_permissions = (await minu.tokens(scope=others))["access_token"]

        refused = await call_with(web, route, bearer(with_other_permissions))

        assert status_and_challenge(refused) == (
            403,
            f'Bearer realm="pabal", error="insufficient_scope", scope="{permission}"',
        )
        for scope in sufficient:
            accepted = await call_with(web, route, bearer((await minu.tokens(scope=scope))["access_token"]))

            assert accepted.status_code not in {401, 403}
            if route.body_type:
                assert accepted.status_code == 400  # the body is parsed now


def test_hub_admin_opens_what_its_description_names() -> None:
    """A route that shows rows of all services with hub:admin does so without another permission."""
    opened = {(route.method, route.path) for route in routes.ROUTES if route.or_admin}

    assert opened == {
        ("GET", "/v1/queue/events"),
        ("GET", "/v1/queue/events/{id}"),
        ("POST", "/v1/queue/events/{id}/cancel"),
        ("GET", "/v1/notifications"),
        ("GET", "/v1/notifications/{id}"),
        ("POST", "/v1/notifications/{id}/cancel"),
        ("GET", "/v1/subscriptions"),
        ("GET", "/v1/subscriptions/{id}"),
        ("GET", "/v1/dead-letters"),
        ("GET", "/v1/dead-letters/{id}"),
        ("POST", "/v1/dead-letters/replay"),
        ("POST", "/v1/dead-letters/{id}/replay"),
    }
    for route in routes.ROUTES:
        if "hub:admin" in route.description:
            assert route.or_admin, f"{route.method} {route.path} promises rows of all services to hub:admin"


async def test_the_token_identifies_the_caller(web: httpx2.AsyncClient, minu: RegisteredService) -> None:
    token = (await minu.tokens(scope="write"))["access_token"]
    responses = {
        route.permission: await web.post(route.path, content=b'{"weight": 3}', headers=bearer(token)) for route in TABLE
    }

    permitted = {scope for scope, response in responses.items() if response.status_code == 200}
    assert permitted == {*Permission} - {
        Permission.ISSUE_PERSON_TOKENS,
        Permission.WRITE_PEOPLE,
        Permission.INTROSPECT,
        Permission.MANAGE_TOKENS,
        Permission.RECEIVE_HUB_EVENTS,
        Permission.ADMIN,
        Permission.MANAGE,
    }
    assert responses[Permission.PUBLISH].json() == {"sender": minu.name, "weight": 3}


async def test_a_rejection_is_a_problem_and_must_not_be_cached(
    web: httpx2.AsyncClient, wrong_credentials: dict[str, WrongCredential]
) -> None:
    for name, credential in wrong_credentials.items():
        response = await call_with(web, TABLE[0], credential.header)

        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["cache-control"] == "no-store"
        code = "unauthenticated" if credential.expected == NO_TOKEN else "invalid_token"
        assert (name, response.json()["code"]) == (name, code)


async def test_tokens_work_again_after_a_service_is_enabled_again(
    web: httpx2.AsyncClient, minu: RegisteredService
) -> None:
    token, route = (await minu.tokens())["access_token"], TABLE[0]
    statuses: list[int] = []
    for active in (True, False, True):
        await minu.set_active(active=active)
        statuses.append((await call_with(web, route, bearer(token))).status_code)

    assert statuses == [400, 401, 400]
