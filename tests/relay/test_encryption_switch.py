"""A reply that is repeated while encryption is switched on is still a repeat."""

from collections.abc import AsyncGenerator

import pytest

from pabal.hub import DatabaseUrls, open_hub
from pabal.relay.reply.send import KeptReply
from pabal.settings import Settings
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
