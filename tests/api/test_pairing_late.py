"""Pairing actions whose token is revoked while they wait for a lock are refused."""

import asyncio
from collections.abc import AsyncGenerator
from typing import get_args

import httpx2
import pytest

from pabal.hub import Hub
from pabal.relay.accounts import rotate_relay_token
from relay.people import RelayAccount, conversation_state_of, key_of_user, new_session, send_command
from support.relay_log import MessageLog
from support.revoked_account import MINA, OPERATOR, Revocation, revoke_relay_token, set_conversation_state, unused_codes
from support.server import serve_hub
from support.wait import wait_for_lock_of

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
    async with serve_hub(hub) as address, httpx2.AsyncClient(base_url=address, timeout=30) as client:
        yield client


@pytest.mark.parametrize("revocation", get_args(Revocation))
@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_that_waited_for_its_tokens_revocation_is_refused(
    hub: Hub,
    web: httpx2.AsyncClient,
    paired_account: RelayAccount,
    message_log: MessageLog,
    action: str,
    revocation: Revocation,
) -> None:
    await set_conversation_state(message_log, ACTIONS[action])
    body = {} if action == "generate" else {"conversationKey": key_of_user(MINA)}
    before = len(await message_log.audit_actions())

    async with hub.transaction() as tx:
        await revoke_relay_token(tx, paired_account.account, revocation)
        waiting = asyncio.create_task(web.post(f"/openclaw/pairing/{action}", json=body, headers=paired_account.bearer))
        await wait_for_lock_of(message_log.db, waiting)
    response = await waiting

    assert response.status_code == (401 if revocation == "rotated" else 403), response.text
    assert [actor for actor, _ in (await message_log.audit_actions())[before:]] == [OPERATOR.name]
    assert (await conversation_state_of(message_log.db, MINA))[0] == ACTIONS[action]
    assert await unused_codes(message_log) == 0


async def test_an_action_with_a_revoked_session_token_is_refused(
    hub: Hub, web: httpx2.AsyncClient, message_log: MessageLog
) -> None:
    session = await new_session(hub)
    await send_command(hub, MINA, f"/pair {session.code}")
    _, account = await conversation_state_of(message_log.db, MINA)
    assert account is not None

    async with hub.transaction() as tx:
        await rotate_relay_token(tx, account, OPERATOR, revoke_sessions=True)
        bearer = {"authorization": f"Bearer {session.token}"}
        waiting = asyncio.create_task(web.post("/v1/pairing/generate", json={}, headers=bearer))
        await wait_for_lock_of(message_log.db, waiting)
    response = await waiting

    assert response.status_code == 401, response.text
    assert await unused_codes(message_log) == 0
