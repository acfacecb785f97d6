"""The session endpoints, as the real clients call them."""

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.relay.accounts import disable_account
from pabal.relay.conversations import deny_pairing
from relay.people import TESTER, conversation_state_of, key_of_user, send_command
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE = timedelta(minutes=1)


async def create_session(web: httpx2.AsyncClient) -> dict[str, Any]:
    response = await web.post("/v1/sessions/create", json={})
    assert response.status_code == 200, response.text
    return response.json()


async def get_status(web: httpx2.AsyncClient, token: str) -> dict[str, Any]:
    response = await web.get(f"/v1/sessions/{token}/status")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("body", [b"{}", b"", b'{"client": "hermes"}'])
async def test_a_new_session_has_a_token_and_a_code(web: httpx2.AsyncClient, owner: Connection, body: bytes) -> None:
    response = await web.post("/v1/sessions/create", content=body)

    session = response.json()
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert session.keys() == {"sessionToken", "pairingCode", "expiresIn", "status"}
    assert re.fullmatch(r"[0-9a-f]{64}", session["sessionToken"])
    assert re.fullmatch(r"[A-HJ-NP-Z2-9]{4}-[A-HJ-NP-Z2-9]{4}", session["pairingCode"])
    assert (session["expiresIn"], session["status"]) == (300, "pending_pairing")
    row = await owner.fetchrow("select *, expires_at - created_at as lifetime from public.relay_sessions")
    assert row
    assert (str(row["client_address"]), row["lifetime"]) == ("127.0.0.1", 5 * MINUTE)
    assert session["sessionToken"] not in str(row)


async def test_a_session_shows_its_status(hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> None:
    session = await create_session(web)
    token = session["sessionToken"]

    assert await get_status(web, token) == {"status": "pending_pairing"}
    await send_command(hub, "min:1", f"/pair {session['pairingCode']}")
    paired = await get_status(web, token)
    _, account = await conversation_state_of(owner, "min:1")
    assert paired.keys() == {"status", "pairedAt", "kakaoUserId", "accountId"}
    assert (paired["status"], paired["kakaoUserId"], paired["accountId"]) == ("paired", "min:1", str(account))
    assert paired["pairedAt"].endswith("Z")
    assert datetime.fromisoformat(paired["pairedAt"])
    await send_command(hub, "min:1", "/unpair")
    assert (await get_status(web, token))["status"] == "disconnected"
    assert "kakaoUserId" not in await get_status(web, token)


async def test_an_unpaired_session_expires(web: httpx2.AsyncClient, travel: Travel) -> None:
    token = (await create_session(web))["sessionToken"]

    await travel(5 * MINUTE)

    assert await get_status(web, token) == {"status": "expired"}


@pytest.mark.parametrize("token", ["0" * 64, "x", "F" * 64, "%00", "a" * 255, "a" * 5000])
async def test_an_unknown_token_is_not_found(web: httpx2.AsyncClient, token: str) -> None:
    await create_session(web)

    response = await web.get(f"/v1/sessions/{token}/status")

    assert response.status_code == (400 if token == "%00" or len(token) > 255 else 404)
    assert response.json().keys() == {"error", "code", "message"}


async def test_a_session_of_a_disabled_account_is_refused(hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> None:
    session = await create_session(web)
    await send_command(hub, "min", f"/pair {session['pairingCode']}")
    _, account = await conversation_state_of(owner, "min")
    assert account
    async with hub.transaction() as tx:
        await disable_account(tx, account, TESTER)

    response = await web.get(f"/v1/sessions/{session['sessionToken']}/status")

    assert (response.status_code, response.json()["code"]) == (403, "ACCOUNT_DISABLED")


async def test_a_session_is_pending_with_its_user_and_expired_when_denied(
    hub: Hub, web: httpx2.AsyncClient, travel: Travel
) -> None:
    session = await create_session(web)
    with_approval = hub.settings.model_copy(update={"pairing_approval": True})
    await send_command(hub, "min", f"/pair {session['pairingCode']}", settings=with_approval)
    await travel(6 * MINUTE)
    assert (await get_status(web, session["sessionToken"]))["status"] == "pending_pairing"
    async with hub.transaction() as tx:
        await deny_pairing(tx, key_of_user("min"), TESTER)

    assert (await get_status(web, session["sessionToken"]))["status"] == "expired"


async def test_an_address_creates_at_most_ten_sessions_in_five_minutes(
    web: httpx2.AsyncClient, owner: Connection, travel: Travel
) -> None:
    for _ in range(10):
        await create_session(web)

    # A forged forwarded address does not change the client's address.
    refused = await web.post("/v1/sessions/create", json={}, headers={"x-real-ip": "203.0.113.1"})

    assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert await owner.fetchval("select count(*) from public.relay_sessions") == 10
    await travel(5 * MINUTE)
    await create_session(web)


async def test_both_paths_work_with_a_doubled_slash(web: httpx2.AsyncClient) -> None:
    session = await web.post(web.base_url.copy_with(raw_path=b"//v1/sessions/create"), json={})
    path = f"//v1/sessions/{session.json()['sessionToken']}/status"

    assert (await web.get(web.base_url.copy_with(raw_path=path.encode()))).status_code == 200


async def test_the_log_contains_no_token_and_no_code(
    hub: Hub, web: httpx2.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await create_session(web)
    token = session["sessionToken"]
    await web.get(f"/v1/sessions/{token}/status")
    await web.post(f"/v1/sessions/{token}/status")
    await web.get(f"/v1/sessions/{token[:-1]}x/status")
    await send_command(hub, "min", f"/pair {session['pairingCode']}")

    logged = capsys.readouterr().out
    assert logged.count("/v1/sessions/{token}/status") == 3
    assert token[:-1] not in logged
    assert session["pairingCode"] not in logged
