"""Encrypted texts: what the database contains, who can read it, and what happens without the keys."""

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import CallbackExpired, SetupError
from pabal.core.finding import FindingLevel
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import register_hub_process
from pabal.keys.key import KeyUse
from pabal.keys.keyring import open_or_create_keyring
from pabal.keys.rotation import rewrap_all_envelopes
from pabal.relay.accounts import delete_account, disable_account
from pabal.relay.messages import MessageFilter, find_message, list_messages
from pabal.relay.privacy import erase_conversation, export_conversation
from pabal.relay.reply.reply import encode_skill_response
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from pabal.status import read_status, status_findings
from relay.bot import connect_stream
from relay.skills import USE_CALLBACK, post_webhook, send_message, skill_payload, text_of
from support.dump import dump_database
from support.fake_kakao import FakeKakao
from support.relay_rows import Bot, Chat, Owner, skill_response
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MESSAGE, REPLY, LATE_REPLY, FURTHER_REPLY = "canary-message", "canary-reply", "canary-late", "canary-further"
MINUTE = timedelta(minutes=1)
Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": True})


@asynccontextmanager
async def opened(settings: Settings, urls: DatabaseUrls) -> AsyncGenerator[tuple[Hub, httpx2.AsyncClient]]:
    """Another process on the same database."""
    async with (
        open_hub(settings, urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
    ):
        yield hub, web


async def fetch_texts(web: httpx2.AsyncClient, owner: Owner) -> list[str]:
    response = await web.get("/v1/messages", headers=owner.header)
    assert response.status_code == 200, response.text
    return [message["normalized"]["text"] for message in response.json()["messages"]]


async def newest_message(chat: Chat) -> UUID:
    return await chat.db.fetchval("select id from inbound_messages order by seq desc limit 1")


async def shown_texts(hub: Hub) -> list[str | None]:
    async with hub.autocommit() as tx:
        page = await list_messages(tx, MessageFilter(), 10, cipher=hub.relay.cipher)
    return [message.text for message in page.items]


async def test_a_dump_contains_no_text_and_no_callback_url(
    web: httpx2.AsyncClient, bot: Bot, database_urls: DatabaseUrls
) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("canary-url"))
    message = await newest_message(bot.chat)
    await bot.send_reply(message, REPLY)
    await bot.send_block(message, FURTHER_REPLY)
    shown_first = text_of(await send_message(web, MESSAGE, callbackUrl=None))
    with pytest.raises(CallbackExpired):
        await bot.send_block(await newest_message(bot.chat), LATE_REPLY)
    shown_next = text_of(await send_message(web, f"{MESSAGE} again", callbackUrl=None))
    await send_message(web, KOREAN_TEXTS.check_answer, callbackUrl=None)

    dump = await dump_database(database_urls)

    assert bot.kakao.texts("canary-url") == [[REPLY]]
    assert shown_first == f"{FURTHER_REPLY}\n{KOREAN_TEXTS.preparing}"
    assert shown_next == f"{LATE_REPLY}\n{KOREAN_TEXTS.preparing}"
    assert b"canary" not in dump
    assert await bot.chat.db.fetchval("select count(*) from inbound_messages where answer ? 'envelope'") == 2


async def test_a_repeated_webhook_gets_its_first_response_decrypted(web: httpx2.AsyncClient, bot: Bot) -> None:
    await bot.send_late_reply(LATE_REPLY)
    payload = skill_payload(MESSAGE, callbackUrl=None, eventId="one")

    first, repeated = await post_webhook(web, payload), await post_webhook(web, payload)

    assert text_of(first) == f"{LATE_REPLY}\n{KOREAN_TEXTS.preparing}"
    assert repeated == first


async def test_a_repeated_button_gets_its_answer_decrypted(web: httpx2.AsyncClient, bot: Bot) -> None:
    await bot.send_late_reply(LATE_REPLY)
    payload = skill_payload(KOREAN_TEXTS.check_answer, callbackUrl=None, eventId="one")

    first, repeated = await post_webhook(web, payload), await post_webhook(web, payload)

    assert text_of(first) == LATE_REPLY
    assert repeated == first
    assert await bot.chat.db.fetchval("select answer ? 'envelope' from command_answers")


async def test_a_stream_and_a_poll_get_the_message_decrypted(
    hub: Hub, web: httpx2.AsyncClient, bot: Bot, travel: Travel
) -> None:
    payload = skill_payload(MESSAGE, callbackUrl=bot.kakao.url("one"))
    expected = json.loads(json.dumps(payload))
    del expected["userRequest"]["callbackUrl"]
    await post_webhook(web, payload)
    async with connect_stream(str(web.base_url), bot.owner.token) as client:
        claimed = await client.next_message()
        await send_message(web, "handed over")
        handed_over = await client.next_message()
    await travel(MINUTE)

    polled = await web.get("/v1/messages", headers=bot.owner.header)

    assert claimed["kakaoPayload"] == expected
    assert claimed["normalized"] == {"userId": "user", "text": MESSAGE, "channelId": "channel"}
    assert handed_over["normalized"]["text"] == "handed over"
    assert polled.json()["messages"][0]["kakaoPayload"] == expected


async def test_another_process_reads_the_texts_and_answers(
    web: httpx2.AsyncClient, bot: Bot, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("one"))
    async with opened(settings, database_urls) as (other_hub, other_web):
        assert await fetch_texts(other_web, bot.owner) == [MESSAGE]
        await Bot(other_hub, bot.chat, bot.kakao, bot.owner, bot.key).send_reply(await newest_message(bot.chat), REPLY)
        async with other_hub.autocommit() as tx:
            details = await find_message(tx, await newest_message(bot.chat), cipher=other_hub.relay.cipher)

    assert bot.kakao.texts("one") == [[REPLY]]
    assert details.payload["userRequest"]["utterance"] == MESSAGE
    assert "callbackUrl" not in details.payload["userRequest"]
    assert details.reply
    assert details.reply.response == skill_response(REPLY)


async def test_texts_stay_readable_when_the_key_ring_is_rotated_and_the_old_key_retired(
    web: httpx2.AsyncClient, bot: Bot, hub: Hub, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await send_message(web, MESSAGE)
    old = hub.key_ring.active(KeyUse.ENCRYPTION)

    with hub.key_ring.update(lambda keys: keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC))):
        pass
    report = await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda _: None)
    with hub.key_ring.update(lambda keys: keys.without(old.id)):
        pass

    assert report.rewrapped >= 1
    async with opened(settings, database_urls) as (_, other_web):
        assert await fetch_texts(other_web, bot.owner) == [MESSAGE]


async def test_plain_and_encrypted_rows_are_both_readable(
    bot: Bot, hub: Hub, settings: Settings, database_urls: DatabaseUrls, web: httpx2.AsyncClient
) -> None:
    plain = settings.model_copy(update={"relay_encrypt_text": False})
    async with opened(plain, database_urls) as (plain_hub, plain_web):
        await send_message(plain_web, "stored plainly")
        await send_message(web, "stored encrypted", callbackUrl=bot.kakao.url("one"))
        plain_texts, texts = await shown_texts(plain_hub), await shown_texts(hub)
        polled = await fetch_texts(plain_web, bot.owner)
        await Bot(plain_hub, bot.chat, bot.kakao, bot.owner, bot.key).send_reply(await newest_message(bot.chat), REPLY)

    assert plain_texts == texts == ["stored encrypted", "stored plainly"]
    assert polled == ["stored plainly", "stored encrypted"]
    assert bot.kakao.texts("one") == [[REPLY]]
    rows = await bot.chat.db.fetch(
        "select kakao_payload ? 'envelope' as is_encrypted from inbound_messages order by seq"
    )
    assert [row["is_encrypted"] for row in rows] == [False, True]


async def test_with_foreign_keys_nothing_is_lost_and_no_request_fails(
    web: httpx2.AsyncClient, bot: Bot, settings: Settings, database_urls: DatabaseUrls, tmp_path: Path, travel: Travel
) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("one"))
    await bot.send_late_reply(LATE_REPLY)
    message = await bot.chat.db.fetchval("select id from inbound_messages where callback_url like 'd1.%'")
    foreign = settings.model_copy(update={"data_dir": tmp_path / "foreign"})
    open_or_create_keyring(foreign.data_dir)  # as if keys.json was replaced by another hub's
    async with opened(foreign, database_urls) as (foreign_hub, foreign_web):
        refused = await send_message(foreign_web, "not stored")
        reply = await foreign_web.post(
            "/v1/reply", headers=bot.owner.header, json={"messageId": str(message), "response": REPLY}
        )
        assert await fetch_texts(foreign_web, bot.owner) == []
        assert await shown_texts(foreign_hub) == [None, None]
    await travel(MINUTE)  # the lease that the other process took has ended

    assert text_of(refused) == KOREAN_TEXTS.unavailable
    assert reply.status_code == 503
    assert MESSAGE in await fetch_texts(web, bot.owner)
    assert await bot.chat.db.fetchval("select count(*) from inbound_messages") == 2
    assert text_of(await send_message(web, "next", callbackUrl=None)).startswith(LATE_REPLY)


async def test_a_hub_that_lost_its_keys_does_not_start(
    web: httpx2.AsyncClient, bot: Bot, settings: Settings, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    await send_message(web, MESSAGE)
    (tmp_path / "empty").mkdir(mode=0o700)

    with pytest.raises(SetupError, match="keys"):
        async with open_hub(settings.model_copy(update={"data_dir": tmp_path / "empty"}), database_urls):
            pass

    assert await fetch_texts(web, bot.owner) == [MESSAGE]


async def test_an_account_does_not_get_an_envelope_of_another_one(
    web: httpx2.AsyncClient, bot: Bot, chat: Chat
) -> None:
    other = await chat.owner()
    await chat.conversation(other, "other")
    await send_message(web, MESSAGE)
    await send_message(web, "mine", "other")
    await chat.db.execute(
        "update inbound_messages set kakao_payload = (select kakao_payload from inbound_messages "
        "where account_id = $1) where account_id = $2",
        bot.owner.id,
        other.id,
    )

    assert await fetch_texts(web, other) == []
    assert await fetch_texts(web, bot.owner) == [MESSAGE]


async def test_a_conversation_that_changed_its_account_is_encrypted_for_the_new_one(
    web: httpx2.AsyncClient, bot: Bot, chat: Chat
) -> None:
    await send_message(web, "for the first")
    other = await chat.owner()
    await chat.conversation(other)

    assert await send_message(web, "for the other") == USE_CALLBACK

    assert await fetch_texts(web, other) == ["for the other"]
    envelope = await chat.db.fetchval(
        "select kakao_payload ->> 'envelope' from inbound_messages where account_id = $1", other.id
    )
    assert envelope.startswith(f"d1.{other.id.hex}.")


async def test_deleting_an_account_destroys_its_key(web: httpx2.AsyncClient, bot: Bot, hub: Hub) -> None:
    await send_message(web, MESSAGE)
    assert await bot.chat.db.fetchval("select count(*) from pabal.relay_keys where account_id = $1", bot.owner.id) == 1

    async with hub.transaction() as tx:
        await disable_account(tx, bot.owner.id, HUB_ACTOR)
        await delete_account(tx, bot.owner.id, HUB_ACTOR)

    assert await bot.chat.db.fetchval("select count(*) from pabal.relay_keys where account_id = $1", bot.owner.id) == 0


async def test_an_export_is_decrypted_and_an_erased_conversation_is_gone(
    web: httpx2.AsyncClient, bot: Bot, hub: Hub
) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("one"))
    message = await newest_message(bot.chat)
    await bot.send_reply(message, REPLY)
    await bot.send_block(message, FURTHER_REPLY)

    async with hub.transaction() as tx:
        document = await export_conversation(tx, bot.key, HUB_ACTOR, hub.relay.cipher)
        await erase_conversation(tx, bot.key, HUB_ACTOR)

    [exported] = document["messages"]
    assert exported["normalized"]["text"] == MESSAGE
    assert "callbackUrl" not in exported["kakao_payload"]["userRequest"]
    assert exported["reply"]["response"] == skill_response(REPLY)
    assert [reply["response"] for reply in exported["further_replies"]] == [skill_response(FURTHER_REPLY)]
    assert await bot.chat.db.fetchval("select count(*) from inbound_messages") == 0


async def test_without_a_cipher_the_texts_are_hidden(web: httpx2.AsyncClient, bot: Bot, hub: Hub) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("one"))
    message = await newest_message(bot.chat)
    await bot.send_reply(message, REPLY)

    async with hub.autocommit() as tx:
        details = await find_message(tx, message)

    assert (details.message.text, details.message.is_encrypted, details.payload) == (None, True, {})
    assert details.reply
    assert details.reply.response is None
    assert details.is_encrypted


async def test_a_hash_of_the_body_needs_the_hubs_key(web: httpx2.AsyncClient, bot: Bot) -> None:
    """A plain hash of the body would let a guessed text be confirmed."""
    payload = skill_payload("네", callbackUrl=None)
    await post_webhook(web, payload)
    await post_webhook(web, payload)

    ids = [row["source_event_id"] for row in await bot.chat.db.fetch("select source_event_id from inbound_messages")]
    assert ids
    assert all(event_id.startswith("keyed:") for event_id in ids)


async def test_a_repeated_reply_is_recognised(web: httpx2.AsyncClient, bot: Bot) -> None:
    await send_message(web, MESSAGE, callbackUrl=bot.kakao.url("one"))
    message = await newest_message(bot.chat)

    first, repeated = await bot.send_reply(message, REPLY), await bot.send_reply(message, REPLY)

    assert repeated.reply_id == first.reply_id
    assert bot.kakao.posts == 1
    stored: Any = await bot.chat.reply(message)
    assert stored["response_hash"] != sha256(encode_skill_response(skill_response(REPLY))).digest()


async def test_late_and_further_replies_go_along_with_a_callback(
    web: httpx2.AsyncClient, bot: Bot, fake_kakao: FakeKakao
) -> None:
    await bot.send_late_reply(LATE_REPLY)
    await send_message(web, MESSAGE, callbackUrl=fake_kakao.url("one"))

    await bot.send_reply(await newest_message(bot.chat), REPLY)

    assert fake_kakao.texts("one") == [[LATE_REPLY, REPLY]]


async def test_a_key_that_a_fail_over_lost_is_not_used_any_more(
    web: httpx2.AsyncClient, bot: Bot, settings: Settings, database_urls: DatabaseUrls
) -> None:
    await send_message(web, "before")
    await send_message(web, "before, with the key in memory")
    await bot.chat.db.execute("delete from pabal.relay_keys")
    await bot.chat.db.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    with contextlib.suppress(AssertionError):  # the first one may meet a dead connection
        await send_message(web, "meanwhile")

    await wait_until(lambda: is_stored(web, "after"))

    async with opened(settings, database_urls) as (_, other_web):
        assert "after" in await fetch_texts(other_web, bot.owner)


async def is_stored(web: httpx2.AsyncClient, text: str) -> bool:
    return await send_message(web, text) == USE_CALLBACK


async def test_status_names_a_hub_without_the_keys(
    web: httpx2.AsyncClient, bot: Bot, settings: Settings, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    await send_message(web, MESSAGE)
    foreign = settings.model_copy(update={"data_dir": tmp_path / "foreign"})
    open_or_create_keyring(foreign.data_dir)
    async with opened(foreign, database_urls) as (hub, foreign_web):
        await send_message(foreign_web, "not stored")
        async with register_hub_process(hub, []):
            await wait_until(lambda: bot.chat.db.fetchval("select count(*) > 0 from pabal.workers"))
            async with hub.autocommit() as tx:
                findings = status_findings(await read_status(tx))
        checks = await run_checks(foreign, database_urls)

    [finding] = [finding for finding in findings if finding.what == "relay texts"]
    assert (finding.level, "cannot decrypt the keys of some accounts: 1" in finding.seen) == (
        FindingLevel.WARNING,
        True,
    )
    [encrypted] = [check for check in checks if check.what == "encrypted values"]
    assert encrypted.level is FindingLevel.BAD
