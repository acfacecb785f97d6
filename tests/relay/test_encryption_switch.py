"""Hubs that encrypt and hubs that do not, on the same rows."""

from collections.abc import AsyncGenerator

import httpx2
import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.relay.reply.send import KeptReply
from pabal.settings import Settings
from relay.skills import post_webhook, skill_payload
from support.relay_rows import Bot

pytestmark = pytest.mark.anyio


@pytest.fixture
async def encrypting_bot(bot: Bot, settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[Bot]:
    """The bot at another process, which encrypts."""
    encrypting = settings.model_copy(update={"relay_encrypt_text": True})
    async with open_hub(encrypting, database_urls) as hub:
        yield Bot(hub, bot.chat, bot.kakao, bot.owner, bot.key)


async def test_a_reply_that_was_stored_plainly_is_not_shown_twice(bot: Bot, encrypting_bot: Bot) -> None:
    message = await bot.insert_message("one")

    first, repeated = await bot.send_reply(message, "hello"), await encrypting_bot.send_block(message, "hello")

    assert repeated == first
    assert await bot.chat.db.fetchval("select count(*) from relay_replies") == 1


async def test_a_further_block_that_was_stored_plainly_is_not_shown_twice(bot: Bot, encrypting_bot: Bot) -> None:
    message = await bot.insert_message("one")
    await bot.send_reply(message, "hello")

    first, repeated = await bot.send_block(message, "more"), await encrypting_bot.send_block(message, "more")

    assert isinstance(first, KeptReply)
    assert repeated == first
    assert await bot.chat.db.fetchval("select count(*) from relay_replies") == 2


async def test_a_payload_with_a_field_of_that_name_is_not_taken_for_an_envelope(
    web: httpx2.AsyncClient, bot: Bot
) -> None:
    payload = skill_payload("hello") | {"envelope": f"d1.{bot.owner.id.hex}.AAAA"}
    payload = {name: payload[name] for name in ("userRequest", "envelope")}
    await bot.chat.db.execute(
        "update conversation_mappings set conversation_key = 'default:user', kakao_channel_id = 'default'"
    )
    await post_webhook(web, payload)

    polled = await web.get("/v1/messages", headers=bot.owner.header)

    assert [message["kakaoPayload"]["envelope"] for message in polled.json()["messages"]] == [payload["envelope"]]
