"""What the hub has of one conversation: an admin takes it along for somebody, or erases it."""

import json
import re
from uuid import UUID

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.hub import DatabaseUrls, Hub
from relay.people import an_owner, key_of, pair
from support.dump import dumped
from support.operator import HOSTILE, Signed, unharmed
from support.relay_log import SECRET_URL, Talk, read

pytestmark = pytest.mark.anyio

PAGE = "/console/relay/conversation"
USER = "x1-plusfriend-9Q4tzK"
KEY = key_of(USER)


@pytest.fixture
async def bot(hub: Hub, talk: Talk) -> UUID:
    """The bot that somebody wrote to and got an answer from, and somebody else as well."""
    owner = await an_owner(hub)
    for user in (USER, "somebody"):
        await pair(hub, user, owner.account)
        await talk.answered(await talk.written(owner.account, user, "what is it?"), "it is this")
    return owner.account


def number_in(page: str) -> str:
    """How many rows a page asks about: what its form would bring back."""
    [count] = re.findall(r'name="count" value="(\d+)"', page)
    return count


@pytest.mark.usefixtures("bot")
async def test_everything_of_a_conversation_is_a_file(admin: Signed, talk: Talk) -> None:
    file = await admin.post(f"{PAGE}/export", key=KEY)

    assert file.status_code == 200
    assert file.headers["content-disposition"] == 'attachment; filename="conversation.json"'
    assert (file.headers["content-type"], file.headers["cache-control"]) == ("application/json", "no-store")
    document = json.loads(file.text)
    assert document["conversation"]["conversation_key"] == KEY
    [message] = document["messages"]
    assert "it is this" in json.dumps(message["reply"])
    assert SECRET_URL not in file.text
    deed = "select actor, subject from pabal.audit_log where action = 'conversation.exported'"
    [row] = await talk.db.fetch(deed)
    assert tuple(row) == ("operator:the-admin", conversation_pseudonym(KEY))


async def test_an_erasure_names_what_it_takes_and_does_no_more(
    admin: Signed, database_urls: DatabaseUrls, talk: Talk, bot: UUID
) -> None:
    asked = await admin.post(f"{PAGE}/erase", key=KEY)
    assert "messages: 1, replies: 1" in read(asked.text)
    assert USER not in read(asked.text)
    agreed = number_in(asked.text)
    await talk.written(bot, USER, "meanwhile")

    again = await admin.post(f"{PAGE}/erase", key=KEY, count=agreed)
    assert "messages: 2, replies: 1" in read(again.text)
    assert number_in(again.text) == str(int(agreed) + 1)
    assert await talk.count("inbound_messages") == 3
    done = await admin.post(f"{PAGE}/erase", key=KEY, count=number_in(again.text))

    assert (done.status_code, done.headers["location"]) == (303, "/console/relay/conversations")
    await talk.db.execute("delete from relay_control_events")  # what open streams are told, gone by itself in minutes
    assert USER.encode() not in await dumped(database_urls)
    assert [await talk.count(table) for table in ("inbound_messages", "conversation_mappings")] == [1, 1]
    deed = "select actor, subject, details::text from pabal.audit_log where action = 'conversation.erased'"
    [row] = await talk.db.fetch(deed)
    assert (row["actor"], row["subject"]) == ("operator:the-admin", conversation_pseudonym(KEY))
    assert json.loads(row["details"])["messages"] == 2
    assert (await admin.post(f"{PAGE}/erase", key=KEY, count="0")).status_code == 404


@pytest.mark.usefixtures("bot")
@pytest.mark.parametrize("deed", ["export", "erase"])
async def test_nobody_but_an_admin_with_a_form_of_ours_does_either(
    admin: Signed, viewer: Signed, database_urls: DatabaseUrls, talk: Talk, deed: str
) -> None:
    before = await talk.deeds()
    count = number_in((await admin.post(f"{PAGE}/erase", key=KEY)).text)
    path = f"{PAGE}/{deed}"

    assert (await viewer.post(path, key=KEY, count=count)).status_code == 403
    assert (await admin.post(path, key=KEY, count=count, csrf_token="ff")).status_code == 403
    assert (await admin.get(path)).status_code in {404, 405}
    assert (await admin.post(path, key="bot:nobody", count=count)).status_code == 404

    assert await talk.deeds() == before
    assert USER.encode() in await dumped(database_urls)
    assert f"{PAGE}/{deed}" not in (await viewer.get(f"{PAGE}?key={KEY}")).text


@pytest.mark.usefixtures("bot")
async def test_a_block_is_not_undone_by_erasing_it(admin: Signed, talk: Talk) -> None:
    await talk.db.execute("update conversation_mappings set state = 'BLOCKED', blocked_by = 'operator'")
    count = number_in((await admin.post(f"{PAGE}/erase", key=KEY)).text)

    refused = await admin.post(f"{PAGE}/erase", key=KEY, count=count)

    assert refused.status_code == 409
    assert "Unblock it first" in refused.text
    assert await talk.count("conversation_mappings") == 2
    page = (await admin.get(f"{PAGE}?key={KEY}")).text
    assert f"{PAGE}/erase" not in page
    assert f"{PAGE}/export" in page


async def test_nothing_hostile_becomes_part_of_the_question(hub: Hub, admin: Signed) -> None:
    owner = await an_owner(hub)
    await pair(hub, HOSTILE, owner.account)

    asked = await admin.post(f"{PAGE}/erase", key=key_of(HOSTILE))

    assert asked.status_code == 200
    assert unharmed(asked)
