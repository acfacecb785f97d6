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
from relay.bot import Bot, bot
from relay.people import TESTER
from relay.skills import write
from support.relay_rows import Chat, skill_response
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
KEY = "channel:user"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pairing_approval": True})


@pytest.fixture
async def there(hub: Hub, database_urls: DatabaseUrls) -> AsyncGenerator[str]:
    """Another hub process: the streams are connected there, the changes happen here."""
    async with open_hub(hub.settings, database_urls) as elsewhere, serving(elsewhere) as address:
        await until(lambda: elsewhere.doorbell.listening)
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

    async def ask(self, what: str, **body: Any) -> dict[str, Any]:
        answer = await self._web.post(f"/openclaw/{what}", json=body, headers=self.header)
        return {"status": answer.status_code} | answer.json()

    async def approve(self, user: str = "user") -> None:
        assert (await self.ask("pairing/approve", conversationKey=f"channel:{user}"))["success"]

    async def deny(self, user: str = "user") -> None:
        assert (await self.ask("pairing/deny", conversationKey=f"channel:{user}"))["success"]


@pytest.fixture
async def client(web: httpx2.AsyncClient) -> Client:
    return Client(web, (await web.post("/v1/sessions/create", json={})).json())


async def gets_pairing_expired(stream: Bot) -> None:
    over = await stream.next("pairing_expired")
    assert over.data["reason"]
    assert await stream.read() is None


@pytest.mark.parametrize("when", ["before the code is used", "after"])
async def test_denying_the_user_ends_the_wait(web: httpx2.AsyncClient, there: str, client: Client, when: str) -> None:
    if when == "after":
        await write(web, f"/pair {client.code}")
    async with bot(there, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "pending_pairing"
        if when != "after":
            await write(web, f"/pair {client.code}")
        assert await client.state() == "pending_pairing"
        await client.deny()
        await gets_pairing_expired(stream)

    assert await client.state() == "expired"
    async with bot(there, client.token) as again:
        assert again.status == 401
    assert (await client.ask("reply", messageId="x", response=skill_response("hi")))["status"] == 401


async def test_an_approval_timeout_ends_the_wait(
    hub: Hub, web: httpx2.AsyncClient, there: str, client: Client, travel: Travel
) -> None:
    await write(web, f"/pair {client.code}")
    async with bot(there, client.token) as stream:
        await stream.next("connected")
        await travel(conversations.APPROVAL_TIMEOUT)
        await hub.chores.run_due()
        await gets_pairing_expired(stream)
    assert await client.state() == "expired"


@pytest.mark.parametrize("how", ["leaves", "is unpaired", "is blocked", "is erased", "pairs anew"])
async def test_the_wait_ends_however_the_pending_user_leaves(
    hub: Hub, web: httpx2.AsyncClient, there: str, client: Client, how: str
) -> None:
    other = (await web.post("/v1/sessions/create", json={})).json()
    async with bot(there, client.token) as stream:
        await stream.next("connected")
        await write(web, f"/pair {client.code}")
        match how:
            case "leaves":
                await write(web, "/unpair")
            case "pairs anew":
                await write(web, f"/pair {other['pairingCode']}")
            case _:
                verb = {
                    "is unpaired": unpair_conversation,
                    "is blocked": block_conversation,
                    "is erased": erase_conversation,
                }[how]
                async with hub.transaction() as tx:
                    await verb(tx, KEY, TESTER)
        await gets_pairing_expired(stream)
    assert await client.state() == "expired"


async def test_the_wait_continues_while_another_user_is_pending(
    web: httpx2.AsyncClient, there: str, client: Client
) -> None:
    async with bot(there, client.token) as stream:
        await stream.next("connected")
        await write(web, f"/pair {client.code}")
        another = (await client.ask("pairing/generate"))["code"]
        await client.deny()
        assert await client.state() == "pending_pairing", "the other code is still out"
        await write(web, f"/pair {another}", "other")
        await client.approve("other")
        assert (await stream.first()).name == "pairing_complete"
        await write(web, "hello", "other")
        assert (await stream.next_message())["normalized"]["text"] == "hello"
    assert await client.state() == "paired"


async def test_an_expired_code_ends_every_stream_that_waits_for_it(there: str, client: Client, travel: Travel) -> None:
    async with bot(there, client.token) as one, bot(there, client.token) as two:
        for stream in (one, two):
            await stream.next("connected")
        await travel(SESSION_CODE_LIFETIME)
        for stream in (one, two):
            await gets_pairing_expired(stream)


async def test_disabling_the_account_ends_the_wait_with_an_error(
    hub: Hub, web: httpx2.AsyncClient, there: str, client: Client, chat: Chat
) -> None:
    async with bot(there, client.token) as stream:
        await stream.next("connected")
        await write(web, f"/pair {client.code}")
        async with hub.transaction() as tx:
            await disable_account(tx, await chat.db.fetchval("select id from accounts"), TESTER)
        assert (await stream.next("error")).data["code"] == "ACCOUNT_DISABLED"
        assert await stream.read() is None


async def test_deleting_the_account_ends_the_wait(
    hub: Hub, web: httpx2.AsyncClient, there: str, client: Client, chat: Chat
) -> None:
    async with bot(there, client.token) as stream:
        await stream.next("connected")
        await write(web, f"/pair {client.code}")
        async with hub.transaction() as tx:
            await delete_account(tx, await chat.db.fetchval("select id from accounts"), TESTER)
        await gets_pairing_expired(stream)


async def test_a_session_whose_last_user_left_is_not_paired(
    web: httpx2.AsyncClient, there: str, client: Client
) -> None:
    await write(web, f"/pair {client.code}")
    await client.approve()
    async with bot(there, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "paired"
        await write(web, "hello")
        message = await stream.next_message()
        await write(web, "/unpair")
        await stream.next("unpaired")
        answered = await client.ask("reply", messageId=message["id"], response=skill_response("hi"))

    assert (answered["status"], answered["code"]) == (409, "SESSION_NOT_PAIRED")
    assert await client.state() == "disconnected"
    async with bot(there, client.token) as again:
        connected = await again.next("connected")
        assert connected.data["status"] == "pending_pairing"
        assert connected.data["accountId"]
        await write(web, f"/pair {(await client.ask('pairing/generate'))['code']}")
        await client.approve()
        await again.next("pairing_complete")
        await write(web, "again")
        assert (await again.next_message())["normalized"]["text"] == "again"
    assert (await client.ask("reply", messageId=message["id"], response=skill_response("hi")))[
        "code"
    ] == "MESSAGE_NOT_FOUND"


async def test_a_session_with_another_user_is_still_paired(web: httpx2.AsyncClient, there: str, client: Client) -> None:
    await write(web, f"/pair {client.code}")
    await client.approve()
    await write(web, f"/pair {(await client.ask('pairing/generate'))['code']}", "other")
    await client.approve("other")
    await write(web, "/unpair")

    async with bot(there, client.token) as stream:
        assert (await stream.next("connected")).data["status"] == "paired"
