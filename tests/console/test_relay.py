"""Relay pages: accounts, conversations, messages and their actions."""

import asyncio
import html
import re
from uuid import UUID

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role
from pabal.settings import Settings
from relay.people import add_account, conversation_state_of, create_code, key_of_user, pair_user, send_command
from support.dump import dump_database
from support.operator import HOSTILE, SignedInOperator, is_escaped, sign_in
from support.relay_log import SECRET_URL, MessageLog, page_text
from support.server import serve_hub
from support.webhook import WEBHOOK_SECRET

pytestmark = pytest.mark.anyio

RELAY_PATH = "/console/relay"
USER = "x1-plusfriend-9Q4tzK"


def account_url(account: UUID) -> str:
    return f"{RELAY_PATH}/accounts/{account}"


@pytest.mark.parametrize("path", ["", "/conversations", "/messages", "/failures", "/messages?status=QUEUED"])
async def test_empty_lists_say_that_they_are_empty(viewer: SignedInOperator, path: str) -> None:
    for language in ("ko", "en"):
        page = await viewer.get(RELAY_PATH + path, language)
        assert page.status_code == 200
        assert 'class="empty card"' in page.text


async def test_the_values_of_kakaos_skill_settings_are_shown_and_the_secret_only_to_admins(
    admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    seen, hidden = await admin.get(RELAY_PATH), await viewer.get(RELAY_PATH)

    for page in (seen, hidden):
        assert "http://127.0.0.1:8700/kakao-talkchannel/webhook" in page.text
        assert "<code>X-Pabal-Secret</code>" in page.text
    assert WEBHOOK_SECRET.get_secret_value() in seen.text
    assert WEBHOOK_SECRET.get_secret_value() not in hidden.text


async def test_a_webhook_that_refuses_everything_is_a_warning(database_urls: DatabaseUrls, settings: Settings) -> None:
    warnings: list[list[str]] = []
    for changes in ({}, {"webhook_secret": None}, {"webhook_secret": None, "webhook_open": True}):
        async with (
            open_hub(settings.model_copy(update=changes), database_urls) as hub,
            serve_hub(hub) as address,
            httpx2.AsyncClient(base_url=address) as web,
        ):
            page = await (await sign_in(hub, web, Role.VIEWER, f"viewer-{len(warnings)}")).get(RELAY_PATH)
        warnings.append(re.findall(r'class="verdict warning" role="status">(.*?)</p>', page.text))

    assert warnings[0] == []
    [[closed], [opened]] = warnings[1:]
    assert "it refuses every message from Kakao" in closed
    assert "PABAL_WEBHOOK_OPEN is set" in opened


async def test_an_account_is_listed_with_its_counts(
    hub: Hub, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub, "minu", rate_limit=77)
    await add_account(hub, "other")
    await pair_user(hub, USER, bot.account)
    await message_log.insert_message(bot.account, USER)

    page = await viewer.get(f"{RELAY_PATH}?name=min")
    [row] = re.findall(r"<tbody>.*?</tbody>", page.text, re.DOTALL)

    assert page_text(row).split()[:7] == ["minu", "1", "0", "0", "1", "0", "77"]
    assert "other" not in row


async def test_an_account_shows_its_users_codes_and_messages(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    await pair_user(hub, USER, bot.account)
    await message_log.insert_message(bot.account, USER, "안녕하세요")
    code = await create_code(hub, bot.account)

    seen, hidden = await admin.get(account_url(bot.account)), await viewer.get(account_url(bot.account))

    assert f"/pair {code}" in seen.text
    assert "안녕하세요" in hidden.text
    assert code not in hidden.text, "a code pairs anyone who has it"
    assert "<form" not in hidden.text.partition('id="account"')[2]


async def test_an_admin_changes_how_an_accounts_users_get_answers(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator
) -> None:
    bot = await add_account(hub)
    url = account_url(bot.account)

    assert (await admin.post(f"{url}/answer-mode", answer_mode="synchronous")).status_code == 303
    assert (await admin.post(f"{url}/answer-mode", answer_mode="sometimes")).status_code == 400
    assert (await viewer.post(f"{url}/answer-mode", answer_mode="held")).status_code == 403

    assert "webhook response" in page_text((await viewer.get(url, "en")).text)
    assert '<option value="synchronous" selected>' in (await admin.get(url)).text


async def test_an_admin_renames_an_account(hub: Hub, admin: SignedInOperator, viewer: SignedInOperator) -> None:
    bot = await add_account(hub, "one")
    await add_account(hub, "two")
    url = account_url(bot.account)

    assert (await admin.post(f"{url}/rename", name=" 우리 봇 ")).status_code == 303
    assert (await admin.post(f"{url}/rename", name="two")).status_code == 409
    assert (await viewer.post(f"{url}/rename", name="mine")).status_code == 403

    assert "<h1>우리 봇</h1>" in (await viewer.get(url)).text
    assert 'value="우리 봇"' in (await admin.get(url)).text


async def test_the_full_user_key_is_shown_only_on_the_conversation_page(
    hub: Hub, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    await pair_user(hub, USER, bot.account)
    message = await message_log.insert_message(bot.account, USER)
    await message_log.insert_reply(message, outcome="refused", error="no")

    for path in (
        account_url(bot.account),
        f"{RELAY_PATH}/conversations",
        f"{RELAY_PATH}/messages",
        f"{RELAY_PATH}/failures",
    ):
        page = page_text((await viewer.get(path)).text)
        assert USER not in page, path
        assert "bot:x1-p…4tzK" in page
    for path in (f"{RELAY_PATH}/conversation?key=bot%3A{USER}", f"{RELAY_PATH}/messages/{message}"):
        assert USER in page_text((await viewer.get(path)).text)


async def test_a_message_shows_its_trace_and_reply_and_never_its_callback_url(
    hub: Hub, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    await pair_user(hub, USER, bot.account)
    message = await message_log.insert_message(bot.account, USER, "what is it?", callbackUrl=SECRET_URL, token="s3cret")
    await message_log.insert_reply(message, "it is this", "refused", "Kakao answered 400")

    page = await viewer.get(f"{RELAY_PATH}/messages/{message}")

    assert page.status_code == 200
    for text in ("what is it?", "it is this", "Kakao answered 400", "accepted from", "Refused"):
        assert text.lower() in page_text(page.text).lower()
    assert "capability" not in page.text
    assert "s3cret" not in page.text
    assert f"/console/trace?id={message}" in page.text


async def test_user_input_is_escaped_on_every_page(hub: Hub, admin: SignedInOperator, message_log: MessageLog) -> None:
    bot = await add_account(hub, HOSTILE)
    await pair_user(hub, HOSTILE, bot.account)
    await create_code(hub, bot.account, metadata={HOSTILE: HOSTILE})
    message = await message_log.insert_message(bot.account, HOSTILE, HOSTILE, **{HOSTILE: HOSTILE})
    await message_log.insert_reply(message, HOSTILE, "refused", HOSTILE)
    key = str(httpx2.QueryParams(key=key_of_user(HOSTILE)))

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
        page = await admin.get(RELAY_PATH + path)
        assert page.status_code == 200, path
        assert is_escaped(page), path
        assert "&lt;script&gt;" in page.text, path
    confirmation = await admin.post(f"{account_url(bot.account)}/delete")
    assert is_escaped(confirmation)
    assert html.escape(HOSTILE, quote=False)[:30] in confirmation.text


async def test_messages_are_filtered_and_paginated(hub: Hub, viewer: SignedInOperator, message_log: MessageLog) -> None:
    bot, other = await add_account(hub), await add_account(hub, "other")
    await pair_user(hub, USER, bot.account)
    mine = [await message_log.insert_message(bot.account, USER, f"number {n}") for n in range(60)]
    theirs = await message_log.insert_message(other.account, "somebody")
    await message_log.insert_reply(mine[0])

    listed: list[str] = []
    path: str | None = f"{RELAY_PATH}/messages?account=owner"
    while path:
        page = (await viewer.get(path)).text
        listed += re.findall(rf'data-row href="{RELAY_PATH}/messages/([^"]+)"', page)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(older[1]) if older else None

    assert listed == [str(message) for message in reversed(mine)]
    assert str(theirs) in (await viewer.get(f"{RELAY_PATH}/messages")).text
    acked = (await viewer.get(f"{RELAY_PATH}/messages?status=ACKED")).text
    assert re.findall(rf'data-row href="{RELAY_PATH}/messages/([^"]+)"', acked) == [str(mine[0])]
    assert "No messages match these filters." in (await viewer.get(f"{RELAY_PATH}/messages?account=nobody")).text
    assert (await viewer.get(f"{RELAY_PATH}/messages?status=EATEN")).status_code == 400


async def test_conversations_are_paginated_and_found_by_key(
    hub: Hub, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    await message_log.db.execute(
        "insert into conversation_mappings (conversation_key, kakao_channel_id, plusfriend_user_key) "
        "select 'bot:' || n, 'bot', n from generate_series(100, 170) n"
    )
    await pair_user(hub, USER, bot.account)

    listed: list[str] = []
    path: str | None = f"{RELAY_PATH}/conversations"
    while path:
        page = (await viewer.get(path)).text
        listed += re.findall(rf'data-row href="{RELAY_PATH}/conversation\?key=([^"]+)"', page)
        on = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(on[1]) if on else None

    assert listed == [*(f"bot%3A{n}" for n in range(100, 171)), f"bot%3A{USER}"]
    of_bot = (await viewer.get(f"{RELAY_PATH}/conversations?account={bot.account}")).text
    assert re.findall(r"data-row href", of_bot) == ["data-row href"]
    there = await viewer.get(f"{RELAY_PATH}/conversations?key=bot:{USER}")
    assert (there.status_code, there.headers["location"]) == (303, f"{RELAY_PATH}/conversation?key=bot%3A{USER}")
    assert (await viewer.get(f"{RELAY_PATH}/conversation?key=bot%3Anobody")).status_code == 404


async def test_failed_callbacks_are_listed_newest_first(
    hub: Hub, viewer: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    first, fine, last = [await message_log.insert_message(bot.account, USER) for _ in range(3)]
    await message_log.insert_reply(first, outcome="refused", error="no")
    await message_log.insert_reply(fine)
    await message_log.insert_reply(last, outcome="unknown", error="silence")

    page = (await viewer.get(f"{RELAY_PATH}/failures")).text

    assert re.findall(rf'data-row href="{RELAY_PATH}/messages/([^"]+)"', page) == [str(last), str(first)]
    assert "silence" in page


async def test_the_token_of_a_new_account_is_shown_once_and_not_stored(
    hub: Hub, admin: SignedInOperator, web: httpx2.AsyncClient, database_urls: DatabaseUrls, message_log: MessageLog
) -> None:
    created = await admin.post(f"{RELAY_PATH}/accounts", name="new bot", rate_limit="5")
    [token] = re.findall(r"<code>(prt_[\w-]{43})</code>", created.text)
    [url] = re.findall(rf'href="({RELAY_PATH}/accounts/[^"]+)"', created.text)

    assert created.status_code == 200
    assert created.headers["cache-control"] == "no-store"
    assert token not in str(created.headers)
    assert token not in (await admin.get(url)).text
    assert token.encode() not in await dump_database(database_urls)
    assert ("operator:the-admin", "account.created") in await message_log.audit_actions()
    status_with_token = await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {token}"})
    assert status_with_token.status_code == 200
    assert (await admin.post(f"{RELAY_PATH}/accounts", name="new bot")).status_code == 409
    for wrong in ("0", "many", "٣", "9" * 40):
        assert (await admin.post(f"{RELAY_PATH}/accounts", name="next", rate_limit=wrong)).status_code == 400


async def test_a_rotated_token_replaces_the_previous_one(
    hub: Hub, admin: SignedInOperator, web: httpx2.AsyncClient
) -> None:
    bot = await add_account(hub)
    await create_code(hub, bot.account)

    confirmation = await admin.post(f"{account_url(bot.account)}/rotate")
    assert "1 unused pairing code stop" in confirmation.text
    await create_code(hub, bot.account)  # new codes must not block the rotation
    done = await admin.post(f"{account_url(bot.account)}/rotate", count="1")
    [token] = re.findall(r"<code>(prt_[\w-]{43})</code>", done.text)

    async def status_with_token(shown: str) -> int:
        return (await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {shown}"})).status_code

    assert [await status_with_token(bot.token), await status_with_token(token)] == [401, 200]


async def test_deleting_requires_the_exact_count(hub: Hub, admin: SignedInOperator, message_log: MessageLog) -> None:
    bot = await add_account(hub)
    await pair_user(hub, USER, bot.account)
    await message_log.insert_message(bot.account, USER)
    path = f"{account_url(bot.account)}/delete"

    confirmation = await admin.post(path)
    assert "its 1 message will be deleted. Its conversations (1) are disconnected." in page_text(confirmation.text)
    await message_log.insert_message(bot.account, USER, "meanwhile")
    again = await admin.post(path, count="1", conversations="1")
    assert "its 2 messages will be deleted." in page_text(again.text)
    assert await message_log.count("accounts") == 1
    assert "its 2 messages will be deleted." in page_text((await admin.post(path, count="2", conversations="0")).text)
    done = await admin.post(path, count="2", conversations="1")

    assert (done.status_code, done.headers["location"]) == (303, RELAY_PATH)
    assert [await message_log.count(table) for table in ("accounts", "inbound_messages")] == [0, 0]
    assert await conversation_state_of(message_log.db, USER) == ("UNPAIRED", None)
    assert ("operator:the-admin", "account.deleted") in await message_log.audit_actions()
    assert (await admin.post(path)).status_code == 404


async def test_of_two_concurrent_deletions_one_succeeds(
    hub: Hub, admin: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)

    responses = await asyncio.gather(
        *(admin.post(f"{account_url(bot.account)}/delete", count="0", conversations="0") for _ in range(2))
    )

    assert sorted(response.status_code for response in responses) == [303, 404]
    assert [action for action in await message_log.audit_actions() if action[1] == "account.deleted"] == [
        ("operator:the-admin", "account.deleted")
    ]


async def test_disabling_names_what_it_cancels_and_enabling_reverts_it(
    hub: Hub, admin: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)
    message = await message_log.insert_message(bot.account, USER)

    confirmation = await admin.post(f"{account_url(bot.account)}/disable")
    assert "1 open message is cancelled" in page_text(confirmation.text)
    await message_log.insert_message(bot.account, USER, "a new message must not block it")
    await admin.post(f"{account_url(bot.account)}/disable", count="1")
    assert "Disabled since" in (await admin.get(account_url(bot.account))).text
    assert await message_log.db.fetchval("select reason from inbound_messages where id = $1", message) == "disabled"
    await admin.post(f"{account_url(bot.account)}/enable")

    assert "Disabled since" not in (await admin.get(account_url(bot.account))).text
    assert [what for _, what in await message_log.audit_actions()][-2:] == ["account.disabled", "account.enabled"]


@pytest.mark.parametrize(
    ("action", "before", "after", "audit_action"),
    [
        ("unpair", "PAIRED", "UNPAIRED", "pairing.unpaired"),
        ("block", "PAIRED", "BLOCKED", "conversation.blocked"),
        ("unblock", "BLOCKED", "PAIRED", "conversation.unblocked"),
        ("approve", "PENDING", "PAIRED", "pairing.approved"),
        ("deny", "PENDING", "UNPAIRED", "pairing.denied"),
    ],
)
async def test_only_an_admin_can_change_a_conversation(
    hub: Hub,
    admin: SignedInOperator,
    viewer: SignedInOperator,
    message_log: MessageLog,
    action: str,
    before: str,
    after: str,
    audit_action: str,
) -> None:
    bot = await add_account(hub)
    await pair_user(hub, USER, bot.account)
    await message_log.db.execute("update conversation_mappings set state = $1", before)
    await message_log.insert_message(bot.account, USER)
    path, key = f"{RELAY_PATH}/conversation/{action}", key_of_user(USER)

    assert (await viewer.post(path, key=key, count="1")).status_code == 403
    assert (await admin.post(path, key=key, count="1", csrf_token="00")).status_code == 403
    if action in {"unpair", "block"}:
        assert "1 open message is cancelled" in (await admin.post(path, key=key)).text
    assert (await conversation_state_of(message_log.db, USER))[0] == before
    await message_log.insert_message(bot.account, USER, "who is to be blocked cannot hinder it by writing")
    done = await admin.post(path, key=key, count="1")

    assert done.status_code == 303
    assert (await conversation_state_of(message_log.db, USER))[0] == after
    assert ("operator:the-admin", audit_action) in await message_log.audit_actions()
    assert await message_log.db.fetchval(
        "select subject from pabal.audit_log where action = $1", audit_action
    ) == conversation_pseudonym(key)
    assert (await admin.post(path, key="bot:nobody", count="0")).status_code == 404
    assert (await admin.post(f"{RELAY_PATH}/conversation/eat", key=key)).status_code == 404


@pytest.mark.parametrize("action", ["disable", "enable", "rotate", "delete", "code"])
async def test_account_actions_require_an_admin_and_a_csrf_token(
    hub: Hub, admin: SignedInOperator, viewer: SignedInOperator, message_log: MessageLog, action: str
) -> None:
    bot = await add_account(hub)
    before = await message_log.db.fetchrow("select * from accounts"), await message_log.audit_actions()
    path = f"{account_url(bot.account)}/{action}"

    assert (await viewer.post(path, count="0", conversations="0")).status_code == 403
    assert (await admin.post(path, count="0", conversations="0", csrf_token="ff")).status_code == 403
    assert (await viewer.post(f"{RELAY_PATH}/accounts", name="mine")).status_code == 403
    assert (await admin.post(f"{RELAY_PATH}/accounts", name="mine", csrf_token="ff")).status_code == 403

    assert (await message_log.db.fetchrow("select * from accounts"), await message_log.audit_actions()) == before
    assert await message_log.count("pairing_codes") == 0


async def test_a_pairing_code_of_the_console_pairs_a_user(
    hub: Hub, admin: SignedInOperator, message_log: MessageLog
) -> None:
    bot = await add_account(hub)

    created = await admin.post(f"{account_url(bot.account)}/code")
    page = await admin.get(created.headers["location"])
    [code] = re.findall(r"/pair ([A-Z0-9]{4}-[A-Z0-9]{4})", page.text)
    await send_command(hub, USER, f"/pair {code}")

    assert await conversation_state_of(message_log.db, USER) == ("PAIRED", bot.account)
    assert ("operator:the-admin", "pairing.code_made") in await message_log.audit_actions()
