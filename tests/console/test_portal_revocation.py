"""Portal actions that race with the revocation of their token."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import get_args

import httpx2
import pytest

from pabal.console.portal.login import PORTAL_COOKIE
from pabal.hub import Hub
from pabal.relay.accounts import rotate_relay_token
from pabal.relay.auth import authenticate_relay_token, hash_relay_secret, require_owner
from pabal.relay.web_sessions import lock_portal_owner, replace_portal_token
from relay.people import Owning, a_code, a_session, connection_of, key_of, write
from support.relay_log import Talk, csrf_token_in
from support.revoked_account import MINA, OPERATOR, End, end, stand, unused_codes
from support.server import serving
from support.wait import waits_for_it

pytestmark = pytest.mark.anyio

ACTIONS = {
    "rotate": "PAIRED",
    "code": "PAIRED",
    "conversation/block": "PAIRED",
    "conversation/unpair": "PAIRED",
    "conversation/unblock": "BLOCKED",
    "conversation/approve": "PENDING",
    "conversation/deny": "PENDING",
}
"""All portal actions, with the state of the conversation they apply to."""


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub) as address, open_client(address) as client:
        yield client


@asynccontextmanager
async def open_client(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    headers = {"origin": address, "accept-language": "en"}
    async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client:
        yield client


async def sign_in_to_portal(web: httpx2.AsyncClient, token: str) -> str:
    await web.post("/portal/login", data={"token": token})
    return csrf_token_in((await web.get("/portal")).text)


@pytest.mark.parametrize("how", get_args(End))
@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_that_waited_for_the_revocation_of_its_token_is_refused(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk, action: str, how: End
) -> None:
    await stand(talk, ACTIONS[action])
    form = {"csrf_token": await sign_in_to_portal(web, mine.token), "key": key_of(MINA), "count": "0"}
    before = len(await talk.deeds())

    async with hub.transaction() as tx:
        fresh = await end(tx, mine.account, how)
        late = asyncio.create_task(web.post(f"/portal/{action}", data=form))
        await waits_for_it(talk.db, late)
    response = await late

    assert response.status_code == 403 or response.headers.get("location") == "/portal/login"
    assert [who for who, _ in (await talk.deeds())[before:]] == [OPERATOR.name]
    assert (await connection_of(talk.db, MINA))[0] == ACTIONS[action]
    assert await unused_codes(talk) == 0
    assert await talk.count(f"accounts where relay_token_hash = '{hash_relay_secret(fresh or mine.token)}'") == 1
    assert (await web.get("/portal")).headers["location"] == "/portal/login"


async def test_an_action_with_a_session_token_revoked_in_the_meantime_is_refused(
    hub: Hub, web: httpx2.AsyncClient, talk: Talk
) -> None:
    session = await a_session(hub)
    await write(hub, MINA, f"/pair {session.code}")
    _, account = await connection_of(talk.db, MINA)
    assert account is not None
    csrf_token = await sign_in_to_portal(web, session.token)

    async with hub.transaction() as tx:
        await rotate_relay_token(tx, account, OPERATOR, revoke_sessions=True)
        late = asyncio.create_task(web.post("/portal/code", data={"csrf_token": csrf_token}))
        await waits_for_it(talk.db, late)
    response = await late

    assert (response.status_code, response.headers.get("location")) == (303, "/portal/login")
    assert await unused_codes(talk) == 0


async def test_revoking_a_token_waits_for_a_running_action_of_its_owner(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk
) -> None:
    await sign_in_to_portal(web, mine.token)

    async def rotate() -> str:
        async with hub.transaction() as tx:
            return await rotate_relay_token(tx, mine.account, OPERATOR)

    async with hub.transaction() as tx:
        bearer = require_owner(await authenticate_relay_token(tx, mine.token))
        await lock_portal_owner(tx, web.cookies[PORTAL_COOKIE], bearer)
        ending = asyncio.create_task(rotate())
        await waits_for_it(talk.db, ending)
    await ending
    assert (await web.get("/portal")).headers["location"] == "/portal/login"


async def test_an_operator_rotation_wins_over_repeated_owner_rotations(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk
) -> None:
    """Waiting rotations of a stolen token find nothing to rotate once an operator replaced it."""
    csrf_token = await sign_in_to_portal(web, mine.token)
    async with hub.transaction() as tx:
        fresh = await rotate_relay_token(tx, mine.account, OPERATOR)
        flood = [
            asyncio.create_task(web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "0"}))
            for _ in range(8)
        ]
        await waits_for_it(talk.db, flood[0])
    tokens = [re.findall(r"prt_[\w-]{43}", (await request).text) for request in flood]

    assert tokens == [[]] * 8
    listing = await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {fresh}"})
    assert listing.status_code == 200


async def test_two_concurrent_rotations_of_one_browser_keep_the_last_token(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk
) -> None:
    await a_code(hub, mine.account)
    form = {"csrf_token": await sign_in_to_portal(web, mine.token), "count": "1"}

    both = await asyncio.gather(*(web.post("/portal/rotate", data=form) for _ in range(2)))

    tokens = [token for response in both for token in re.findall(r"<code>(prt_[\w-]{43})</code>", response.text)]
    good = [await talk.count(f"accounts where relay_token_hash = '{hash_relay_secret(token)}'") for token in tokens]
    assert sum(good) == 1
    assert (await web.get("/portal")).status_code == 200


async def test_a_session_is_replaced_only_from_its_current_token(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning
) -> None:
    await sign_in_to_portal(web, mine.token)

    for before, stays in (("another", 200), (hash_relay_secret(mine.token), 303)):
        async with hub.autocommit() as tx:
            await replace_portal_token(tx, web.cookies[PORTAL_COOKIE], before, "prt_nobodys")
        assert (await web.get("/portal")).status_code == stays
