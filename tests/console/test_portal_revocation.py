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
from relay.people import RelayAccount, conversation_state_of, create_code, key_of_user, new_session, send_command
from support.relay_log import MessageLog, csrf_token_in
from support.revoked_account import MINA, OPERATOR, Revocation, revoke_relay_token, set_conversation_state, unused_codes
from support.server import serve_hub
from support.wait import wait_for_lock_of

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
    async with serve_hub(hub) as address, open_client(address) as client:
        yield client


@asynccontextmanager
async def open_client(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    headers = {"origin": address, "accept-language": "en"}
    async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client:
        yield client


async def sign_in_to_portal(web: httpx2.AsyncClient, token: str) -> str:
    await web.post("/portal/login", data={"token": token})
    return csrf_token_in((await web.get("/portal")).text)


@pytest.mark.parametrize("how", get_args(Revocation))
@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_that_waited_for_the_revocation_of_its_token_is_refused(
    hub: Hub,
    web: httpx2.AsyncClient,
    paired_account: RelayAccount,
    message_log: MessageLog,
    action: str,
    how: Revocation,
) -> None:
    await set_conversation_state(message_log, ACTIONS[action])
    form = {"csrf_token": await sign_in_to_portal(web, paired_account.token), "key": key_of_user(MINA), "count": "0"}
    before = len(await message_log.audit_actions())

    async with hub.transaction() as tx:
        fresh = await revoke_relay_token(tx, paired_account.account, how)
        late = asyncio.create_task(web.post(f"/portal/{action}", data=form))
        await wait_for_lock_of(message_log.db, late)
    response = await late

    assert response.status_code == 403 or response.headers.get("location") == "/portal/login"
    assert [who for who, _ in (await message_log.audit_actions())[before:]] == [OPERATOR.name]
    assert (await conversation_state_of(message_log.db, MINA))[0] == ACTIONS[action]
    assert await unused_codes(message_log) == 0
    assert (
        await message_log.count(
            f"accounts where relay_token_hash = '{hash_relay_secret(fresh or paired_account.token)}'"
        )
        == 1
    )
    assert (await web.get("/portal")).headers["location"] == "/portal/login"


async def test_an_action_with_a_session_token_revoked_in_the_meantime_is_refused(
    hub: Hub, web: httpx2.AsyncClient, message_log: MessageLog
) -> None:
    session = await new_session(hub)
    await send_command(hub, MINA, f"/pair {session.code}")
    _, account = await conversation_state_of(message_log.db, MINA)
    assert account is not None
    csrf_token = await sign_in_to_portal(web, session.token)

    async with hub.transaction() as tx:
        await rotate_relay_token(tx, account, OPERATOR, revoke_sessions=True)
        late = asyncio.create_task(web.post("/portal/code", data={"csrf_token": csrf_token}))
        await wait_for_lock_of(message_log.db, late)
    response = await late

    assert (response.status_code, response.headers.get("location")) == (303, "/portal/login")
    assert await unused_codes(message_log) == 0


async def test_revoking_a_token_waits_for_a_running_action_of_its_owner(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    await sign_in_to_portal(web, paired_account.token)

    async def rotate() -> str:
        async with hub.transaction() as tx:
            return await rotate_relay_token(tx, paired_account.account, OPERATOR)

    async with hub.transaction() as tx:
        bearer = require_owner(await authenticate_relay_token(tx, paired_account.token))
        await lock_portal_owner(tx, web.cookies[PORTAL_COOKIE], bearer)
        ending = asyncio.create_task(rotate())
        await wait_for_lock_of(message_log.db, ending)
    await ending
    assert (await web.get("/portal")).headers["location"] == "/portal/login"


async def test_an_operator_rotation_wins_over_repeated_owner_rotations(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    """Waiting rotations of a stolen token find nothing to rotate once an operator replaced it."""
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    async with hub.transaction() as tx:
        fresh = await rotate_relay_token(tx, paired_account.account, OPERATOR)
        flood = [
            asyncio.create_task(web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "0"}))
            for _ in range(8)
        ]
        await wait_for_lock_of(message_log.db, flood[0])
    tokens = [re.findall(r"prt_[\w-]{43}", (await request).text) for request in flood]

    assert tokens == [[]] * 8
    listing = await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {fresh}"})
    assert listing.status_code == 200


async def test_two_concurrent_rotations_of_one_browser_keep_the_last_token(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    await create_code(hub, paired_account.account)
    form = {"csrf_token": await sign_in_to_portal(web, paired_account.token), "count": "1"}

    both = await asyncio.gather(*(web.post("/portal/rotate", data=form) for _ in range(2)))

    tokens = [token for response in both for token in re.findall(r"<code>(prt_[\w-]{43})</code>", response.text)]
    good = [
        await message_log.count(f"accounts where relay_token_hash = '{hash_relay_secret(token)}'") for token in tokens
    ]
    assert sum(good) == 1
    assert (await web.get("/portal")).status_code == 200


async def test_a_session_is_replaced_only_from_its_current_token(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount
) -> None:
    await sign_in_to_portal(web, paired_account.token)

    for before, stays in (("another", 200), (hash_relay_secret(paired_account.token), 303)):
        async with hub.autocommit() as tx:
            await replace_portal_token(tx, web.cookies[PORTAL_COOKIE], before, "prt_nobodys")
        assert (await web.get("/portal")).status_code == stays
