"""Pairing actions whose token is revoked while they wait for a lock are refused."""

import asyncio
from collections.abc import AsyncGenerator
from typing import get_args

import httpx2
import pytest

from pabal.hub import Hub
from pabal.relay.accounts import rotate_relay_token
from relay.people import Owning, a_session, connection_of, key_of, write
from support.relay_log import Talk
from support.revoked_account import MINA, OPERATOR, End, end, stand, unused_codes
from support.server import serving
from support.wait import waits_for_it

pytestmark = pytest.mark.anyio

ACTIONS = {
    "generate": "PAIRED",
    "block": "PAIRED",
    "unpair": "PAIRED",
    "unblock": "BLOCKED",
    "approve": "PENDING",
    "deny": "PENDING",
}
"""All actions, and the state of the user they need."""


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub) as address, httpx2.AsyncClient(base_url=address, timeout=30) as client:
        yield client


@pytest.mark.parametrize("revocation", get_args(End))
@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_that_waited_for_its_tokens_revocation_is_refused(
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk, action: str, revocation: End
) -> None:
    await stand(talk, ACTIONS[action])
    body = {} if action == "generate" else {"conversationKey": key_of(MINA)}
    before = len(await talk.deeds())

    async with hub.transaction() as tx:
        await end(tx, mine.account, revocation)
        waiting = asyncio.create_task(web.post(f"/openclaw/pairing/{action}", json=body, headers=mine.bearer))
        await waits_for_it(talk.db, waiting)
    response = await waiting

    assert response.status_code == (401 if revocation == "rotated" else 403), response.text
    assert [actor for actor, _ in (await talk.deeds())[before:]] == [OPERATOR.name]
    assert (await connection_of(talk.db, MINA))[0] == ACTIONS[action]
    assert await unused_codes(talk) == 0


async def test_an_action_with_a_revoked_session_token_is_refused(hub: Hub, web: httpx2.AsyncClient, talk: Talk) -> None:
    session = await a_session(hub)
    await write(hub, MINA, f"/pair {session.code}")
    _, account = await connection_of(talk.db, MINA)
    assert account is not None

    async with hub.transaction() as tx:
        await rotate_relay_token(tx, account, OPERATOR, revoke_sessions=True)
        bearer = {"authorization": f"Bearer {session.token}"}
        waiting = asyncio.create_task(web.post("/v1/pairing/generate", json={}, headers=bearer))
        await waits_for_it(talk.db, waiting)
    response = await waiting

    assert response.status_code == 401, response.text
    assert await unused_codes(talk) == 0
