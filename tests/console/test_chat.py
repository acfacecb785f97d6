"""The chat page of a user: a one-time code opens it for one conversation and 30 minutes."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.console.chat import CHAT_COOKIE, EXPORTS_PER_CONVERSATION
from pabal.core.actor import Actor
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.accounts import disable_account
from pabal.relay.conversations import block_conversation
from pabal.relay.webhook.commands import CHAT_PAGE_CODE_LIFETIME
from pabal.settings import Settings
from relay.people import RelayAccount, add_account, conversation_state_of, key_of_user, pair_user, send_command
from support.operator import HOSTILE, is_escaped
from support.relay_log import SECRET_URL, MessageLog, csrf_token_in, page_text
from support.server import serve_hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINA, JUN = "mina-plusfriend-1", "jun-plusfriend-2"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as where:
        yield where


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    headers = {"origin": address, "accept-language": "en"}
    async with httpx2.AsyncClient(base_url=address, headers=headers) as client:
        yield client


@pytest.fixture
async def bot(hub: Hub) -> RelayAccount:
    owner = await add_account(hub, "Mina's bot")
    await pair_user(hub, MINA, owner.account)
    return owner


async def create_code(hub: Hub, user: str = MINA) -> str:
    [code] = re.findall(r"/chat\?code=([\w-]+)", await send_command(hub, user, "/code"))
    return code


async def open_chat(web: httpx2.AsyncClient, hub: Hub, user: str = MINA) -> str:
    """Open the chat page and return its CSRF token."""
    response = await web.post("/chat", data={"code": await create_code(hub, user)})
    assert response.status_code == 303, response.text
    return csrf_token_in((await web.get("/chat")).text)


async def test_a_code_is_exchanged_for_a_cookie_once_and_removed_from_the_url(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    await message_log.insert_message(bot.account, MINA, "anybody there?")
    code = await create_code(hub)

    first = await web.post("/chat", data={"code": code})
    set_cookie = first.headers["set-cookie"]
    assert (first.status_code, first.headers["location"]) == (303, "/chat")
    assert {"HttpOnly", "Path=/chat", "SameSite=lax"} <= {*set_cookie.split("; ")}
    assert 1700 < int(re.findall(r"Max-Age=(\d+)", set_cookie)[0]) <= CHAT_PAGE_CODE_LIFETIME.total_seconds()
    assert code not in set_cookie

    page = await web.get("/chat")
    assert page.status_code == 200
    for text in ("anybody there?", "Mina&#39;s bot", "You are connected to a bot."):
        assert text in page.text
    again = await web.post("/chat", data={"code": code})
    assert (again.status_code, again.headers["location"]) == (303, "/chat")
    web.cookies.clear()
    stolen = await web.post("/chat", data={"code": code})
    assert (stolen.status_code, "set-cookie" in stolen.headers) == (401, False)
    stored_codes = str(await message_log.db.fetch("select * from conversation_codes"))
    assert code not in stored_codes
    assert set_cookie.partition("=")[2].partition(";")[0] not in stored_codes


async def test_the_cookie_is_secure_behind_https(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        headers = {"origin": "https://hub.example.org"}
        response = await web.post("/chat", data={"code": await create_code(hub)}, headers=headers)

    assert "Secure" in response.headers["set-cookie"].split("; ")


async def test_a_code_sent_concurrently_signs_in_once(hub: Hub, address: str, bot: RelayAccount) -> None:
    code = await create_code(hub)

    async def use_code() -> int:
        async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as web:
            return (await web.post("/chat", data={"code": code})).status_code

    assert sorted(await asyncio.gather(*(use_code() for _ in range(8)))) == [303, *[401] * 7]


async def test_a_code_is_used_only_when_the_button_is_pressed(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount
) -> None:
    """Link previews fetch the URL, so a GET must not use the code."""
    code = await create_code(hub)

    assert (await web.head("/chat", params={"code": code})).status_code == 200
    door = await web.get("/chat", params={"code": code})
    assert (door.status_code, "set-cookie" in door.headers) == (200, False)
    assert f'<input type="hidden" name="code" value="{code}">' in door.text
    assert "works once" in door.text
    assert (await web.post("/chat", data={"code": code})).status_code == 303


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
async def test_other_sites_cannot_sign_a_user_in(
    hub: Hub, address: str, bot: RelayAccount, message_log: MessageLog, origin: str | None
) -> None:
    """A user signed in to another user's page would write into the wrong conversation."""
    code = await create_code(hub)
    async with httpx2.AsyncClient(base_url=address, headers={"origin": origin} if origin else {}) as theirs:
        response = await theirs.post("/chat", data={"code": code})

    assert (response.status_code, "set-cookie" in response.headers) == (403, False)
    assert await message_log.count("conversation_codes where opened_at is null") == 1


@pytest.mark.parametrize("code", ["", "garbage", "a" * 22, "\0", "%00", HOSTILE])
async def test_an_invalid_code_is_refused(web: httpx2.AsyncClient, code: str) -> None:
    assert is_escaped(await web.get("/chat", params={"code": code}))
    response = await web.post("/chat", data={"code": code})

    assert response.status_code == 401
    assert "Send /code in the chat" in response.text


async def test_the_page_expires_with_its_code(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, travel: Travel, message_log: MessageLog
) -> None:
    unused = await create_code(hub, JUN)
    csrf_token = await open_chat(web, hub)
    await travel(CHAT_PAGE_CODE_LIFETIME)

    assert (await web.get("/chat")).status_code == 401
    assert (await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "0"})).status_code == 401
    assert (await web.post("/chat", data={"code": unused})).status_code == 401
    await hub.chores.run_due()
    assert await message_log.count("conversation_codes") == 0
    assert (await conversation_state_of(message_log.db, MINA))[0] == "PAIRED"


async def test_a_new_code_ends_the_session_of_the_previous_one(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount
) -> None:
    await open_chat(web, hub)
    await create_code(hub)

    assert (await web.get("/chat")).status_code == 401


async def test_the_page_shows_the_messages_and_replies_of_this_user_only(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    await pair_user(hub, JUN, bot.account)
    confirmation = await message_log.insert_message(bot.account, MINA, "what time is it?")
    await message_log.insert_reply(confirmation, "half past nine")
    lost = await message_log.insert_message(bot.account, MINA, "and now?")
    await message_log.insert_reply(lost, "nearly ten", "refused", "no")
    secret = await message_log.insert_message(bot.account, JUN, "between us")
    await message_log.insert_reply(secret, "of course")
    await open_chat(web, hub)

    page = (await web.get("/chat")).text

    order = [page_text(page).index(text) for text in ("what time is it?", "half past nine", "and now?", "nearly ten")]
    assert order == sorted(order)
    assert "could not be shown in the chat" in page
    for other in ("between us", "of course", JUN, SECRET_URL):
        assert other not in page


async def test_older_messages_are_paginated(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    for n in range(35):
        await message_log.insert_message(bot.account, MINA, f"number-{n:02}.")
    await open_chat(web, hub)

    page = (await web.get("/chat")).text
    [older] = re.findall(r'href="(/chat\?cursor=[^"]+)"', page)
    before = (await web.get(older)).text

    assert re.findall(r"number-(\d\d)\.", page) == [f"{n:02}" for n in range(5, 35)]
    assert re.findall(r"number-(\d\d)\.", before) == [f"{n:02}" for n in range(5)]
    assert (await web.get("/chat?cursor=nonsense")).status_code == 200


async def test_messages_and_replies_are_escaped(hub: Hub, web: httpx2.AsyncClient, message_log: MessageLog) -> None:
    bot = await add_account(hub, HOSTILE)
    await pair_user(hub, HOSTILE, bot.account)
    message = await message_log.insert_message(bot.account, HOSTILE, HOSTILE)
    await message_log.insert_reply(message, HOSTILE, "refused", HOSTILE)
    await open_chat(web, hub, HOSTILE)

    page = await web.get("/chat")

    assert is_escaped(page)
    assert page.text.count("&lt;script&gt;") >= 3
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"


async def test_unpairing_names_the_messages_it_cancels(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    message = await message_log.insert_message(bot.account, MINA)
    csrf_token = await open_chat(web, hub)

    confirmation = await web.post("/chat/unpair", data={"csrf_token": csrf_token})
    assert "1 unanswered message is cancelled" in confirmation.text
    await message_log.insert_message(bot.account, MINA, "one more")
    again = await web.post("/chat/unpair", data={"csrf_token": csrf_token, "count": "1"})
    assert "2 unanswered messages are cancelled" in again.text
    assert (await conversation_state_of(message_log.db, MINA))[0] == "PAIRED"
    done = await web.post("/chat/unpair", data={"csrf_token": csrf_token, "count": "2"})

    assert (done.status_code, done.headers["location"]) == (303, "/chat")
    page = (await web.get("/chat")).text
    assert "You are disconnected." in page
    assert "You are not connected to a bot." in page
    assert await message_log.db.fetchval("select reason from inbound_messages where id = $1", message) == "unpaired"
    assert ("chat", "pairing.unpaired") in await message_log.audit_actions()


async def test_the_export_contains_everything(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    await message_log.insert_reply(await message_log.insert_message(bot.account, MINA, "remember me"), "I will")
    await message_log.insert_message(bot.account, JUN, "not mine")
    await open_chat(web, hub)

    file = await web.get("/chat/export")
    document = json.loads(file.content)

    assert file.headers["content-disposition"] == 'attachment; filename="conversation.json"'
    assert document["conversation"]["conversation_key"] == key_of_user(MINA)
    assert [message["normalized"]["text"] for message in document["messages"]] == ["remember me"]
    for secret in ("not mine", SECRET_URL, "cookie_hash", "code_hash"):
        assert secret not in file.text
    for _ in range(EXPORTS_PER_CONVERSATION.count - 1):
        assert (await web.get("/chat/export")).status_code == 200
    assert (await web.get("/chat/export")).status_code == 429


async def test_erasing_requires_the_exact_count_and_leaves_nothing(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    await pair_user(hub, JUN, bot.account)
    await message_log.insert_message(bot.account, JUN, "stays")
    await message_log.insert_message(bot.account, MINA)
    csrf_token = await open_chat(web, hub)

    confirmation = await web.post("/chat/erase", data={"csrf_token": csrf_token})
    assert "1 message and all other data of this conversation will be erased" in confirmation.text
    await message_log.insert_message(bot.account, MINA, "meanwhile")
    again = await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "1"})
    assert "2 messages and all other data of this conversation will be erased" in again.text
    assert await message_log.count("inbound_messages") == 3
    gone = await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "2"})

    assert "Everything was erased" in gone.text
    assert "including 2 messages" in gone.text
    assert (await web.get("/chat")).status_code == 401
    assert await message_log.db.fetch("select conversation_key from inbound_messages") == [(key_of_user(JUN),)]
    assert await message_log.count("conversation_codes") == 0
    [entry] = await message_log.db.fetch("select * from pabal.audit_log where action = 'conversation.erased'")
    assert (entry["actor"], entry["subject"], entry["client_ip"]) == (
        "chat",
        conversation_pseudonym(key_of_user(MINA)),
        None,
    )
    assert MINA not in str(entry)


async def test_a_user_blocked_in_the_meantime_cannot_erase_the_block(
    hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount, message_log: MessageLog
) -> None:
    csrf_token = await open_chat(web, hub)
    async with hub.transaction() as tx:
        await block_conversation(tx, key_of_user(MINA), Actor("operator:mina"))

    page = await web.get("/chat")
    refused = [
        await web.post(f"/chat/{action}", data={"csrf_token": csrf_token, "count": "0"})
        for action in ("erase", "unpair")
    ]

    assert "You cannot use this channel" in page.text
    assert "/chat/erase" not in page.text
    assert [response.status_code for response in refused] == [409, 409]
    assert "/console" not in re.sub("/console/static", "", refused[0].text)
    assert (await conversation_state_of(message_log.db, MINA))[0] == "BLOCKED"


async def test_the_page_says_that_the_bot_is_disabled(hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount) -> None:
    async with hub.transaction() as tx:
        await disable_account(tx, bot.account, Actor("operator:mina"))
    await open_chat(web, hub)

    assert "currently disabled" in (await web.get("/chat")).text


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_cross_site_requests_with_the_cookie_are_refused(
    hub: Hub, address: str, bot: RelayAccount, message_log: MessageLog, origin: str | None
) -> None:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as mine:
        csrf_token = await open_chat(mine, hub)
        cookie = mine.cookies[CHAT_COOKIE]
        without_token = [
            await mine.post(f"/chat/{action}", data={"count": "0"}) for action in ("unpair", "erase", "leave")
        ]
    headers = {"origin": origin} if origin else {}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies={CHAT_COOKIE: cookie}) as web:
        forged = [
            await web.post(f"/chat/{action}", data={"csrf_token": csrf_token, "count": "0"})
            for action in ("unpair", "erase", "leave")
        ]
        still_there = await web.get("/chat")

    assert {response.status_code for response in (*forged, *without_token)} == {403}
    assert still_there.status_code == 200
    assert (await conversation_state_of(message_log.db, MINA))[0] == "PAIRED"


async def test_a_cookie_and_csrf_token_work_only_for_their_own_user(
    hub: Hub, address: str, bot: RelayAccount, message_log: MessageLog
) -> None:
    await pair_user(hub, JUN, bot.account)
    await message_log.insert_message(bot.account, JUN, "between us")
    headers = {"origin": address}
    async with (
        httpx2.AsyncClient(base_url=address, headers=headers) as minas,
        httpx2.AsyncClient(base_url=address, headers=headers) as juns,
    ):
        mine, theirs = await open_chat(minas, hub), await open_chat(juns, hub, JUN)
        crossed = await minas.post("/chat/erase", data={"csrf_token": theirs, "count": "1"})
        await minas.post("/chat/erase", data={"csrf_token": mine, "count": "0", "key": key_of_user(JUN)})

        assert mine != theirs
        assert crossed.status_code == 403
        assert "between us" in (await juns.get("/chat")).text
        assert (await minas.get("/chat")).status_code == 401
    assert (await conversation_state_of(message_log.db, JUN))[0] == "PAIRED"


async def test_signing_out_ends_the_session(hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount) -> None:
    csrf_token = await open_chat(web, hub)
    cookie = web.cookies[CHAT_COOKIE]
    assert (await web.post("/chat/leave", data={"csrf_token": csrf_token})).status_code == 303
    web.cookies.set(CHAT_COOKIE, cookie, path="/chat")

    assert (await web.get("/chat")).status_code == 401
    assert (await web.get("/chat/live")).status_code == 401


async def test_the_page_is_korean_by_default(hub: Hub, address: str, bot: RelayAccount) -> None:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as web:
        await web.post("/chat", data={"code": await create_code(hub)})
        assert "봇과 연결되어 있어요." in (await web.get("/chat")).text
        await web.post("/chat/language")
        assert "You are connected to a bot." in (await web.get("/chat")).text


async def test_a_database_outage_shows_an_error_page(hub: Hub, web: httpx2.AsyncClient, bot: RelayAccount) -> None:
    await open_chat(web, hub)
    await hub.db.close()
    response = await web.get("/chat")
    await hub.db.open()

    assert (response.status_code, response.headers["content-type"]) == (503, "text/html; charset=utf-8")
