"""The portal: signing in with a token, its revocation, and isolation of accounts."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest

from pabal.console.format import redact_user_key
from pabal.console.portal.login import PORTAL_COOKIE
from pabal.core.actor import Actor
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay import web_sessions
from pabal.relay.accounts import disable_account, enable_account, rotate_relay_token
from pabal.settings import Settings
from relay.people import (
    RelayAccount,
    add_account,
    conversation_state_of,
    create_code,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.dump import dump_database
from support.operator import HOSTILE, is_escaped
from support.relay_log import SECRET_URL, MessageLog, csrf_token_in, page_text
from support.revoked_account import MINA
from support.server import serve_hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
JUN = "jun-plusfriend-2"
OPERATOR = Actor("operator:mina")


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as where:
        yield where


@asynccontextmanager
async def browser(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    headers = {"origin": address, "accept-language": "en"}
    async with httpx2.AsyncClient(base_url=address, headers=headers) as client:
        yield client


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with browser(address) as client:
        yield client


async def sign_in_to_portal(web: httpx2.AsyncClient, token: str) -> str:
    """Sign in and return the CSRF token."""
    response = await web.post("/portal/login", data={"token": token})
    assert (response.status_code, response.headers.get("location")) == (303, "/portal"), response.text
    return csrf_token_in((await web.get("/portal")).text)


async def test_a_token_is_exchanged_for_a_different_cookie(
    web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog, database_urls: DatabaseUrls
) -> None:
    form = await web.get("/portal")
    assert (form.status_code, form.headers["location"]) == (303, "/portal/login")
    response = await web.post("/portal/login", data={"token": f" {paired_account.token} "})
    set_cookie = response.headers["set-cookie"]

    assert {"HttpOnly", "Path=/portal", "SameSite=lax"} <= {*set_cookie.split("; ")}
    assert paired_account.token not in str(response.headers)
    page = await web.get("/portal")
    assert page.status_code == 200
    assert "mine" in page_text(page.text)
    assert paired_account.token not in page.text
    dump = await dump_database(database_urls)
    assert paired_account.token.encode() not in dump
    assert web.cookies[PORTAL_COOKIE].encode() not in dump
    assert (f"account:{paired_account.account}", "portal.signed_in") in await message_log.audit_actions()


async def test_the_cookie_is_secure_behind_https(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        serve_hub(hub) as address,
        browser("https://hub.example.org") as web,
    ):
        owner = await add_account(hub)
        response = await web.post(f"{address}/portal/login", data={"token": owner.token})

    assert "Secure" in response.headers["set-cookie"].split("; ")


@pytest.mark.parametrize("token", ["", "nonsense", "prt_" + "a" * 43, "f" * 64, "\ud800", HOSTILE, "x" * 8_000])
async def test_an_invalid_token_is_refused(web: httpx2.AsyncClient, message_log: MessageLog, token: str) -> None:
    response = await web.post("/portal/login", content=b"token=" + token.encode("utf-8", "surrogatepass"))

    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert is_escaped(response)
    assert await message_log.audit_actions() == [("anonymous", "portal.refused")]


async def test_sign_in_is_rate_limited(web: httpx2.AsyncClient, paired_account: RelayAccount) -> None:
    for _ in range(web_sessions.PORTAL_SIGN_IN_LIMIT.count):
        await web.post("/portal/login", data={"token": "guess"})
    response = await web.post("/portal/login", data={"token": paired_account.token})

    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0


async def test_rotating_the_token_ends_all_sessions_but_this_one(
    hub: Hub, address: str, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    await create_code(hub, paired_account.account)
    async with browser(address) as elsewhere:
        await sign_in_to_portal(elsewhere, paired_account.token)

        confirmation = await web.post("/portal/rotate", data={"csrf_token": csrf_token})
        assert "1 unused pairing code stop" in confirmation.text
        await create_code(hub, paired_account.account)  # new codes must not block the rotation
        done = await web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "1"})
        [token] = re.findall(r"<code>(prt_[\w-]{43})</code>", done.text)

        assert (await elsewhere.get("/portal")).headers["location"] == "/portal/login"
        assert (await web.get("/portal")).status_code == 200
        assert token not in (await web.get("/portal")).text
        await sign_in_to_portal(elsewhere, token)
    door = [
        (await web.get("/openclaw/pairing/list", headers={"authorization": f"Bearer {bearer}"})).status_code
        for bearer in (paired_account.token, token)
    ]
    assert door == [401, 200]
    assert (f"account:{paired_account.account}", "account.token_rotated") in await message_log.audit_actions()


async def test_a_revoked_token_or_disabled_account_ends_the_session_at_once(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, travel: Travel, message_log: MessageLog
) -> None:
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    async with hub.transaction() as tx:
        await disable_account(tx, paired_account.account, OPERATOR)
    assert (await web.get("/portal")).status_code == 303
    assert (await web.post("/portal/code", data={"csrf_token": csrf_token})).headers["location"] == "/portal/login"
    refused = await web.post("/portal/login", data={"token": paired_account.token})
    assert (refused.status_code, "disabled" in refused.text) == (403, True)
    async with hub.transaction() as tx:
        await enable_account(tx, paired_account.account, OPERATOR)
    assert (await web.get("/portal")).status_code == 200
    await travel(web_sessions.PORTAL_SESSION_LIFETIME)
    assert (await web.get("/portal")).status_code == 303
    await hub.chores.run_due()
    assert await message_log.count("pabal.portal_sessions") == 0
    await sign_in_to_portal(web, paired_account.token)
    async with hub.transaction() as tx:
        await rotate_relay_token(tx, paired_account.account, OPERATOR)
    assert (await web.get("/portal")).status_code == 303
    assert await message_log.count("pairing_codes where used_at is null") == 0


async def test_an_unpaired_session_shows_its_code_until_it_is_paired(
    hub: Hub, web: httpx2.AsyncClient, message_log: MessageLog
) -> None:
    session = await new_session(hub)
    csrf_token = await sign_in_to_portal(web, session.token)

    waiting = await web.get("/portal")
    assert f"/pair {session.code}" in waiting.text
    assert "Waiting to be paired" in waiting.text
    nothing = [
        await web.get("/portal/messages"),
        await web.get(f"/portal/messages/{new_id()}"),
        await web.post("/portal/code", data={"csrf_token": csrf_token}),
        await web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "0"}),
        await web.post(
            "/portal/conversation/block", data={"csrf_token": csrf_token, "key": key_of_user(MINA), "count": "0"}
        ),
    ]
    assert {response.status_code for response in nothing} == {404}
    await send_command(hub, MINA, f"/pair {session.code}")

    page = await web.get("/portal")
    assert "bot:mina…nd-1" in page.text
    assert "session token" in page.text
    assert (await web.post("/portal/rotate", data={"csrf_token": csrf_token, "count": "0"})).status_code == 404
    assert (f"session:{session.id}", "portal.signed_in") in await message_log.audit_actions()


async def test_a_session_that_was_not_paired_in_time_is_signed_out(
    hub: Hub, web: httpx2.AsyncClient, travel: Travel
) -> None:
    session = await new_session(hub)
    await sign_in_to_portal(web, session.token)
    await travel(timedelta(minutes=6))

    assert (await web.get("/portal")).headers["location"] == "/portal/login"


@pytest.mark.parametrize(
    ("action", "before", "after", "audit_action"),
    [
        ("unpair", "PAIRED", "UNPAIRED", "pairing.unpaired"),
        ("block", "PAIRED", "BLOCKED", "conversation.blocked"),
        ("approve", "PENDING", "PAIRED", "pairing.approved"),
        ("deny", "PENDING", "UNPAIRED", "pairing.denied"),
    ],
)
async def test_an_owner_manages_only_their_own_users(
    web: httpx2.AsyncClient,
    paired_account: RelayAccount,
    message_log: MessageLog,
    action: str,
    before: str,
    after: str,
    audit_action: str,
) -> None:
    await message_log.db.execute("update conversation_mappings set state = $1", before)
    await message_log.insert_message(paired_account.account, MINA)
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    form = {"csrf_token": csrf_token, "key": key_of_user(MINA)}

    if action in {"unpair", "block"}:
        assert "1 open message is cancelled" in (await web.post(f"/portal/conversation/{action}", data=form)).text
        assert (await conversation_state_of(message_log.db, MINA))[0] == before
        await message_log.insert_message(
            paired_account.account, MINA, "who is to be blocked cannot hinder it by writing"
        )
    done = await web.post(f"/portal/conversation/{action}", data=form | {"count": "1"})

    assert (done.status_code, done.headers["location"]) == (303, "/portal")
    assert (await conversation_state_of(message_log.db, MINA))[0] == after
    assert (f"account:{paired_account.account}", audit_action) in await message_log.audit_actions()
    if action == "block":
        await web.post("/portal/conversation/unblock", data=form)
        assert (await conversation_state_of(message_log.db, MINA))[0] == "PAIRED"


async def test_an_owner_cannot_undo_a_block_by_an_operator(
    web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    await message_log.db.execute("update conversation_mappings set state = 'BLOCKED'")
    csrf_token = await sign_in_to_portal(web, paired_account.token)

    page = await web.get("/portal")
    refused = await web.post("/portal/conversation/unblock", data={"csrf_token": csrf_token, "key": key_of_user(MINA)})

    assert "by an operator" in page.text
    assert "/portal/conversation/" not in page.text
    assert refused.status_code == 409
    assert (await conversation_state_of(message_log.db, MINA))[0] == "BLOCKED"


async def test_nothing_of_another_account_is_shown(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    other = await add_account(hub, "zorro")
    await pair_user(hub, JUN, other.account)
    theirs = await message_log.insert_message(other.account, JUN, "between us")
    await message_log.insert_reply(theirs, "of course")
    code = await create_code(hub, other.account)
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    before = await load_state(message_log)

    for path in ("/portal", "/portal/messages", f"/portal/messages?conversation=bot%3A{JUN}", f"/portal?cursor={JUN}"):
        page = await web.get(path)
        for secret in ("between us", "of course", code, "zorro", redact_user_key(key_of_user(JUN))):
            assert secret not in page_text(page.text), path
    assert (await web.get(f"/portal/messages/{theirs}")).status_code == 404
    for action in ("unpair", "block", "unblock", "approve", "deny", "eat"):
        for count in ("", "0", "1"):  # the count of another account's messages is not revealed
            form = {"csrf_token": csrf_token, "key": key_of_user(JUN), "count": count, "account": str(other.account)}
            assert (await web.post(f"/portal/conversation/{action}", data=form)).status_code == 404
    await web.post("/portal/code", data={"csrf_token": csrf_token, "account": str(other.account)})

    after = await load_state(message_log)
    assert after["accounts"] == before["accounts"]
    assert after["conversations"] == before["conversations"]
    assert after["messages"] == before["messages"]
    assert (
        await message_log.count(f"pairing_codes where account_id = '{paired_account.account}' and used_at is null") == 1
    )
    assert await message_log.count(f"pairing_codes where account_id = '{other.account}' and used_at is null") == 1


async def load_state(message_log: MessageLog) -> dict[str, list[str]]:
    tables = {"accounts": "id", "conversation_mappings": "conversation_key", "inbound_messages": "id"}
    names = ("accounts", "conversations", "messages")
    return {
        name: [str(row) for row in await message_log.db.fetch(f"select * from {table} order by {order}")]
        for name, (table, order) in zip(names, tables.items(), strict=True)
    }


async def test_messages_are_shown_with_their_replies_and_states(
    web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    message = await message_log.insert_message(paired_account.account, MINA, "what is it?", token="s3cret")
    await message_log.insert_reply(message, "it is this", "refused", "Kakao answered 400")
    waits = await message_log.insert_message(paired_account.account, MINA, "still there?")
    await sign_in_to_portal(web, paired_account.token)

    page = await web.get("/portal/messages")
    for text in ("what is it?", "it is this", "refused by Kakao", "still there?"):
        assert text in page.text
    one = await web.get(f"/portal/messages/{message}")
    for text in ("what is it?", "it is this", "Kakao answered 400", key_of_user(MINA)):
        assert text in one.text
    for secret in ("s3cret", SECRET_URL):
        assert secret not in page.text + one.text
    queued = (await web.get("/portal/messages?status=QUEUED")).text
    assert re.findall(r'data-row href="/portal/messages/([^"]+)"', queued) == [str(waits)]


async def test_user_messages_are_escaped(hub: Hub, web: httpx2.AsyncClient, message_log: MessageLog) -> None:
    owner = await add_account(hub, HOSTILE)
    await pair_user(hub, HOSTILE, owner.account)
    message = await message_log.insert_message(owner.account, HOSTILE, HOSTILE, **{HOSTILE: HOSTILE})
    await message_log.insert_reply(message, HOSTILE, "refused", HOSTILE)
    csrf_token = await sign_in_to_portal(web, owner.token)

    conversation = httpx2.QueryParams(conversation=key_of_user(HOSTILE))
    for path in ("/portal", "/portal/messages", f"/portal/messages?{conversation}", f"/portal/messages/{message}"):
        page = await web.get(path)
        assert page.status_code == 200
        assert is_escaped(page), path
        assert "&lt;script&gt;" in page.text, path
    confirmation = await web.post(
        "/portal/conversation/block", data={"csrf_token": csrf_token, "key": key_of_user(HOSTILE)}
    )
    assert is_escaped(confirmation)
    assert "&lt;script&gt;" in confirmation.text


async def test_pairing_codes_are_created_up_to_the_limit(
    hub: Hub, web: httpx2.AsyncClient, paired_account: RelayAccount, message_log: MessageLog
) -> None:
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    for _ in range(5):
        assert (await web.post("/portal/code", data={"csrf_token": csrf_token})).status_code == 303
    page = (await web.get("/portal")).text
    codes = re.findall(r"/pair ([A-Z0-9]{4}-[A-Z0-9]{4})", page)

    assert len({*codes}) == 5
    assert "You have reached the limit of active pairing codes" in page
    assert (await web.post("/portal/code", data={"csrf_token": csrf_token})).status_code == 429
    await send_command(hub, JUN, f"/pair {codes[0]}")
    assert await conversation_state_of(message_log.db, JUN) == ("PAIRED", paired_account.account)


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
async def test_cross_site_requests_with_the_cookie_are_refused(
    web: httpx2.AsyncClient, address: str, paired_account: RelayAccount, message_log: MessageLog, origin: str | None
) -> None:
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    actions = ("code", "rotate", "leave", "conversation/block", "conversation/unpair")
    form = {"key": key_of_user(MINA), "count": "0"}
    forged = [await web.post(f"/portal/{action}", data=form | {"csrf_token": "f" * 64}) for action in actions]
    headers = {"origin": origin} if origin else {}
    async with httpx2.AsyncClient(
        base_url=address, headers=headers, cookies={PORTAL_COOKIE: web.cookies[PORTAL_COOKIE]}
    ) as elsewhere:
        forged += [
            await elsewhere.post(f"/portal/{action}", data=form | {"csrf_token": csrf_token}) for action in actions
        ]
        forged.append(await elsewhere.post("/portal/login", data={"token": paired_account.token}))

    assert {response.status_code for response in forged} == {403}
    assert (await web.get("/portal")).status_code == 200
    assert (await conversation_state_of(message_log.db, MINA))[0] == "PAIRED"
    assert await message_log.count("pairing_codes where used_at is null") == 0


async def test_signing_out_ends_the_session(web: httpx2.AsyncClient, paired_account: RelayAccount) -> None:
    csrf_token = await sign_in_to_portal(web, paired_account.token)
    cookie = web.cookies[PORTAL_COOKIE]
    assert (await web.post("/portal/leave", data={"csrf_token": csrf_token})).headers["location"] == "/portal/login"
    web.cookies.set(PORTAL_COOKIE, cookie, path="/portal")

    for path in ("/portal", "/portal/messages", "/portal/live"):
        assert (await web.get(path)).headers["location"] == "/portal/login"
    assert (await web.get("/portal/nowhere")).status_code == 404
