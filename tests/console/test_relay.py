"""The relay's room: what an operator sees of accounts, conversations and messages, and does to them."""

import asyncio
import html
import re
from uuid import UUID

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub
from relay.people import a_code, an_owner, connection_of, key_of, pair, write
from support.dump import dumped
from support.operator import HOSTILE, Signed, unharmed
from support.relay_log import SECRET_URL, Talk, read

pytestmark = pytest.mark.anyio

ROOM = "/console/relay"
USER = "x1-plusfriend-9Q4tzK"


def of(account: UUID) -> str:
    return f"{ROOM}/accounts/{account}"


@pytest.mark.parametrize("path", ["", "/conversations", "/messages", "/failures", "/messages?status=QUEUED"])
async def test_with_nothing_in_it_every_list_says_so(viewer: Signed, path: str) -> None:
    for language in ("ko", "en"):
        page = await viewer.get(ROOM + path, language)
        assert page.status_code == 200
        assert 'class="empty card"' in page.text


async def test_an_account_is_listed_with_what_it_has(hub: Hub, viewer: Signed, talk: Talk) -> None:
    bot = await an_owner(hub, "minu", rate_limit=77)
    await an_owner(hub, "other")
    await pair(hub, USER, bot.account)
    await talk.written(bot.account, USER)

    page = await viewer.get(f"{ROOM}?name=min")
    [row] = re.findall(r"<tbody>.*?</tbody>", page.text, re.DOTALL)

    assert read(row).split()[:7] == ["minu", "1", "0", "0", "1", "0", "77"]
    assert "other" not in row


async def test_an_account_shows_its_people_codes_and_messages(
    hub: Hub, admin: Signed, viewer: Signed, talk: Talk
) -> None:
    bot = await an_owner(hub)
    await pair(hub, USER, bot.account)
    await talk.written(bot.account, USER, "안녕하세요")
    code = await a_code(hub, bot.account)

    seen, hidden = await admin.get(of(bot.account)), await viewer.get(of(bot.account))

    assert f"/pair {code}" in seen.text
    assert "안녕하세요" in hidden.text
    assert code not in hidden.text, "whoever has it is connected"
    assert "<form" not in hidden.text.partition('id="account"')[2]


async def test_a_users_key_is_whole_only_where_the_conversation_is(hub: Hub, viewer: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)
    await pair(hub, USER, bot.account)
    message = await talk.written(bot.account, USER)
    await talk.answered(message, outcome="refused", error="no")

    for path in (of(bot.account), f"{ROOM}/conversations", f"{ROOM}/messages", f"{ROOM}/failures"):
        page = read((await viewer.get(path)).text)
        assert USER not in page, path
        assert "bot:x1-p…4tzK" in page
    for path in (f"{ROOM}/conversation?key=bot%3A{USER}", f"{ROOM}/messages/{message}"):
        assert USER in read((await viewer.get(path)).text)


async def test_a_message_shows_its_story_and_its_reply_but_never_its_callback(
    hub: Hub, viewer: Signed, talk: Talk
) -> None:
    bot = await an_owner(hub)
    await pair(hub, USER, bot.account)
    message = await talk.written(bot.account, USER, "what is it?", callbackUrl=SECRET_URL, token="s3cret")
    await talk.answered(message, "it is this", "refused", "Kakao answered 400")

    page = await viewer.get(f"{ROOM}/messages/{message}")

    assert page.status_code == 200
    for words in ("what is it?", "it is this", "Kakao answered 400", "accepted from", "Refused"):
        assert words.lower() in read(page.text).lower()
    assert "capability" not in page.text
    assert "s3cret" not in page.text
    assert f"/console/trace?id={message}" in page.text


async def test_nothing_anybody_writes_becomes_part_of_a_page(hub: Hub, admin: Signed, talk: Talk) -> None:
    bot = await an_owner(hub, HOSTILE)
    await pair(hub, HOSTILE, bot.account)
    await a_code(hub, bot.account, metadata={HOSTILE: HOSTILE})
    message = await talk.written(bot.account, HOSTILE, HOSTILE, **{HOSTILE: HOSTILE})
    await talk.answered(message, HOSTILE, "refused", HOSTILE)
    key = str(httpx2.QueryParams(key=key_of(HOSTILE)))

    for path in (
        "",
        "/conversations",
        "/messages",
        "/failures",
        f"/accounts/{bot.account}",
        f"/conversation?{key}",
        f"/messages?{str(key).replace('key=', 'conversation=')}",
        f"/messages/{message}",
        f"?{httpx2.QueryParams(name=HOSTILE)}",
    ):
        page = await admin.get(ROOM + path)
        assert page.status_code == 200, path
        assert unharmed(page), path
        assert "&lt;script&gt;" in page.text, path
    asked = await admin.post(f"{of(bot.account)}/delete")
    assert unharmed(asked)
    assert html.escape(HOSTILE, quote=False)[:30] in asked.text


async def test_messages_are_narrowed_and_read_page_by_page(hub: Hub, viewer: Signed, talk: Talk) -> None:
    bot, other = await an_owner(hub), await an_owner(hub, "other")
    await pair(hub, USER, bot.account)
    mine = [await talk.written(bot.account, USER, f"number {n}") for n in range(60)]
    theirs = await talk.written(other.account, "somebody")
    await talk.answered(mine[0])

    found: list[str] = []
    path: str | None = f"{ROOM}/messages?account=owner"
    while path:
        page = (await viewer.get(path)).text
        found += re.findall(rf'data-row href="{ROOM}/messages/([^"]+)"', page)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(older[1]) if older else None

    assert found == [str(each) for each in reversed(mine)]
    assert str(theirs) in (await viewer.get(f"{ROOM}/messages")).text
    acked = (await viewer.get(f"{ROOM}/messages?status=ACKED")).text
    assert re.findall(rf'data-row href="{ROOM}/messages/([^"]+)"', acked) == [str(mine[0])]
    assert "No messages match these filters." in (await viewer.get(f"{ROOM}/messages?account=nobody")).text
    assert (await viewer.get(f"{ROOM}/messages?status=EATEN")).status_code == 400


async def test_conversations_are_read_page_by_page_and_found_by_their_key(hub: Hub, viewer: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)
    await talk.db.execute(
        "insert into conversation_mappings (conversation_key, kakao_channel_id, plusfriend_user_key) "
        "select 'bot:' || n, 'bot', n from generate_series(100, 170) n"
    )
    await pair(hub, USER, bot.account)

    found: list[str] = []
    path: str | None = f"{ROOM}/conversations"
    while path:
        page = (await viewer.get(path)).text
        found += re.findall(rf'data-row href="{ROOM}/conversation\?key=([^"]+)"', page)
        on = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(on[1]) if on else None

    assert found == [*(f"bot%3A{n}" for n in range(100, 171)), f"bot%3A{USER}"]
    of_bot = (await viewer.get(f"{ROOM}/conversations?account={bot.account}")).text
    assert re.findall(r"data-row href", of_bot) == ["data-row href"]
    there = await viewer.get(f"{ROOM}/conversations?key=bot:{USER}")
    assert (there.status_code, there.headers["location"]) == (303, f"{ROOM}/conversation?key=bot%3A{USER}")
    assert (await viewer.get(f"{ROOM}/conversation?key=bot%3Anobody")).status_code == 404


async def test_failed_callbacks_are_listed_the_newest_first(hub: Hub, viewer: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)
    first, fine, last = [await talk.written(bot.account, USER) for _ in range(3)]
    await talk.answered(first, outcome="refused", error="no")
    await talk.answered(fine)
    await talk.answered(last, outcome="unknown", error="silence")

    page = (await viewer.get(f"{ROOM}/failures")).text

    assert re.findall(rf'data-row href="{ROOM}/messages/([^"]+)"', page) == [str(last), str(first)]
    assert "silence" in page


async def test_a_new_accounts_token_is_shown_once_and_kept_nowhere(
    hub: Hub, admin: Signed, web: httpx2.AsyncClient, database_urls: DatabaseUrls, talk: Talk
) -> None:
    made = await admin.post(f"{ROOM}/accounts", name="new bot", rate_limit="5")
    [token] = re.findall(r"<code>(prt_[\w-]{43})</code>", made.text)
    [where] = re.findall(rf'href="({ROOM}/accounts/[^"]+)"', made.text)

    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    assert token not in str(made.headers)
    assert token not in (await admin.get(where)).text
    assert token.encode() not in await dumped(database_urls)
    assert ("operator:the-admin", "account.created") in await talk.deeds()
    door = await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {token}"})
    assert door.status_code == 200
    assert (await admin.post(f"{ROOM}/accounts", name="new bot")).status_code == 409
    for wrong in ("0", "many", "٣", "9" * 40):
        assert (await admin.post(f"{ROOM}/accounts", name="next", rate_limit=wrong)).status_code == 400


async def test_a_rotated_token_takes_the_place_of_the_one_before(
    hub: Hub, admin: Signed, web: httpx2.AsyncClient
) -> None:
    bot = await an_owner(hub)
    await a_code(hub, bot.account)

    asked = await admin.post(f"{of(bot.account)}/rotate")
    assert "1 unused pairing code stop" in asked.text
    await a_code(hub, bot.account)  # whoever has the token cannot keep it from being taken away by making codes
    done = await admin.post(f"{of(bot.account)}/rotate", count="1")
    [token] = re.findall(r"<code>(prt_[\w-]{43})</code>", done.text)

    async def door(shown: str) -> int:
        return (await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {shown}"})).status_code

    assert [await door(bot.token), await door(token)] == [401, 200]


async def test_deleting_asks_for_the_exact_number_and_does_no_more(hub: Hub, admin: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)
    await pair(hub, USER, bot.account)
    await talk.written(bot.account, USER)
    path = f"{of(bot.account)}/delete"

    asked = await admin.post(path)
    assert "Messages deleted with it: 1. Conversations disconnected: 1." in read(asked.text)
    await talk.written(bot.account, USER, "meanwhile")
    again = await admin.post(path, count="1", conversations="1")
    assert "Messages deleted with it: 2." in read(again.text)
    assert await talk.count("accounts") == 1
    assert "Messages deleted with it: 2." in read((await admin.post(path, count="2", conversations="0")).text)
    done = await admin.post(path, count="2", conversations="1")

    assert (done.status_code, done.headers["location"]) == (303, ROOM)
    assert [await talk.count(table) for table in ("accounts", "inbound_messages")] == [0, 0]
    assert await connection_of(talk.db, USER) == ("UNPAIRED", None)
    assert ("operator:the-admin", "account.deleted") in await talk.deeds()
    assert (await admin.post(path)).status_code == 404


async def test_of_two_who_delete_at_once_one_does(hub: Hub, admin: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)

    answers = await asyncio.gather(
        *(admin.post(f"{of(bot.account)}/delete", count="0", conversations="0") for _ in range(2))
    )

    assert sorted(answer.status_code for answer in answers) == [303, 404]
    assert [deed for deed in await talk.deeds() if deed[1] == "account.deleted"] == [
        ("operator:the-admin", "account.deleted")
    ]


async def test_disabling_says_what_it_cancels_and_enabling_undoes_it(hub: Hub, admin: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)
    message = await talk.written(bot.account, USER)

    asked = await admin.post(f"{of(bot.account)}/disable")
    assert "1 open message is cancelled" in read(asked.text)
    await talk.written(bot.account, USER, "whoever writes meanwhile does not hinder it")
    await admin.post(f"{of(bot.account)}/disable", count="1")
    assert "Disabled since" in (await admin.get(of(bot.account))).text
    assert await talk.db.fetchval("select reason from inbound_messages where id = $1", message) == "disabled"
    await admin.post(f"{of(bot.account)}/enable")

    assert "Disabled since" not in (await admin.get(of(bot.account))).text
    assert [what for _, what in await talk.deeds()][-2:] == ["account.disabled", "account.enabled"]


@pytest.mark.parametrize(
    ("deed", "before", "after", "written"),
    [
        ("unpair", "PAIRED", "UNPAIRED", "pairing.unpaired"),
        ("block", "PAIRED", "BLOCKED", "conversation.blocked"),
        ("unblock", "BLOCKED", "PAIRED", "conversation.unblocked"),
        ("approve", "PENDING", "PAIRED", "pairing.approved"),
        ("deny", "PENDING", "UNPAIRED", "pairing.denied"),
    ],
)
async def test_a_conversation_is_changed_by_an_admin_alone(
    hub: Hub, admin: Signed, viewer: Signed, talk: Talk, deed: str, before: str, after: str, written: str
) -> None:
    bot = await an_owner(hub)
    await pair(hub, USER, bot.account)
    await talk.db.execute("update conversation_mappings set state = $1", before)
    await talk.written(bot.account, USER)
    path, key = f"{ROOM}/conversation/{deed}", key_of(USER)

    assert (await viewer.post(path, key=key, count="1")).status_code == 403
    assert (await admin.post(path, key=key, count="1", csrf_token="00")).status_code == 403
    if deed in {"unpair", "block"}:
        assert "1 open message is cancelled" in (await admin.post(path, key=key)).text
    assert (await connection_of(talk.db, USER))[0] == before
    await talk.written(bot.account, USER, "who is to be blocked cannot hinder it by writing")
    done = await admin.post(path, key=key, count="1")

    assert done.status_code == 303
    assert (await connection_of(talk.db, USER))[0] == after
    assert ("operator:the-admin", written) in await talk.deeds()
    assert await talk.db.fetchval(
        "select subject from pabal.audit_log where action = $1", written
    ) == conversation_pseudonym(key)
    assert (await admin.post(path, key="bot:nobody", count="0")).status_code == 404
    assert (await admin.post(f"{ROOM}/conversation/eat", key=key)).status_code == 404


@pytest.mark.parametrize("deed", ["disable", "enable", "rotate", "delete", "code"])
async def test_nobody_but_an_admin_with_a_form_of_ours_does_anything_to_an_account(
    hub: Hub, admin: Signed, viewer: Signed, talk: Talk, deed: str
) -> None:
    bot = await an_owner(hub)
    before = await talk.db.fetchrow("select * from accounts"), await talk.deeds()
    path = f"{of(bot.account)}/{deed}"

    assert (await viewer.post(path, count="0", conversations="0")).status_code == 403
    assert (await admin.post(path, count="0", conversations="0", csrf_token="ff")).status_code == 403
    assert (await viewer.post(f"{ROOM}/accounts", name="mine")).status_code == 403
    assert (await admin.post(f"{ROOM}/accounts", name="mine", csrf_token="ff")).status_code == 403

    assert (await talk.db.fetchrow("select * from accounts"), await talk.deeds()) == before
    assert await talk.count("pairing_codes") == 0


async def test_a_code_made_here_connects(hub: Hub, admin: Signed, talk: Talk) -> None:
    bot = await an_owner(hub)

    made = await admin.post(f"{of(bot.account)}/code")
    page = await admin.get(made.headers["location"])
    [code] = re.findall(r"/pair ([A-Z0-9]{4}-[A-Z0-9]{4})", page.text)
    await write(hub, USER, f"/pair {code}")

    assert await connection_of(talk.db, USER) == ("PAIRED", bot.account)
    assert ("operator:the-admin", "pairing.code_made") in await talk.deeds()
