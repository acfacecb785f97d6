"""The webhook: what is stored, and the response to Kakao."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.relay.webhook.message_events import publish_message_events
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.bot import connect_stream
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload, text_of
from support.clusters import Connection
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


async def stored_messages(db: Connection) -> list[dict[str, Any]]:
    return [dict(row) for row in await db.fetch("select * from inbound_messages order by seq")]


async def test_a_paired_users_message_is_stored_unchanged(web: httpx2.AsyncClient, chat: Chat, owner: Owner) -> None:
    key = await chat.conversation(owner)
    payload = skill_payload("  Hello 세상 ")

    assert await post_webhook(web, payload) == USE_CALLBACK

    [message] = await stored_messages(chat.db)
    assert json.loads(message["kakao_payload"]) == payload
    assert json.loads(message["normalized"]) == {"userId": "user", "text": "  Hello 세상 ", "channelId": "channel"}
    assert (message["status"], message["account_id"], message["conversation_key"]) == ("QUEUED", owner.id, key)
    assert message["callback_url"] == payload["userRequest"]["callbackUrl"]
    assert message["callback_expires_at"] - message["created_at"] == timedelta(seconds=55)
    assert message["expires_at"] - message["created_at"] == timedelta(minutes=15)


async def test_an_image_reaches_the_bot_on_its_stream_and_by_polling(
    hub: Hub, web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    blocks = [{"kind": "image", "url": "https://talk.example/photo.jpg", "text": None}]
    media = {"media": {"type": "image", "url": "https://talk.example/photo.jpg"}}

    async with serve_hub(hub) as address, connect_stream(address, owner.token) as stream:
        await stream.next("connected")
        await send_message(web, "", params=media)
        streamed = (await stream.next("message")).data
    await web.post("/v1/messages/ack", json={"messageIds": [streamed["id"]]}, headers=owner.header)
    await send_message(web, "", params=media)
    [polled] = (await web.get("/v1/messages", headers=owner.header)).json()["messages"]

    assert [message["normalized"]["blocks"] for message in (streamed, polled)] == [blocks, blocks]


@pytest.mark.parametrize("path", ["/kakao/webhook", "/kakao-talkchannel/webhook", "//kakao/webhook"])
async def test_every_path_of_the_webhook_works(web: httpx2.AsyncClient, path: str) -> None:
    response = await web.post(
        str(web.base_url).rstrip("/") + path, json=skill_payload("hello"), headers=WEBHOOK_HEADERS
    )

    assert response.status_code == 200
    assert text_of(response.json()) == KOREAN_TEXTS.hint.format(prefix="/")


async def test_an_answer_mode_of_a_newer_version_does_not_stop_the_webhook(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    await chat.db.execute("alter table accounts drop constraint account_answer_mode")
    await chat.db.execute("update accounts set answer_mode = 'unheard'")

    responses = [await send_message(web, "hello"), await send_message(web, "hello", callbackUrl=None)]

    assert responses[0] == USE_CALLBACK
    assert text_of(responses[1]) == KOREAN_TEXTS.preparing
    assert [message["status"] for message in await stored_messages(chat.db)] == ["QUEUED", "QUEUED"]


async def test_an_image_and_odd_values_pass_through(web: httpx2.AsyncClient, chat: Chat, owner: Owner) -> None:
    await chat.conversation(owner)

    assert await send_message(web, None, params={"media": {"type": "image"}, "n": 3, "x": None}) == USE_CALLBACK

    [message] = await stored_messages(chat.db)
    assert json.loads(message["normalized"])["text"] == ""
    params = json.loads(message["kakao_payload"])["userRequest"]["params"]
    assert params == {"media": {"type": "image"}, "n": 3, "x": None}


async def test_a_duplicate_is_one_message_and_gets_the_first_response(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    payload = skill_payload("네")

    responses = await asyncio.gather(*(post_webhook(web, payload) for _ in range(20)))

    assert responses == [USE_CALLBACK] * 20
    assert len(await stored_messages(chat.db)) == 1


async def test_the_same_text_with_another_callback_is_another_message(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)

    for _ in range(3):
        assert await send_message(web, "네") == USE_CALLBACK

    assert len(await stored_messages(chat.db)) == 3


async def test_kakaos_event_id_identifies_duplicates_per_channel(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    await chat.db.execute(
        """
        insert into conversation_mappings
          (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
        values ('other:user', 'other', 'user', $1, 'PAIRED', pabal.now())
        """,
        owner.id,
    )

    await send_message(web, "one", eventId="e1")
    await send_message(web, "two", eventId="e1")
    await post_webhook(web, skill_payload("three", eventId="e1") | {"bot": {"id": "other"}})

    assert [json.loads(row["normalized"])["text"] for row in await stored_messages(chat.db)] == ["one", "three"]


async def test_a_message_without_a_callback_is_stored_and_the_user_gets_a_text(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    payload = skill_payload("hello", callbackUrl=None)

    first = await post_webhook(web, payload)
    repeated = await post_webhook(web, payload)

    assert text_of(first) == KOREAN_TEXTS.preparing
    assert repeated == first
    [message] = await stored_messages(chat.db)
    assert message["callback_url"] is None
    assert message["callback_expires_at"] is None


async def test_a_late_reply_is_shown_without_a_callback_and_again_only_to_the_duplicate(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    key = await chat.conversation(owner)
    earlier = await chat.message(owner, key, None)
    response = await web.post(
        "/v1/reply",
        headers=owner.header,
        json={
            "messageId": str(earlier),
            "response": {"version": "2.0", "template": {"outputs": [{"simpleText": {"text": "late"}}]}},
        },
    )
    assert response.json()["code"] == "CALLBACK_EXPIRED"
    payload = skill_payload("hello", callbackUrl=None, eventId="one")

    assert text_of(await post_webhook(web, payload)) == f"late\n{KOREAN_TEXTS.preparing}"
    assert text_of(await post_webhook(web, payload)) == f"late\n{KOREAN_TEXTS.preparing}"
    assert text_of(await send_message(web, "more", callbackUrl=None)) == KOREAN_TEXTS.preparing


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("UNPAIRED", KOREAN_TEXTS.hint.format(prefix="/")),
        ("PENDING", KOREAN_TEXTS.pending),
        ("BLOCKED", KOREAN_TEXTS.blocked),
    ],
)
async def test_an_unpaired_user_gets_a_text_and_nothing_is_queued(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner, state: str, text: str
) -> None:
    await chat.conversation(owner)
    await chat.db.execute("update conversation_mappings set state = $1", state)

    assert text_of(await send_message(web, "hello")) == text
    assert await stored_messages(chat.db) == []


async def test_a_blocked_user_cannot_unblock_by_pairing(web: httpx2.AsyncClient, chat: Chat, owner: Owner) -> None:
    await chat.conversation(owner)
    await chat.db.execute("update conversation_mappings set state = 'BLOCKED'")

    for text in ("/pair ABCD-2345", "/status", "/help", "/unpair", "/code"):
        assert text_of(await send_message(web, text)) == KOREAN_TEXTS.blocked


async def test_users_of_a_disabled_account_get_a_text_and_nothing_is_queued(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    await chat.conversation(owner)
    await chat.db.execute("update accounts set disabled_at = pabal.now()")

    assert text_of(await send_message(web, "hello")) == KOREAN_TEXTS.disabled
    assert await stored_messages(chat.db) == []


async def test_every_webhook_updates_its_conversation(web: httpx2.AsyncClient, chat: Chat, travel: Any) -> None:
    payload = skill_payload("hello")
    await post_webhook(web, payload)
    await travel(timedelta(minutes=3))
    second_payload = skill_payload("again")
    await post_webhook(web, second_payload)

    row = await chat.db.fetchrow("select * from conversation_mappings")
    assert row
    assert row["conversation_key"] == "channel:user"
    assert row["last_seen_at"] - row["first_seen_at"] >= timedelta(minutes=3)
    assert row["last_callback_url"] == second_payload["userRequest"]["callbackUrl"]
    assert row["last_callback_url_expires_at"] - row["last_seen_at"] == timedelta(seconds=55)


MALFORMED: dict[str, Any] = {
    "an empty body": b"",
    "invalid JSON": b"{",
    "a list": b"[]",
    "an empty object": b"{}",
    "no user": b'{"userRequest": {"utterance": "x"}}',
    "an empty user": b'{"userRequest": {"user": {"id": "", "properties": {}}, "utterance": "x"}}',
    "a number for a text": b'{"userRequest": {"user": {"id": "u"}, "utterance": 3}}',
    "a colon in the channel": b'{"bot": {"id": "a:b"}, "userRequest": {"user": {"id": "u"}, "utterance": "x"}}',
    "NUL": b'{"userRequest": {"user": {"id": "u"}, "utterance": "a\\u0000b"}}',
    "a lone surrogate": b'{"userRequest": {"user": {"id": "u"}, "utterance": "\\ud800"}}',
    "not UTF-8": b'{"userRequest": {"user": {"id": "u"}, "utterance": "\xff"}}',
    "nested too deeply": b'{"userRequest": {"user": {"id": "u"}, "params": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "a number out of range": b'{"userRequest": {"user": {"id": "u"}, "params": 1e999999}}',
    "a key too long": json.dumps({"userRequest": {"user": {"id": "u" * 600}, "utterance": "x"}}).encode(),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_webhook_is_refused_and_not_stored(web: httpx2.AsyncClient, chat: Chat, body: bytes) -> None:
    response = await web.post("/kakao/webhook", content=body, headers=WEBHOOK_HEADERS)

    assert response.status_code == 400, response.text
    assert response.json()["code"] == "INVALID_REQUEST"
    assert response.json()["error"] == response.json()["message"]
    assert await chat.db.fetchval("select count(*) from conversation_mappings") == 0


async def test_more_than_a_megabyte_is_too_large(web: httpx2.AsyncClient) -> None:
    response = await web.post("/kakao/webhook", json=skill_payload("x" * 1_048_576), headers=WEBHOOK_HEADERS)

    assert response.status_code == 413


async def test_a_user_key_with_colons_belongs_to_the_channel_before_the_first(
    web: httpx2.AsyncClient, chat: Chat
) -> None:
    await send_message(web, "hello", "a:b:c")

    row = await chat.db.fetchrow("select * from conversation_mappings")
    assert row
    assert (row["conversation_key"], row["kakao_channel_id"], row["plusfriend_user_key"]) == (
        "channel:a:b:c",
        "channel",
        "a:b:c",
    )


async def test_concurrent_webhooks_each_get_their_own_response(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    for number in range(30):
        await chat.conversation(owner, f"u{number}")
    await chat.db.execute("update conversation_mappings set state = 'BLOCKED' where plusfriend_user_key like '%3'")

    responses = await asyncio.gather(
        *(send_message(web, f"from {user_number}", f"u{user_number}") for user_number in range(30))
    )

    for number, response in enumerate(responses):
        assert response == USE_CALLBACK if number % 10 != 3 else text_of(response) == KOREAN_TEXTS.blocked
    texts = {json.loads(row["normalized"])["text"] for row in await stored_messages(chat.db)}
    assert texts == {f"from {user_number}" for user_number in range(30) if user_number % 10 != 3}


async def test_an_event_is_published_for_a_message_if_a_service_subscribes(
    hub: Hub, web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    key = await chat.conversation(owner)
    await send_message(web, "before the subscription")
    await chat.db.execute(
        """
        update public.services set permissions = '["write", "hub:events"]' where name = 'minu_find';
        insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_find', 'pull', '{relay.*}');
        """
    )
    await send_message(web, "a secret")
    async with hub.autocommit() as tx:
        assert await publish_message_events(tx, 100) == 1

    rows = await chat.db.fetch(
        "select payload from event_queue where event_type = 'relay.message.received' and is_broadcast"
    )
    [event] = [json.loads(row["payload"]) for row in rows]
    assert event["conversation_key"] == key
    assert event["account_id"] == str(owner.id)
    assert "secret" not in str(event)
    assert "http" not in str(event)


async def test_a_message_sent_during_pairing_is_not_lost(web: httpx2.AsyncClient, chat: Chat) -> None:
    for number in range(10):
        user = f"eager-{number}"
        code = (await web.post("/v1/sessions/create", json={})).json()["pairingCode"]
        responses = await asyncio.gather(
            send_message(web, f"/pair {code}", user),
            *(send_message(web, f"hello {text_number}", user) for text_number in range(4)),
        )
        queued = sum(response == USE_CALLBACK for response in responses)
        assert (
            await chat.db.fetchval("select count(*) from inbound_messages where normalized ->> 'userId' = $1", user)
            == queued
        )
