"""Exporting and erasing a conversation."""

import json
import re
from uuid import UUID

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub
from relay.people import add_account, key_of_user, pair_user
from support.dump import dump_database
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.relay_log import SECRET_URL, MessageLog, page_text

pytestmark = pytest.mark.anyio

PAGE = "/console/relay/conversation"
USER = "x1-plusfriend-9Q4tzK"
KEY = key_of_user(USER)


@pytest.fixture
async def bot(hub: Hub, message_log: MessageLog) -> UUID:
    """An account with two users, one of claimer has a reply."""
    owner = await add_account(hub)
    for user in (USER, "somebody"):
        await pair_user(hub, user, owner.account)
        await message_log.insert_reply(
            await message_log.insert_message(owner.account, user, "what is it?"), "it is this"
        )
    return owner.account


def count_in(page: str) -> str:
    """Return the count in a confirmation form."""
    [count] = re.findall(r'name="count" value="(\d+)"', page)
    return count


@pytest.mark.usefixtures("bot")
async def test_the_export_of_a_conversation_is_a_file(admin: SignedInOperator, message_log: MessageLog) -> None:
    file = await admin.post(f"{PAGE}/export", key=KEY)

    assert file.status_code == 200
    assert file.headers["content-disposition"] == 'attachment; filename="conversation.json"'
    assert (file.headers["content-type"], file.headers["cache-control"]) == ("application/json", "no-store")
    document = json.loads(file.text)
    assert document["conversation"]["conversation_key"] == KEY
    [message] = document["messages"]
    assert "it is this" in json.dumps(message["reply"])
    assert SECRET_URL not in file.text
    query = "select actor, subject from pabal.audit_log where action = 'conversation.exported'"
    [row] = await message_log.db.fetch(query)
    assert tuple(row) == ("operator:the-admin", conversation_pseudonym(KEY))


async def test_erasing_names_what_it_deletes_and_deletes_no_more(
    admin: SignedInOperator, database_urls: DatabaseUrls, message_log: MessageLog, bot: UUID
) -> None:
    confirmation = await admin.post(f"{PAGE}/erase", key=KEY)
    assert "messages: 1, replies: 1" in page_text(confirmation.text)
    assert USER not in page_text(confirmation.text)
    confirmed_count = count_in(confirmation.text)
    await message_log.insert_message(bot, USER, "meanwhile")

    again = await admin.post(f"{PAGE}/erase", key=KEY, count=confirmed_count)
    assert "messages: 2, replies: 1" in page_text(again.text)
    assert count_in(again.text) == str(int(confirmed_count) + 1)
    assert await message_log.count("inbound_messages") == 3
    done = await admin.post(f"{PAGE}/erase", key=KEY, count=count_in(again.text))

    assert (done.status_code, done.headers["location"]) == (303, "/console/relay/conversations")
    await message_log.db.execute(
        "delete from relay_control_events"
    )  # control events for open streams, which expire in minutes
    assert USER.encode() not in await dump_database(database_urls)
    assert [await message_log.count(table) for table in ("inbound_messages", "conversation_mappings")] == [1, 1]
    query = "select actor, subject, details::text from pabal.audit_log where action = 'conversation.erased'"
    [row] = await message_log.db.fetch(query)
    assert (row["actor"], row["subject"]) == ("operator:the-admin", conversation_pseudonym(KEY))
    assert json.loads(row["details"])["messages"] == 2
    assert (await admin.post(f"{PAGE}/erase", key=KEY, count="0")).status_code == 404


@pytest.mark.usefixtures("bot")
@pytest.mark.parametrize("query", ["export", "erase"])
async def test_exporting_and_erasing_require_an_admin_and_a_csrf_token(
    admin: SignedInOperator, viewer: SignedInOperator, database_urls: DatabaseUrls, message_log: MessageLog, query: str
) -> None:
    before = await message_log.audit_actions()
    count = count_in((await admin.post(f"{PAGE}/erase", key=KEY)).text)
    path = f"{PAGE}/{query}"

    assert (await viewer.post(path, key=KEY, count=count)).status_code == 403
    assert (await admin.post(path, key=KEY, count=count, csrf_token="ff")).status_code == 403
    assert (await admin.get(path)).status_code in {404, 405}
    assert (await admin.post(path, key="bot:nobody", count=count)).status_code == 404

    assert await message_log.audit_actions() == before
    assert USER.encode() in await dump_database(database_urls)
    assert f"{PAGE}/{query}" not in (await viewer.get(f"{PAGE}?key={KEY}")).text


@pytest.mark.usefixtures("bot")
async def test_erasing_does_not_undo_a_block(admin: SignedInOperator, message_log: MessageLog) -> None:
    await message_log.db.execute("update conversation_mappings set state = 'BLOCKED', blocked_by = 'operator'")
    count = count_in((await admin.post(f"{PAGE}/erase", key=KEY)).text)

    refused = await admin.post(f"{PAGE}/erase", key=KEY, count=count)

    assert refused.status_code == 409
    assert "Unblock it first" in refused.text
    assert await message_log.count("conversation_mappings") == 2
    page = (await admin.get(f"{PAGE}?key={KEY}")).text
    assert f"{PAGE}/erase" not in page
    assert f"{PAGE}/export" in page


async def test_the_confirmation_escapes_hostile_keys(hub: Hub, admin: SignedInOperator) -> None:
    owner = await add_account(hub)
    await pair_user(hub, HOSTILE, owner.account)

    confirmation = await admin.post(f"{PAGE}/erase", key=key_of_user(HOSTILE))

    assert confirmation.status_code == 200
    assert is_escaped(confirmation)
