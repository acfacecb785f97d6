"""Encrypted texts when accounts come and go: nothing is refused because of the key of an account that is gone."""

import httpx2
import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.hub import Hub
from pabal.relay.accounts import delete_account, disable_account
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from relay.skills import USE_CALLBACK, send_message, text_of
from support.relay_rows import Bot, Chat, Owner

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
