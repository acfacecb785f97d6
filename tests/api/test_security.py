"""Every door that needs a permission, tried with every wrong key (RFC 6750)."""

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
from pabal.tokens.access import TokenIssuer
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.route import RequestBody, ResponseBody, Route
from support.oauth_client import Enrolled, bearer, enrol
from support.server import serving

pytestmark = pytest.mark.anyio


class Parcel(RequestBody, frozen=True):
    weight: int


class Receipt(ResponseBody, frozen=True):
    sender: str
    weight: int


async def send(caller: AuthenticatedService, parcel: Parcel) -> Receipt:
    """Send a parcel."""
    return Receipt(caller.service, parcel.weight)


TABLE = tuple(Route("POST", f"/needs/{needs.name.lower()}", send, permission=needs) for needs in Permission)
GUARDED = (*TABLE, *(door for door in routes.ROUTES if door.permission))

BARE = (401, 'Bearer realm="pabal"')
STRANGE = (401, 'Bearer realm="pabal", error="invalid_token", error_description="{}"')
ENDED = (401, STRANGE[1].format("the access token has expired or was revoked"))
UNREADABLE = (401, STRANGE[1].format("not an access token of this hub"))
ELSEWHERE = (401, STRANGE[1].format("the access token has another audience"))

Expected = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A header that opens no door, whatever the door needs."""

    header: dict[str, str]
    expected: Expected


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub, (*TABLE, *routes.ROUTES)) as address, httpx2.AsyncClient(base_url=address) as client:
        yield client


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient) -> Enrolled:
    return await enrol(hub, web, "minu_test", *Permission)


@pytest.fixture
async def wrong(
    hub: Hub, web: httpx2.AsyncClient, minu: Enrolled, tmp_path: Path, travel: Callable[[timedelta], Awaitable[None]]
) -> dict[str, Wrong]:
    """Every key that does not fit; those that ended are opened with once before, so that the hub knows them."""
    expired = (await minu.tokens())["access_token"]
    await hub.token_verifier.verify(expired)
    await travel(timedelta(hours=1))
    hub.token_verifier.invalidate()  # time moves by itself only with the clock

    pair, revoked, whole = await minu.tokens(), await minu.tokens(), await minu.tokens()
    asleep = await enrol(hub, web, "minu_asleep", *Permission)
    disabled = (await asleep.tokens())["access_token"]
    for token in (revoked["access_token"], whole["access_token"], disabled):
        await hub.token_verifier.verify(token)
    await minu.ask("revoke", token=revoked["access_token"])
    await minu.ask("revoke", token=whole["refresh_token"])
    await asleep.let_in(active=False)

    other_keys = open_or_create_keyring(tmp_path / "elsewhere")
    namesakes = KeyRing(
        KeySet(tuple(replace(key, secret=bytes(reversed(key.secret))) for key in hub.key_ring.keys.all_keys))
    )
    return {
        "no header": Wrong({}, BARE),
        "an empty header": Wrong({"authorization": ""}, BARE),
        "a scheme alone": Wrong({"authorization": "Bearer"}, BARE),
        "the service's secret": Wrong(minu.basic, BARE),
        "another scheme": Wrong({"authorization": f"Token {pair['access_token']}"}, BARE),
        "no scheme": Wrong({"authorization": pair["access_token"]}, BARE),
        "garbage": Wrong(bearer("garbage"), UNREADABLE),
        "a refresh token": Wrong(bearer(pair["refresh_token"]), UNREADABLE),
        "two tokens": Wrong(bearer(f"{pair['access_token']} {pair['access_token']}"), UNREADABLE),
        "a token cut short": Wrong(bearer(pair["access_token"][:-1]), UNREADABLE),
        "expired": Wrong(bearer(expired), ENDED),
        "revoked": Wrong(bearer(revoked["access_token"]), ENDED),
        "of a revoked family": Wrong(bearer(whole["access_token"]), ENDED),
        "of a disabled service": Wrong(bearer(disabled), ENDED),
        "another hub's": Wrong(bearer(minted(hub, other_keys)), UNREADABLE),
        "another hub's under our key's name": Wrong(bearer(minted(hub, namesakes)), UNREADABLE),
        "for another audience": Wrong(bearer(minted(hub, hub.key_ring, audience="elsewhere")), ELSEWHERE),
        "signed by us and never issued": Wrong(bearer(minted(hub, hub.key_ring)), ENDED),
    }


def minted(hub: Hub, keys: KeyRing, audience: str = "pabal") -> str:
    """A token that carries everything and was given to nobody."""
    mint = TokenIssuer(keys, hub.settings.issuer, audience)
    now = datetime.now(UTC)
    return mint.create_access_token(
        "minu_test", [*Permission], new_id(), now=now, latest_expiry=now + timedelta(days=1)
    ).token


async def knock(web: httpx2.AsyncClient, door: Route, header: dict[str, str]) -> httpx2.Response:
    """Come with a body nobody could read: whoever may not come in is not even asked what they bring."""
    path = door.path.format(**{name: example(kind) for name, kind in door.path_types.items()})
    return await web.request(door.method, path, content=b"{" if door.body_type else None, headers=header)


def example(kind: object) -> str:
    return str(new_id()) if kind is UUID else "x"


def told(answer: httpx2.Response) -> Expected:
    return answer.status_code, answer.headers.get("www-authenticate", "")


async def test_no_wrong_key_opens_a_door(web: httpx2.AsyncClient, wrong: dict[str, Wrong]) -> None:
    tried = {
        (door.path, name): told(await knock(web, door, key.header)) for door in GUARDED for name, key in wrong.items()
    }

    assert tried == {(door.path, name): key.expected for door in GUARDED for name, key in wrong.items()}


async def test_a_door_opens_for_its_permission_alone(web: httpx2.AsyncClient, minu: Enrolled) -> None:
    for door in GUARDED:
        needs = door.permission
        assert needs
        others = " ".join(each for each in Permission if each is not needs)
        everything_else = (await minu.tokens(scope=others))["access_token"]
        just_this = (await minu.tokens(scope=needs))["access_token"]

        refused = await knock(web, door, bearer(everything_else))
        opened = await knock(web, door, bearer(just_this))

        assert told(refused) == (403, f'Bearer realm="pabal", error="insufficient_scope", scope="{needs}"')
        assert opened.status_code not in {401, 403}
        if door.body_type:
            assert opened.status_code == 400  # now it is read


async def test_the_right_key_says_who_comes(web: httpx2.AsyncClient, minu: Enrolled) -> None:
    token = (await minu.tokens(scope="write"))["access_token"]
    answers = {
        door.permission: await web.post(door.path, content=b'{"weight": 3}', headers=bearer(token)) for door in TABLE
    }

    through = {needs for needs, answer in answers.items() if answer.status_code == 200}
    assert through == {*Permission} - {Permission.INTROSPECT, Permission.MANAGE_TOKENS, Permission.ADMIN}
    assert answers[Permission.PUBLISH].json() == {"sender": minu.name, "weight": 3}


async def test_a_refusal_is_a_problem_and_is_kept_by_nobody(web: httpx2.AsyncClient, wrong: dict[str, Wrong]) -> None:
    for name, key in wrong.items():
        answer = await knock(web, TABLE[0], key.header)

        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        code = "unauthenticated" if key.expected == BARE else "invalid_token"
        assert (name, answer.json()["code"]) == (name, code)


async def test_a_service_that_is_let_in_again_comes_in_with_the_tokens_it_had(
    web: httpx2.AsyncClient, minu: Enrolled
) -> None:
    token, door = (await minu.tokens())["access_token"], TABLE[0]
    seen: list[int] = []
    for active in (True, False, True):
        await minu.let_in(active=active)
        seen.append((await knock(web, door, bearer(token))).status_code)

    assert seen == [400, 401, 400]
