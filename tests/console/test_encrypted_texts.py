"""Encrypted texts in the console: admins, bot owners and users read them, viewers do not."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import Hub
from pabal.settings import Settings
from relay.skills import send_message
from support.clusters import Connection
from support.operator import SignedInOperator
from support.relay_rows import Chat, Owner, skill_response

pytestmark = pytest.mark.anyio

TEXT, REPLY = "only-for-readers", "answer-for-readers"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"relay_encrypt_text": True})


@pytest.fixture
async def message(hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> UUID:
    """A message with a late reply."""
    chat = Chat(owner)
    bot = await chat.owner()
    await chat.conversation(bot)
    await send_message(web, TEXT, callbackUrl=None)
    message_id: UUID = await owner.fetchval("select id from inbound_messages")
    await reply_late(web, bot, message_id)
    return message_id


async def reply_late(web: httpx2.AsyncClient, bot: Owner, message_id: UUID) -> None:
    body = {"messageId": str(message_id), "response": skill_response(REPLY)}
    response = await web.post("/v1/reply", headers=bot.header, json=body)
    assert response.json()["code"] == "CALLBACK_EXPIRED"


@pytest.mark.parametrize(("language", "placeholder"), [("en", "(encrypted)"), ("ko", "(암호화됨)")])
async def test_only_admins_read_encrypted_texts(
    admin: SignedInOperator, viewer: SignedInOperator, message: UUID, owner: Connection, language: str, placeholder: str
) -> None:
    account = await owner.fetchval("select account_id from inbound_messages")
    for path in (
        "/messages",
        f"/messages/{message}",
        f"/accounts/{account}",
        "/conversation?key=channel:user",
    ):
        seen = await admin.get(f"/console/relay{path}", language)
        hidden = await viewer.get(f"/console/relay{path}", language)

        assert (seen.status_code, hidden.status_code) == (200, 200)
        assert TEXT in seen.text
        assert placeholder not in seen.text
        assert TEXT not in hidden.text
        assert placeholder in hidden.text
    assert REPLY in (await admin.get(f"/console/relay/messages/{message}")).text
    page = await viewer.get(f"/console/relay/messages/{message}")
    assert REPLY not in page.text
    assert "d1." not in page.text


VIEWS = "select actor, subject from pabal.audit_log where action = 'conversation.texts_viewed' order by id"


@pytest.mark.parametrize("page", ["messages", "message", "account", "conversation"])
async def test_an_admin_who_reads_a_text_is_recorded_once_an_hour(
    admin: SignedInOperator,
    viewer: SignedInOperator,
    message: UUID,
    owner: Connection,
    travel: Callable[[timedelta], Awaitable[None]],
    page: str,
) -> None:
    account = await owner.fetchval("select account_id from inbound_messages")
    path = {
        "messages": "/messages",
        "message": f"/messages/{message}",
        "account": f"/accounts/{account}",
        "conversation": "/conversation?key=channel:user",
    }[page]
    await viewer.get(f"/console/relay{path}")
    assert await owner.fetch(VIEWS) == []

    for _ in range(2):
        assert TEXT in (await admin.get(f"/console/relay{path}")).text

    [entry] = await owner.fetch(VIEWS)
    assert tuple(entry) == (f"operator:{admin.session.name}", conversation_pseudonym("channel:user"))
    await travel(timedelta(hours=1))
    await admin.get(f"/console/relay{path}")
    assert len(await owner.fetch(VIEWS)) == 2
