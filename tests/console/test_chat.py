"""A user's own page: a code opens it once, for one conversation and half an hour, and what may be done there."""

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
from relay.people import Owning, an_owner, connection_of, key_of, pair, write
from support.operator import HOSTILE, unharmed
from support.relay_log import SECRET_URL, Talk, csrf_token_in, read
from support.server import serving

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINA, JUN = "mina-plusfriend-1", "jun-plusfriend-2"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serving(hub) as where:
        yield where


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    headers = {"origin": address, "accept-language": "en"}
    async with httpx2.AsyncClient(base_url=address, headers=headers) as client:
        yield client


@pytest.fixture
async def bot(hub: Hub) -> Owning:
    owner = await an_owner(hub, "Mina's bot")
    await pair(hub, MINA, owner.account)
    return owner


async def code_of(hub: Hub, user: str = MINA) -> str:
    [code] = re.findall(r"/chat\?code=([\w-]+)", await write(hub, user, "/code"))
    return code


async def enter(web: httpx2.AsyncClient, hub: Hub, user: str = MINA) -> str:
    """Open the page of one's conversation; what its forms carry."""
    answer = await web.post("/chat", data={"code": await code_of(hub, user)})
    assert answer.status_code == 303, answer.text
    return csrf_token_in((await web.get("/chat")).text)


async def test_a_code_becomes_a_cookie_once_and_leaves_the_address(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk
) -> None:
    await talk.written(bot.account, MINA, "anybody there?")
    code = await code_of(hub)

    first = await web.post("/chat", data={"code": code})
    said = first.headers["set-cookie"]
    assert (first.status_code, first.headers["location"]) == (303, "/chat")
    assert {"HttpOnly", "Path=/chat", "SameSite=lax"} <= {*said.split("; ")}
    assert 1700 < int(re.findall(r"Max-Age=(\d+)", said)[0]) <= CHAT_PAGE_CODE_LIFETIME.total_seconds()
    assert code not in said

    page = await web.get("/chat")
    assert page.status_code == 200
    for words in ("anybody there?", "Mina&#39;s bot", "You are connected to a bot."):
        assert words in page.text
    again = await web.post("/chat", data={"code": code})
    assert (again.status_code, again.headers["location"]) == (303, "/chat")
    web.cookies.clear()
    stolen = await web.post("/chat", data={"code": code})
    assert (stolen.status_code, "set-cookie" in stolen.headers) == (401, False)
    kept = str(await talk.db.fetch("select * from conversation_codes"))
    assert code not in kept
    assert said.partition("=")[2].partition(";")[0] not in kept


async def test_behind_https_the_cookie_is_for_https_alone(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        headers = {"origin": "https://hub.example.org"}
        answer = await web.post("/chat", data={"code": await code_of(hub)}, headers=headers)

    assert "Secure" in answer.headers["set-cookie"].split("; ")


async def test_of_many_who_bring_one_code_one_comes_in(hub: Hub, address: str, bot: Owning) -> None:
    code = await code_of(hub)

    async def bring() -> int:
        async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as web:
            return (await web.post("/chat", data={"code": code})).status_code

    assert sorted(await asyncio.gather(*(bring() for _ in range(8)))) == [303, *[401] * 7]


async def test_following_the_link_spends_no_code_until_the_button_is_pressed(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning
) -> None:
    """Whatever it looks like: no program that fetches it has to be known."""
    code = await code_of(hub)

    assert (await web.head("/chat", params={"code": code})).status_code == 200
    door = await web.get("/chat", params={"code": code})
    assert (door.status_code, "set-cookie" in door.headers) == (200, False)
    assert f'<input type="hidden" name="code" value="{code}">' in door.text
    assert "works once" in door.text
    assert (await web.post("/chat", data={"code": code})).status_code == 303


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
async def test_no_other_site_opens_a_page_in_somebodys_browser(
    hub: Hub, address: str, bot: Owning, talk: Talk, origin: str | None
) -> None:
    """Somebody's own page, opened for another, would get what that one writes into it."""
    code = await code_of(hub)
    async with httpx2.AsyncClient(base_url=address, headers={"origin": origin} if origin else {}) as theirs:
        answer = await theirs.post("/chat", data={"code": code})

    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert await talk.count("conversation_codes where opened_at is null") == 1


@pytest.mark.parametrize("code", ["", "garbage", "a" * 22, "\0", "%00", HOSTILE])
async def test_what_is_no_code_opens_nothing(web: httpx2.AsyncClient, code: str) -> None:
    assert unharmed(await web.get("/chat", params={"code": code}))
    answer = await web.post("/chat", data={"code": code})

    assert answer.status_code == 401
    assert "Send /code in the chat" in answer.text


async def test_the_page_closes_when_the_codes_time_is_over(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning, travel: Travel, talk: Talk
) -> None:
    unused = await code_of(hub, JUN)
    csrf_token = await enter(web, hub)
    await travel(CHAT_PAGE_CODE_LIFETIME)

    assert (await web.get("/chat")).status_code == 401
    assert (await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "0"})).status_code == 401
    assert (await web.post("/chat", data={"code": unused})).status_code == 401
    await hub.chores.run_due()
    assert await talk.count("conversation_codes") == 0
    assert (await connection_of(talk.db, MINA))[0] == "PAIRED"


async def test_a_new_code_closes_the_page_that_the_one_before_opened(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning
) -> None:
    await enter(web, hub)
    await code_of(hub)

    assert (await web.get("/chat")).status_code == 401


async def test_both_sides_are_shown_and_nobody_elses(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk
) -> None:
    await pair(hub, JUN, bot.account)
    asked = await talk.written(bot.account, MINA, "what time is it?")
    await talk.answered(asked, "half past nine")
    lost = await talk.written(bot.account, MINA, "and now?")
    await talk.answered(lost, "nearly ten", "refused", "no")
    secret = await talk.written(bot.account, JUN, "between us")
    await talk.answered(secret, "of course")
    await enter(web, hub)

    page = (await web.get("/chat")).text

    order = [read(page).index(words) for words in ("what time is it?", "half past nine", "and now?", "nearly ten")]
    assert order == sorted(order)
    assert "could not be shown in the chat" in page
    for other in ("between us", "of course", JUN, SECRET_URL):
        assert other not in page


async def test_older_messages_are_on_the_next_page(hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk) -> None:
    for n in range(35):
        await talk.written(bot.account, MINA, f"number-{n:02}.")
    await enter(web, hub)

    page = (await web.get("/chat")).text
    [older] = re.findall(r'href="(/chat\?cursor=[^"]+)"', page)
    before = (await web.get(older)).text

    assert re.findall(r"number-(\d\d)\.", page) == [f"{n:02}" for n in range(5, 35)]
    assert re.findall(r"number-(\d\d)\.", before) == [f"{n:02}" for n in range(5)]
    assert (await web.get("/chat?cursor=nonsense")).status_code == 200


async def test_whatever_is_said_is_text(hub: Hub, web: httpx2.AsyncClient, talk: Talk) -> None:
    bot = await an_owner(hub, HOSTILE)
    await pair(hub, HOSTILE, bot.account)
    message = await talk.written(bot.account, HOSTILE, HOSTILE)
    await talk.answered(message, HOSTILE, "refused", HOSTILE)
    await enter(web, hub, HOSTILE)

    page = await web.get("/chat")

    assert unharmed(page)
    assert page.text.count("&lt;script&gt;") >= 3
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"


async def test_unpairing_says_what_it_cancels(hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk) -> None:
    message = await talk.written(bot.account, MINA)
    csrf_token = await enter(web, hub)

    asked = await web.post("/chat/unpair", data={"csrf_token": csrf_token})
    assert "1 unanswered message is cancelled" in asked.text
    await talk.written(bot.account, MINA, "one more")
    again = await web.post("/chat/unpair", data={"csrf_token": csrf_token, "count": "1"})
    assert "2 unanswered messages are cancelled" in again.text
    assert (await connection_of(talk.db, MINA))[0] == "PAIRED"
    done = await web.post("/chat/unpair", data={"csrf_token": csrf_token, "count": "2"})

    assert (done.status_code, done.headers["location"]) == (303, "/chat")
    page = (await web.get("/chat")).text
    assert "You are disconnected." in page
    assert "You are not connected to a bot." in page
    assert await talk.db.fetchval("select reason from inbound_messages where id = $1", message) == "unpaired"
    assert ("chat", "pairing.unpaired") in await talk.deeds()


async def test_everything_can_be_taken_along(hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk) -> None:
    await talk.answered(await talk.written(bot.account, MINA, "remember me"), "I will")
    await talk.written(bot.account, JUN, "not mine")
    await enter(web, hub)

    file = await web.get("/chat/export")
    document = json.loads(file.content)

    assert file.headers["content-disposition"] == 'attachment; filename="conversation.json"'
    assert document["conversation"]["conversation_key"] == key_of(MINA)
    assert [each["normalized"]["text"] for each in document["messages"]] == ["remember me"]
    for secret in ("not mine", SECRET_URL, "cookie_hash", "code_hash"):
        assert secret not in file.text
    for _ in range(EXPORTS_PER_CONVERSATION.count - 1):
        assert (await web.get("/chat/export")).status_code == 200
    assert (await web.get("/chat/export")).status_code == 429


async def test_erasing_asks_for_the_exact_number_and_leaves_nothing(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk
) -> None:
    await pair(hub, JUN, bot.account)
    await talk.written(bot.account, JUN, "stays")
    await talk.written(bot.account, MINA)
    csrf_token = await enter(web, hub)

    asked = await web.post("/chat/erase", data={"csrf_token": csrf_token})
    assert "1 message and all other data of this conversation will be erased" in asked.text
    await talk.written(bot.account, MINA, "meanwhile")
    again = await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "1"})
    assert "2 messages and all other data of this conversation will be erased" in again.text
    assert await talk.count("inbound_messages") == 3
    gone = await web.post("/chat/erase", data={"csrf_token": csrf_token, "count": "2"})

    assert "Everything was erased" in gone.text
    assert "including 2 messages" in gone.text
    assert (await web.get("/chat")).status_code == 401
    assert await talk.db.fetch("select conversation_key from inbound_messages") == [(key_of(JUN),)]
    assert await talk.count("conversation_codes") == 0
    [left] = await talk.db.fetch("select * from pabal.audit_log where action = 'conversation.erased'")
    assert (left["actor"], left["subject"], left["client_ip"]) == ("chat", conversation_pseudonym(key_of(MINA)), None)
    assert MINA not in str(left)


async def test_who_is_blocked_meanwhile_cannot_erase_that(
    hub: Hub, web: httpx2.AsyncClient, bot: Owning, talk: Talk
) -> None:
    csrf_token = await enter(web, hub)
    async with hub.transaction() as tx:
        await block_conversation(tx, key_of(MINA), Actor("operator:mina"))

    page = await web.get("/chat")
    refused = [
        await web.post(f"/chat/{deed}", data={"csrf_token": csrf_token, "count": "0"}) for deed in ("erase", "unpair")
    ]

    assert "You cannot use this channel" in page.text
    assert "/chat/erase" not in page.text
    assert [each.status_code for each in refused] == [409, 409]
    assert "/console" not in re.sub("/console/static", "", refused[0].text)
    assert (await connection_of(talk.db, MINA))[0] == "BLOCKED"


async def test_a_disabled_account_is_said(hub: Hub, web: httpx2.AsyncClient, bot: Owning) -> None:
    async with hub.transaction() as tx:
        await disable_account(tx, bot.account, Actor("operator:mina"))
    await enter(web, hub)

    assert "currently disabled" in (await web.get("/chat")).text


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_no_other_site_does_anything_with_the_cookie(
    hub: Hub, address: str, bot: Owning, talk: Talk, origin: str | None
) -> None:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as mine:
        csrf_token = await enter(mine, hub)
        cookie = mine.cookies[CHAT_COOKIE]
        unstamped = [await mine.post(f"/chat/{deed}", data={"count": "0"}) for deed in ("unpair", "erase", "leave")]
    headers = {"origin": origin} if origin else {}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies={CHAT_COOKIE: cookie}) as web:
        tried = [
            await web.post(f"/chat/{deed}", data={"csrf_token": csrf_token, "count": "0"})
            for deed in ("unpair", "erase", "leave")
        ]
        still_there = await web.get("/chat")

    assert {answer.status_code for answer in (*tried, *unstamped)} == {403}
    assert still_there.status_code == 200
    assert (await connection_of(talk.db, MINA))[0] == "PAIRED"


async def test_one_persons_cookie_and_stamp_open_nobody_elses_page(
    hub: Hub, address: str, bot: Owning, talk: Talk
) -> None:
    await pair(hub, JUN, bot.account)
    await talk.written(bot.account, JUN, "between us")
    headers = {"origin": address}
    async with (
        httpx2.AsyncClient(base_url=address, headers=headers) as minas,
        httpx2.AsyncClient(base_url=address, headers=headers) as juns,
    ):
        mine, theirs = await enter(minas, hub), await enter(juns, hub, JUN)
        crossed = await minas.post("/chat/erase", data={"csrf_token": theirs, "count": "1"})
        await minas.post("/chat/erase", data={"csrf_token": mine, "count": "0", "key": key_of(JUN)})

        assert mine != theirs
        assert crossed.status_code == 403
        assert "between us" in (await juns.get("/chat")).text
        assert (await minas.get("/chat")).status_code == 401
    assert (await connection_of(talk.db, JUN))[0] == "PAIRED"


async def test_whoever_leaves_has_closed_the_page(hub: Hub, web: httpx2.AsyncClient, bot: Owning) -> None:
    csrf_token = await enter(web, hub)
    cookie = web.cookies[CHAT_COOKIE]
    assert (await web.post("/chat/leave", data={"csrf_token": csrf_token})).status_code == 303
    web.cookies.set(CHAT_COOKIE, cookie, path="/chat")

    assert (await web.get("/chat")).status_code == 401
    assert (await web.get("/chat/live")).status_code == 401


async def test_it_is_korean_first(hub: Hub, address: str, bot: Owning) -> None:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as web:
        await web.post("/chat", data={"code": await code_of(hub)})
        assert "봇과 연결되어 있어요." in (await web.get("/chat")).text
        await web.post("/chat/language")
        assert "You are connected to a bot." in (await web.get("/chat")).text


async def test_a_database_that_is_away_is_said_in_a_page(hub: Hub, web: httpx2.AsyncClient, bot: Owning) -> None:
    await enter(web, hub)
    await hub.db.close()
    answer = await web.get("/chat")
    await hub.db.open()

    assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
