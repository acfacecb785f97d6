"""Erasing and exporting a conversation covers every row of it."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import CallbackFailed, Conflict, NotFound
from pabal.hub import DatabaseUrls, Hub
from pabal.relay.delivery.control_events import ControlEventKind, purge_control_events, send_control_event
from pabal.relay.delivery.lane import LANE
from pabal.relay.event_outbox import publish_queued_events
from pabal.relay.privacy import ConversationDataCounts, count_conversation_data, erase_conversation, export_conversation
from pabal.relay.webhook.message_events import publish_message_events
from relay.bot import connect_stream
from relay.skills import send_message
from support.dump import dump_database
from support.fake_kakao import FakeKakao, kakao_response
from support.receiver import respond_after
from support.relay_rows import Bot, Chat, Owner, skill_response
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINA = Actor("operator:mina")
USER = "x1-plusfriend-9Q4tzK"
KEY = f"channel:{USER}"
TEXT = "아무에게도 말하지 마"
REPLY = "비밀은 지킬게요"


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as url:
        yield url


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address) as client:
        yield client


@pytest.fixture
async def person(hub: Hub, chat: Chat, fake_kakao: FakeKakao) -> Bot:
    return await Bot.of(hub, chat, fake_kakao, USER)


async def send(web: httpx2.AsyncClient, text: str, user: str = USER, callback: str | None = None) -> Any:
    return await send_message(web, text, user, callbackUrl=callback)


async def newest_message(person: Bot) -> Any:
    return await person.chat.db.fetchval("select id from inbound_messages order by seq desc limit 1")


async def create_personal_data(person: Bot, web: httpx2.AsyncClient) -> None:
    """Leave rows in every table that stores something about a user."""
    db, hub = person.chat.db, person.hub
    await db.execute(
        """
        update public.services set permissions = '["write", "hub:events"]' where name = 'minu_build';
        insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', 'pull', '{relay.*}');
        """
    )
    await send(web, TEXT, callback=person.kakao.url("sent"))
    await person.send_reply(await newest_message(person), REPLY)
    person.kakao.responder = kakao_response("FAIL", "no")
    await send(web, TEXT, callback=person.kakao.url("refused"))
    with pytest.raises(CallbackFailed):
        await person.send_reply(await newest_message(person), REPLY)
    await person.send_late_reply(REPLY)
    await send(web, f"{TEXT}, again", callback=person.kakao.url("held"))
    async with hub.autocommit() as tx:
        assert await LANE.claim(tx, 10, timedelta(minutes=1), "poll:tester", person.owner.id)
    await send(web, f"{TEXT}, once more", callback=person.kakao.url("queued"))
    for command in ("/status", "/code", "/pair AAAA-BBBB"):
        await send(web, command, callback=person.kakao.url(command[1:5]))
    await db.execute(
        "insert into pairing_codes (code, account_id, expires_at, used_at, used_by) "
        "values ('AAAA-CCCC', $1, pabal.now(), pabal.now(), $2)",
        person.owner.id,
        KEY,
    )
    await person.chat.session(person.owner.id, used_by=KEY)
    async with hub.transaction() as tx:
        await send_control_event(
            tx, ControlEventKind.PAIRED, account=person.owner.id, conversationKey=KEY, kakaoUserId=USER
        )
    async with hub.autocommit() as tx:
        assert await publish_message_events(tx, 100)
        assert await publish_queued_events(tx, 100)
    await db.execute(
        "insert into pabal.relay_event_outbox (event_type, payload) "
        "values ('relay.callback.failed', jsonb_build_object('conversation_key', $1::text))",
        KEY,
    )
    await db.execute("update event_queue set status = 'failed' where target_service = 'minu_build'")


async def erase(hub: Hub, key: str = KEY) -> ConversationDataCounts:
    async with hub.transaction() as tx:
        return await erase_conversation(tx, key, MINA)


async def export(hub: Hub, key: str = KEY) -> dict[str, Any]:
    async with hub.transaction() as tx:
        return await export_conversation(tx, key, MINA)


TABLES = (
    "conversation_mappings",
    "inbound_messages",
    "relay_replies",
    "command_answers",
    "pairing_failures",
    "conversation_codes",
    "pairing_codes",
    "relay_sessions",
    "relay_control_events",
    "event_queue",
    "dead_letter_queue",
)


async def count_rows_with_key(person: Bot, key: str = KEY) -> dict[str, int]:
    """How many rows of each table contain the key in any column."""
    tables = [f"public.{name}" for name in TABLES] + ["pabal.limits", "pabal.relay_event_outbox", "pabal.audit_log"]
    counts = {
        table.partition(".")[2]: await person.chat.db.fetchval(
            f"select count(*) from {table} t where to_jsonb(t)::text like '%' || $1 || '%'", key
        )
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}


async def test_a_dump_contains_nothing_of_an_erased_user(
    person: Bot, web: httpx2.AsyncClient, hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    await create_personal_data(person, web)
    secrets = [word.encode() for word in (USER, TEXT, REPLY, "secret=capability", "/chat?code=")]
    before = await dump_database(database_urls)
    assert [word for word in secrets if word not in before] == []
    assert (await count_rows_with_key(person)).keys() == {*TABLES, "limits", "relay_event_outbox"}
    expected_counts = await count_data(hub)

    deleted = await erase(hub)

    assert deleted == expected_counts
    assert (deleted.messages, deleted.replies, deleted.dead_letters) == (5, 3, 5)
    assert deleted.total == deleted.messages + deleted.replies + deleted.events + deleted.dead_letters + deleted.others
    assert await count_rows_with_key(person) == {"relay_control_events": 1}, "open streams have not read it yet"
    await travel(timedelta(minutes=11))
    async with hub.transaction() as tx:
        await purge_control_events(tx, 100)
    after = await dump_database(database_urls)
    assert [word for word in secrets if word in after] == []
    assert b"INSERT INTO public.accounts" in after
    assert b"INSERT INTO pabal.audit_log" in after


async def count_data(hub: Hub, key: str = KEY) -> ConversationDataCounts:
    async with hub.autocommit() as tx:
        return await count_conversation_data(tx, key)


async def test_the_erasure_is_audited_under_a_pseudonym(person: Bot, web: httpx2.AsyncClient, hub: Hub) -> None:
    await create_personal_data(person, web)

    await export(hub)
    deleted = await erase(hub)

    digest = hashlib.sha256(KEY.encode()).hexdigest()[:16]
    assert conversation_pseudonym(KEY) == f"conversation:{digest}"
    rows = await person.chat.db.fetch(
        "select actor, action, details from pabal.audit_log where subject = $1 order by id", conversation_pseudonym(KEY)
    )
    assert [(row["actor"], row["action"]) for row in rows] == [
        ("operator:mina", "conversation.exported"),
        ("operator:mina", "conversation.erased"),
    ]
    details = json.loads(rows[1]["details"])
    assert (details["account"], details["messages"]) == (str(person.owner.id), deleted.messages)


async def test_rows_of_other_users_are_kept(
    person: Bot, web: httpx2.AsyncClient, hub: Hub, fake_kakao: FakeKakao
) -> None:
    await create_personal_data(person, web)
    other_users = (f"{USER}2", "other")
    for user in other_users:
        key = await person.chat.conversation(person.owner, user)
        await send(web, TEXT, user, fake_kakao.url(user))
        await send(web, "/status", user)
        async with hub.transaction() as tx:
            await send_control_event(tx, ControlEventKind.PAIRED, account=person.owner.id, conversationKey=key)
            assert await publish_message_events(tx, 100)
    before = [await count_rows_with_key(person, f"channel:{user}") for user in other_users]
    accounts = await person.chat.db.fetchval("select count(*) from accounts")

    await erase(hub)

    assert all(
        counts["limits"] == 1 and counts["event_queue"] >= 1 and counts["inbound_messages"] == 1 for counts in before
    )
    assert [await count_rows_with_key(person, f"channel:{user}") for user in other_users] == before
    assert await person.chat.db.fetchval("select count(*) from accounts") == accounts
    code_row = await person.chat.db.fetchrow("select used_at, used_by from pairing_codes where code = 'AAAA-CCCC'")
    assert code_row
    assert code_row["used_at"] is not None
    assert code_row["used_by"] is None


async def test_open_streams_get_an_event_and_the_session_stays(
    person: Bot, web: httpx2.AsyncClient, hub: Hub, address: str
) -> None:
    token = await person.chat.session(person.owner.id, used_by=KEY)
    await send(web, TEXT, callback=person.kakao.url("first"))
    async with connect_stream(address, token) as client:
        message = await client.next_message()

        await erase(hub)

        event = await client.next("unpaired")
        assert message["conversationKey"] == KEY
        assert event.data == {"conversationKey": KEY, "reason": "erased"}
        status = (await web.get(f"/v1/sessions/{token}/status")).json()
        assert status["status"] == "disconnected"


async def test_an_erased_user_who_returns_is_new(person: Bot, web: httpx2.AsyncClient, hub: Hub) -> None:
    await send(web, TEXT)
    await erase(hub)

    response = await send(web, TEXT)

    assert "/pair" in response["template"]["outputs"][0]["simpleText"]["text"]
    row = await person.chat.db.fetchrow(
        "select state, first_seen_at = last_seen_at as is_new from conversation_mappings"
    )
    assert row
    assert (row["state"], row["is_new"]) == ("UNPAIRED", True)
    assert await person.chat.db.fetchval("select count(*) from inbound_messages") == 0


async def test_a_concurrent_webhook_waits_and_finds_no_pairing(person: Bot, web: httpx2.AsyncClient, hub: Hub) -> None:
    async with hub.transaction() as tx:
        await erase_conversation(tx, KEY, MINA)
        webhook = asyncio.create_task(send(web, TEXT, callback=person.kakao.url("first")))
        await wait_until(lambda: bool(hub.relay.webhook_batcher._retries))

    response = await webhook

    assert "useCallback" not in response
    assert await person.chat.db.fetchval("select count(*) from inbound_messages") == 0


async def test_a_reply_in_flight_is_sent_and_leaves_no_row(person: Bot, web: httpx2.AsyncClient, hub: Hub) -> None:
    await send(web, TEXT, callback=person.kakao.url("first"))
    message, arrive = await newest_message(person), asyncio.Event()
    person.kakao.responder = respond_after(arrive, kakao_response("SUCCESS"))
    answering = asyncio.create_task(person.send_reply(message, REPLY))
    await wait_until(lambda: person.kakao.posts == 1)

    await erase(hub)
    arrive.set()
    delivered = await answering

    assert delivered.delivered_at_ms > 0
    assert person.kakao.texts("first") == [[REPLY]]
    assert await person.chat.db.fetchval("select count(*) from relay_replies") == 0


async def test_a_blocked_conversation_cannot_be_erased(person: Bot, hub: Hub) -> None:
    await person.chat.db.execute("update conversation_mappings set state = 'BLOCKED'")

    with pytest.raises(Conflict, match="Unblock it first"):
        await erase(hub)

    assert await person.chat.db.fetchval("select state from conversation_mappings") == "BLOCKED"


async def test_an_unknown_conversation_is_not_found(hub: Hub) -> None:
    for action in (erase, export, count_data):
        with pytest.raises(NotFound, match="No such conversation"):
            await action(hub, "channel:unknown")


async def test_an_export_contains_all_messages_and_replies(
    person: Bot, web: httpx2.AsyncClient, hub: Hub, chat: Chat, fake_kakao: FakeKakao
) -> None:
    await create_personal_data(person, web)
    other: Owner = await chat.owner()
    await chat.conversation(other, "other")
    await send(web, "not theirs", "other", fake_kakao.url("other"))

    document = json.loads(json.dumps(await export(hub)))

    assert document["conversation"]["plusfriend_user_key"] == USER
    assert document["conversation"]["state"] == "PAIRED"
    rows = await chat.db.fetch(
        "select id, kakao_payload, normalized from inbound_messages where conversation_key = $1 order by seq", KEY
    )
    assert [message["id"] for message in document["messages"]] == [str(row["id"]) for row in rows]
    for message, row in zip(document["messages"], rows, strict=True):
        payload = json.loads(row["kakao_payload"])
        payload.get("userRequest", {}).pop("callbackUrl", None)
        assert message["kakao_payload"] == payload
        assert message["normalized"] == json.loads(row["normalized"])
    replies = [message["reply"] and message["reply"]["state"] for message in document["messages"]]
    assert replies == ["sent", "refused", "late", None, None]
    assert document["messages"][0]["reply"]["response"]["template"]["outputs"] == [{"simpleText": {"text": REPLY}}]
    assert {pairing["kind"]: pairing["account_id"] for pairing in document["pairings"]} == dict.fromkeys(
        ("code", "session"), str(person.owner.id)
    )
    assert document["wrong_codes"]["failures"] == 1
    assert (len(document["commands"]), len(document["pages"])) == (3, 1)
    assert {event["event_type"] for event in document["events"]} >= {"relay.message.received", "relay.callback.failed"}
    text = json.dumps(document)
    for secret in ("capability", "/chat?code=", person.owner.token, str(other.id), "not theirs", "token_hash"):
        assert secret not in text


async def test_further_blocks_are_exported_counted_and_erased(person: Bot, hub: Hub) -> None:
    message = await person.insert_message("first")
    await person.send_reply(message, "one")
    await person.send_block(message, "a further block")

    [exported] = (await export(hub))["messages"]
    counts = await count_data(hub)
    await erase(hub)

    assert [reply["response"] for reply in exported["further_replies"]] == [skill_response("a further block")]
    assert counts.replies == 2
    assert await person.chat.db.fetchval("select count(*) from relay_replies") == 0


async def test_an_export_contains_the_audit_entries(person: Bot, hub: Hub) -> None:
    first = await export(hub)
    second = await export(hub)

    assert first["deeds"] == []
    [entry] = second["deeds"]
    assert (entry["actor"], entry["action"]) == ("operator:mina", "conversation.exported")
