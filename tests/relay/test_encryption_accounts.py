"""Encrypted texts when accounts come and go: nothing is refused because of the key of an account that is gone."""

from datetime import timedelta

import httpx2
import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import Unavailable
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.accounts import delete_account, disable_account
from pabal.relay.delivery.decrypted_claims import MessageClaimer
from pabal.relay.delivery.lane import MessagePollRequest
from pabal.relay.encryption import data_keys
from pabal.relay.reply.recorded import ReplyToAnswered, keep_further_replies
from pabal.relay.reply.reply import encode_skill_response
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.skills import USE_CALLBACK, send_message, text_of
from support.relay_rows import Bot, Chat, Owner, digest, skill_response
from support.statement_log import run_statement_log

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": True})


async def delete(hub: Hub, owner: Owner) -> None:
    """Delete an account; the process keeps no key, as after a new connection to the database."""
    async with hub.transaction() as tx:
        await disable_account(tx, owner.id, HUB_ACTOR)
        await delete_account(tx, owner.id, HUB_ACTOR)
    assert hub.db.on_connect
    hub.db.on_connect()


async def test_a_user_whose_account_was_deleted_is_told_how_to_pair(
    web: httpx2.AsyncClient, bot: Bot, hub: Hub
) -> None:
    assert await send_message(web, "before") == USE_CALLBACK
    await delete(hub, bot.owner)

    assert text_of(await send_message(web, "after")) == KOREAN_TEXTS.hint.format(prefix="/")


async def test_a_message_after_its_account_was_replaced_is_stored_for_the_new_one(
    web: httpx2.AsyncClient, bot: Bot, hub: Hub, chat: Chat
) -> None:
    assert await send_message(web, "before") == USE_CALLBACK
    await delete(hub, bot.owner)
    other = await chat.owner()
    await chat.conversation(other)

    assert await send_message(web, "after") == USE_CALLBACK

    polled = await web.get("/v1/messages", headers=other.header)
    assert [message["normalized"]["text"] for message in polled.json()["messages"]] == ["after"]


async def test_a_token_is_looked_up_again_after_a_fail_over(bot: Bot, hub: Hub, chat: Chat) -> None:
    """A fail-over may lose a pairing. The session is then paired with another account."""
    await bot.send_reply(await bot.insert_message("first"), "hello")
    other = await chat.owner()
    await delete(hub, bot.owner)
    await chat.db.execute("update accounts set relay_token_hash = $1 where id = $2", digest(bot.owner.token), other.id)
    await chat.conversation(other)
    message = await chat.message(other, bot.key, bot.kakao.url("second"))

    await bot.send_reply(message, "hello again")

    assert bot.kakao.texts("second") == [["hello again"]]


async def test_a_key_that_cannot_be_read_refuses_only_the_blocks_of_its_account(bot: Bot, hub: Hub, chat: Chat) -> None:
    other = await Bot.of(hub, chat, bot.kakao, "other")
    blocks: list[ReplyToAnswered] = []
    for each in (bot, other):
        message = await each.insert_message(each.key)
        await each.send_reply(message, "hello")
        response = skill_response("more")
        blocks.append(
            ReplyToAnswered(new_id(), each.owner.id, message, bytes(32), encode_skill_response(response), response)
        )
    await chat.db.execute("update pabal.relay_keys set data_key = 'v1.lost.key' where account_id = $1", bot.owner.id)
    assert hub.db.on_connect
    hub.db.on_connect()

    async with hub.autocommit() as tx:
        refused, kept = await keep_further_replies(tx, blocks, hub.relay.cipher)

    assert isinstance(refused, Unavailable)
    assert kept is True


async def test_the_messages_of_many_accounts_cost_one_lookup_of_keys(
    web: httpx2.AsyncClient, chat: Chat, settings: Settings, database_urls: DatabaseUrls
) -> None:
    owners = [await chat.owner() for _ in range(3)]
    for number, owner in enumerate(owners):
        await chat.conversation(owner, f"user-{number}")
        await send_message(web, f"text-{number}", f"user-{number}")
    requests = {MessagePollRequest(owner.id, "poll:test", timedelta(minutes=1)): 10 for owner in owners}
    async with (
        run_statement_log(database_urls.main) as (statements, url),
        open_hub(settings, DatabaseUrls(url, database_urls.direct)) as hub,
        hub.autocommit() as tx,
    ):
        claimed = await MessageClaimer(hub.relay.cipher).claim(tx, requests)

    texts = [[message.normalized["text"] for message in claimed[request]] for request in requests]
    assert texts == [["text-0"], ["text-1"], ["text-2"]]
    assert statements.count(data_keys.Q.find_data_keys) == 1
