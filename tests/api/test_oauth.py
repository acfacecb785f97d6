"""The token door from outside: what RFC 6749 says of it, word for word."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.settings import Settings
from pabal.tokens.permission import Permission
from support.oauth_client import Enrolled, basic, bearer, enrol

pytestmark = pytest.mark.anyio

FORM = "application/x-www-form-urlencoded"
CHALLENGE = 'Basic realm="pabal", charset="UTF-8"'
GRANT = {"grant_type": "client_credentials"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"trusted_proxies": ["127.0.0.0/8"]})


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> Enrolled:
    return await enrol(hub, web, "minu_test", "read", "events:publish")


def refused(answer: httpx2.Response) -> tuple[int, str]:
    """A refusal in the RFC's shape, which nobody may keep; its status and its error."""
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error", "error_description"}
    assert ("www-authenticate" in answer.headers) == (answer.status_code in {401, 403})
    return answer.status_code, answer.json()["error"]


async def test_a_secret_is_shown_in_the_header_or_in_the_body(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    in_header = await web.post("/oauth/token", data=GRANT, headers=minu.basic)
    in_body = await web.post("/oauth/token", data=GRANT | {"client_id": minu.name, "client_secret": minu.secret})
    named_twice = await web.post("/oauth/token", data=GRANT | {"client_id": minu.name}, headers=minu.basic)

    for answer in (in_header, in_body, named_twice):
        assert answer.status_code == 200
        assert (answer.headers["cache-control"], answer.headers["pragma"]) == ("no-store", "no-cache")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json().keys() == {"access_token", "token_type", "expires_in", "scope", "refresh_token"}
        assert (answer.json()["token_type"], answer.json()["expires_in"]) == ("Bearer", 3600)
        assert answer.json()["scope"] == "events:publish events:read notifications:read"


async def test_a_header_is_form_encoded_inside(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    encoded = basic(f"{minu.name.replace('_', '%5F')}:{minu.secret.replace('_', '%5f')}".encode())

    assert (await web.post("/oauth/token", data=GRANT, headers=encoded)).status_code == 200


async def test_schemes_are_read_in_any_case(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    shouted = {"authorization": minu.basic["authorization"].replace("Basic", "BASIC")}
    token = (await minu.tokens())["access_token"]

    assert (await web.post("/oauth/token", data=GRANT, headers=shouted)).status_code == 200
    muttered = {"authorization": f"bearer {token}"}
    assert (await web.post("/oauth/revoke", data={"token": "x"}, headers=muttered)).status_code == 200


SCOPES = {
    "": "events:publish events:read notifications:read",
    "read": "events:read notifications:read",
    "events:read": "events:read",
    "write": "events:publish events:read notifications:read",
    "hub:admin events:publish": "events:publish",
    "events:publish  events:publish": "events:publish",
}


async def test_a_scope_is_what_was_asked_for_and_allowed(minu: Enrolled) -> None:
    given = {asked: (await minu.tokens(scope=asked))["scope"] for asked in SCOPES}

    assert given == SCOPES


async def test_no_refresh_token_for_those_who_want_none(minu: Enrolled) -> None:
    assert "refresh_token" not in await minu.tokens(refresh="false")
    assert "refresh_token" in await minu.tokens(refresh="true")


async def test_what_the_door_does_not_know_is_passed_over(minu: Enrolled) -> None:
    given = await minu.tokens(resource="https://elsewhere.example", client_assertion="", x="1")

    assert given["scope"]


async def test_an_empty_parameter_is_an_absent_one(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    empty = {"scope": "", "refresh": "", "client_id": "", "client_secret": "", "refresh_token": ""}

    assert "refresh_token" in await minu.tokens(**empty)
    assert refused(await minu.ask("token", grant_type="")) == (400, "invalid_request")
    assert refused(await minu.ask("introspect", token="")) == (400, "invalid_request")


async def test_nothing_is_read_from_the_address(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    shown = {"client_id": minu.name, "client_secret": minu.secret}

    assert refused(await web.post("/oauth/token", params=GRANT | shown, data=GRANT)) == (401, "invalid_client")
    asked = await web.post("/oauth/token", params={"scope": "hub:nonsense"}, data=GRANT, headers=minu.basic)
    assert asked.status_code == 200


Request = tuple[dict[str, Any], tuple[int, str]]


def wrong_requests(minu: Enrolled, refresh_token: str) -> dict[str, Request]:
    """What is sent wrongly, and what is said to it. Who says nothing else shows its secret in the header."""
    shown = {"client_id": minu.name, "client_secret": minu.secret}
    form, missing = {"content-type": FORM}, (400, "invalid_request")
    return {
        "no grant_type": ({"data": {"scope": "read"}}, missing),
        "nothing at all": ({"content": b"", "headers": form}, missing),
        "a parameter twice": ({"content": b"grant_type=client_credentials&scope=a&scope=a", "headers": form}, missing),
        "an unknown one twice": ({"content": b"grant_type=client_credentials&x=1&x=2", "headers": form}, missing),
        "json": ({"json": GRANT}, missing),
        "multipart": ({"files": {"grant_type": b"client_credentials"}}, missing),
        "no content type": ({"content": b"grant_type=client_credentials"}, missing),
        "a secret twice": ({"data": GRANT | shown}, missing),
        "another name": ({"data": GRANT | {"client_id": "minu_find"}}, missing),
        "half a wish": ({"data": GRANT | {"refresh": "maybe"}}, missing),
        "no refresh token": ({"data": {"grant_type": "refresh_token"}}, missing),
        "another grant": ({"data": {"grant_type": "password"}}, (400, "unsupported_grant_type")),
        "a grant in capitals": ({"data": {"grant_type": "Client_Credentials"}}, (400, "unsupported_grant_type")),
        "an unknown scope": ({"data": GRANT | {"scope": "read everything"}}, (400, "invalid_scope")),
        "nothing allowed": ({"data": GRANT | {"scope": "hub:admin tokens:admin"}}, (400, "invalid_scope")),
        "a scope while refreshing": (
            {"data": {"grant_type": "refresh_token", "refresh_token": refresh_token, "scope": "hub:admin"}},
            (400, "invalid_scope"),
        ),
        "an unknown refresh token": (
            {"data": {"grant_type": "refresh_token", "refresh_token": "pbr_" + "A" * 43}},
            (400, "invalid_grant"),
        ),
        "no client": ({"data": GRANT, "headers": {"authorization": ""}}, (401, "invalid_client")),
        "half a client": ({"data": GRANT | {"client_id": minu.name}, "auth": None}, (401, "invalid_client")),
        "a token for a secret": ({"data": GRANT, "headers": bearer("x.y.z")}, (401, "invalid_client")),
    }


async def test_each_mistake_has_the_rfcs_name(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    refresh_token = (await minu.tokens())["refresh_token"]
    wrong = wrong_requests(minu, refresh_token)

    said: dict[str, tuple[int, str]] = {}
    for name, (request, _) in wrong.items():
        anonymous = "auth" in request
        request["headers"] = ({} if anonymous else minu.basic) | request.get("headers", {})
        request.pop("auth", None)
        said[name] = refused(await web.post("/oauth/token", **request))

    assert said == {name: expected for name, (_, expected) in wrong.items()}
    await minu.refreshed(refresh_token)  # none of it has spent the token


async def test_who_fails_to_say_who_they_are_is_told_how(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    for door in ("token", "revoke", "introspect"):
        answer = await web.post(f"/oauth/{door}", data=GRANT | {"token": "x"})

        assert refused(answer) == (401, "invalid_client")
        assert answer.headers["www-authenticate"] == CHALLENGE


async def test_nobody_learns_which_services_there_are(hub: Hub, minu: Enrolled, web: httpx2.AsyncClient) -> None:
    disabled = await enrol(hub, web, "minu_asleep", "read")
    await disabled.let_in(active=False)
    strangers = {
        "unknown": (basic(b"minu_nobody:" + minu.secret.encode()), {}),
        "no name at all": (basic(b"DROP TABLE:" + minu.secret.encode()), {}),
        "wrong secret": (basic(b"minu_test:" + disabled.secret.encode()), {}),
        "disabled": (disabled.basic, {}),
        "disabled, in the body": ({}, {"client_id": disabled.name, "client_secret": disabled.secret}),
    }

    told: dict[str, tuple[int, bytes, dict[str, str]]] = {}
    for name, (headers, shown) in strangers.items():
        answer = await web.post("/oauth/token", data=GRANT | shown, headers=headers)
        alike = {key: value for key, value in answer.headers.items() if key not in {"x-request-id", "date"}}
        told[name] = (answer.status_code, answer.content, alike)

    assert all(each == told["unknown"] for each in told.values())
    assert told["unknown"][0] == 401
    await disabled.let_in(active=True)
    await disabled.tokens()


async def test_guessing_is_made_slow(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    wrong = basic(b"minu_test:wrong")
    answers = [await web.post("/oauth/token", data=GRANT, headers=wrong) for _ in range(21)]

    assert [answer.status_code for answer in answers] == [401] * 20 + [429]
    assert refused(answers[-1]) == (429, "temporarily_unavailable")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 300


async def test_a_refresh_brings_a_new_pair_and_may_ask_for_less(minu: Enrolled) -> None:
    first = await minu.tokens()
    second = await minu.refreshed(first["refresh_token"], scope="events:read")
    third = await minu.refreshed(second["refresh_token"])

    assert len({each["refresh_token"] for each in (first, second, third)}) == 3
    assert (second["scope"], third["scope"]) == ("events:read", first["scope"])
    assert await minu.is_active(first["access_token"])  # a refresh takes nothing away


async def test_a_refresh_token_is_its_services_alone(hub: Hub, minu: Enrolled, web: httpx2.AsyncClient) -> None:
    other = await enrol(hub, web, "minu_other", *Permission)
    refresh_token = (await minu.tokens())["refresh_token"]
    stolen = await other.ask("token", grant_type="refresh_token", refresh_token=refresh_token)

    assert refused(stolen) == (400, "invalid_grant")
    await minu.refreshed(refresh_token)


async def test_an_access_token_refreshes_nothing(minu: Enrolled) -> None:
    access_token = (await minu.tokens())["access_token"]

    assert refused(await minu.ask("token", grant_type="refresh_token", refresh_token=access_token)) == (
        400,
        "invalid_grant",
    )


async def test_a_spent_token_that_comes_back_ends_the_family_with_the_refusal(
    minu: Enrolled, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    first = await minu.tokens()
    second = await minu.refreshed(first["refresh_token"])
    again = await minu.refreshed(first["refresh_token"])
    await travel(timedelta(seconds=31))
    late = await minu.ask("token", grant_type="refresh_token", refresh_token=first["refresh_token"])

    assert again["refresh_token"] == second["refresh_token"]
    assert refused(late) == (400, "invalid_grant")
    for pair in (first, second):
        assert not await minu.is_active(pair["access_token"])
        assert not await minu.is_active(pair["refresh_token"])


async def test_other_methods_are_told_so_in_the_same_shape(web: httpx2.AsyncClient) -> None:
    for door in ("token", "revoke", "introspect"):
        answer = await web.get(f"/oauth/{door}")

        assert refused(answer) == (405, "invalid_request")
        assert answer.headers["allow"] == "POST"


CIRCUMSTANCES = {
    "user-agent": (b"", b"caf\xe9 \xff", b"a" * 20_000, b"a\tb", "파발".encode()),
    "x-request-id": (b"", b"\xff" * 20, b"a" * 20_000),
    "x-forwarded-for": (b"", b"fe80::1%eth0", b"fe80::1%\xff", b"nobody", b"1.2.3.4:80", b"::ffff:1.2.3.4", b"," * 999),
    "x-real-ip": (b"fe80::1%eth0", b"\xff", b"::1"),
}


async def test_nothing_around_the_request_keeps_a_token_back(minu: Enrolled, web: httpx2.AsyncClient) -> None:
    for name, values in CIRCUMSTANCES.items():
        for value in values:
            headers = [(b"authorization", minu.basic["authorization"].encode()), (name.encode(), value)]
            answer = await web.post("/oauth/token", data=GRANT, headers=headers)

            assert (name, value[:50], answer.status_code) == (name, value[:50], 200)
