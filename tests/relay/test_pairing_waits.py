"""A session that waits for its first user gets an event when the wait ends, and shows a correct status."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay import conversations
from pabal.relay.accounts import delete_account, disable_account
from pabal.relay.conversations import block_conversation, unpair_conversation
from pabal.relay.pairing.sessions import SESSION_CODE_LIFETIME
from pabal.relay.privacy import erase_conversation
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from relay.people import TESTER
from relay.skills import send_message
from support.relay_rows import Chat, skill_response
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
KEY = "channel:user"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pairing_approval": True})


@pytest.fixture
async def other_address(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[str]:
    """The address of another hub process, to which the streams are connected."""
    async with open_hub(hub.settings, database_urls) as other_hub, serve_hub(other_hub) as address:
        await wait_until(lambda: other_hub.doorbell.listening)
        yield address


class Client:
    """A client with its session, and the account it gets."""

    def __init__(self, web: httpx2.AsyncClient, session: dict[str, Any]) -> None:
        self._web = web
        self.token: str = session["sessionToken"]
        self.code: str = session["pairingCode"]
        self.header = {"authorization": f"Bearer {self.token}"}

    async def state(self) -> str:
        return (await self._web.get(f"/v1/sessions/{self.token}/status")).json()["status"]

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = await self._web.post(f"/openclaw/{path}", json=body, headers=self.header)
        return {"status": response.status_code} | response.json()

    async def approve(self, user: str = "user") -> None:
        assert (await self.post("pairing/approve", conversationKey=f"channel:{user}"))["success"]

    async def deny(self, user: str = "user") -> None:
        assert (await self.post("pairing/deny", conversationKey=f"channel:{user}"))["success"]


@pytest.fixture
async def client(web: httpx2.AsyncClient) -> Client:
    return Client(web, (await web.post("/v1/sessions/create", json={})).json())


async def expect_pairing_expired(stream: StreamClient) -> None:
    event = await stream.next("pairing_expired")
    assert event.data["reason"]
    assert await stream.read() is None


@pytest.mark.parametrize("when", ["before the code is used", "after it is used"])
async def test_denying_the_user_ends_the_wait(
    web: httpx2.AsyncClient, other_address: str, client: Client, when: str
) -> None:
    if when == "after it is used":
        await send_message(web, f"/pair {client.code}")
    async with connect_stream(other_address, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "pending_pairing"
        if when != "after it is used":
            await send_message(web, f"/pair {client.code}")
        assert await client.state() == "pending_pairing"
        await client.deny()
        await expect_pairing_expired(stream)

    assert await client.state() == "expired"
    async with connect_stream(other_address, client.token) as refused:
        assert refused.status == 401
    assert (await client.post("reply", messageId="x", response=skill_response("hi")))["status"] == 401


async def test_an_approval_timeout_ends_the_wait(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, client: Client, travel: Travel
) -> None:
    await send_message(web, f"/pair {client.code}")
    async with connect_stream(other_address, client.token) as stream:
        await stream.next("connected")
        await travel(conversations.APPROVAL_TIMEOUT)
        await hub.chores.run_due()
        await expect_pairing_expired(stream)
    assert await client.state() == "expired"


@pytest.mark.parametrize("cause", ["unpairs", "is unpaired", "is blocked", "is erased", "pairs with another bot"])
async def test_the_wait_ends_when_the_pending_user_leaves_in_any_way(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, client: Client, cause: str
) -> None:
    other = (await web.post("/v1/sessions/create", json={})).json()
    async with connect_stream(other_address, client.token) as stream:
        await stream.next("connected")
        await send_message(web, f"/pair {client.code}")
        match cause:
            case "unpairs":
                await send_message(web, "/unpair")
            case "pairs with another bot":
                await send_message(web, f"/pair {other['pairingCode']}")
            case _:
                operation = {
                    "is unpaired": unpair_conversation,
                    "is blocked": block_conversation,
                    "is erased": erase_conversation,
                }[cause]
                async with hub.transaction() as tx:
                    await operation(tx, KEY, TESTER)
        await expect_pairing_expired(stream)
    assert await client.state() == "expired"


async def test_the_wait_continues_while_another_user_is_pending(
    web: httpx2.AsyncClient, other_address: str, client: Client
) -> None:
    async with connect_stream(other_address, client.token) as stream:
        await stream.next("connected")
        await send_message(web, f"/pair {client.code}")
        second_code = (await client.post("pairing/generate"))["code"]
        await client.deny()
        assert await client.state() == "pending_pairing", "the second code is still valid"
        await send_message(web, f"/pair {second_code}", "other")
        await client.approve("other")
        assert (await stream.first()).name == "pairing_complete"
        await send_message(web, "hello", "other")
        assert (await stream.next_message())["normalized"]["text"] == "hello"
    assert await client.state() == "paired"


async def test_an_expired_code_ends_every_stream_that_waits_for_it(
    other_address: str, client: Client, travel: Travel
) -> None:
    async with (
        connect_stream(other_address, client.token) as first,
        connect_stream(other_address, client.token) as second,
    ):
        for stream in (first, second):
            await stream.next("connected")
        await travel(SESSION_CODE_LIFETIME)
        for stream in (first, second):
            await expect_pairing_expired(stream)


async def test_disabling_the_account_ends_the_wait_with_an_error(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, client: Client, chat: Chat
) -> None:
    async with connect_stream(other_address, client.token) as stream:
        await stream.next("connected")
        await send_message(web, f"/pair {client.code}")
        async with hub.transaction() as tx:
            await disable_account(tx, await chat.db.fetchval("select id from accounts"), TESTER)
        assert (await stream.next("error")).data["code"] == "ACCOUNT_DISABLED"
        assert await stream.read() is None


async def test_deleting_the_account_ends_the_wait(
    hub: Hub, web: httpx2.AsyncClient, other_address: str, client: Client, chat: Chat
) -> None:
    async with connect_stream(other_address, client.token) as stream:
        await stream.next("connected")
        await send_message(web, f"/pair {client.code}")
        async with hub.transaction() as tx:
            await delete_account(tx, await chat.db.fetchval("select id from accounts"), TESTER)
        await expect_pairing_expired(stream)


async def test_a_session_whose_last_user_left_is_not_paired(
    web: httpx2.AsyncClient, other_address: str, client: Client
) -> None:
    await send_message(web, f"/pair {client.code}")
    await client.approve()
    async with connect_stream(other_address, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "paired"
        await send_message(web, "hello")
        message = await stream.next_message()
        await send_message(web, "/unpair")
        await stream.next("unpaired")
        response = await client.post("reply", messageId=message["id"], response=skill_response("hi"))

    assert (response["status"], response["code"]) == (409, "SESSION_NOT_PAIRED")
    assert await client.state() == "disconnected"
    async with connect_stream(other_address, client.token) as reconnected:
        connected = await reconnected.next("connected")
        assert connected.data["status"] == "pending_pairing"
        assert connected.data["accountId"]
        await send_message(web, f"/pair {(await client.post('pairing/generate'))['code']}")
        await client.approve()
        await reconnected.next("pairing_complete")
        await send_message(web, "again")
        assert (await reconnected.next_message())["normalized"]["text"] == "again"
    assert (await client.post("reply", messageId=message["id"], response=skill_response("hi")))[
        "code"
    ] == "MESSAGE_NOT_FOUND"


async def test_a_session_with_another_user_is_still_paired(
    web: httpx2.AsyncClient, other_address: str, client: Client
) -> None:
    await send_message(web, f"/pair {client.code}")
    await client.approve()
    await send_message(web, f"/pair {(await client.post('pairing/generate'))['code']}", "other")
    await client.approve("other")
    await send_message(web, "/unpair")

    async with connect_stream(other_address, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "paired"
