"""`pabal conversation export|erase`."""

import json

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from support.relay_rows import Chat
from support.terminal import Terminal

pytestmark = pytest.mark.anyio

URL = "https://bot-api.kakao.com/callback/secret"
HELD = "6 rows (3 messages, 1 replies, 0 events, 0 dead letters, 2 others)"


@pytest.fixture
async def key(terminal: Terminal) -> str:
    """A conversation of three messages, one of them answered late."""
    chat = Chat(terminal.event_queue.owner)
    owner = await chat.owner()
    key = await chat.conversation(owner)
    messages = [await chat.message(owner, key, URL) for _ in range(3)]
    await chat.db.execute(
        "insert into relay_replies (message_id, account_id, conversation_key, response, answered_at, kept_until) "
        "values ($1, $2, $3, '{}', pabal.now(), pabal.now())",
        messages[0],
        owner.id,
        key,
    )
    await chat.db.execute("insert into pabal.limits values ('webhook conversation:' || $1, pabal.now())", key)
    return key


async def left(terminal: Terminal) -> int:
    return await terminal.event_queue.owner.fetchval(
        "select (select count(*) from conversation_mappings) + (select count(*) from inbound_messages)"
        " + (select count(*) from relay_replies) + (select count(*) from pabal.limits)"
    )


async def test_an_export_is_one_document(terminal: Terminal, key: str) -> None:
    written = (await terminal.run("conversation", "export", key)).stdout

    document = json.loads(written)
    assert document["conversation"]["conversation_key"] == key
    assert [item["reply"] and item["reply"]["state"] for item in document["messages"]] == ["late", None, None]
    assert URL not in written


async def test_an_export_goes_to_a_new_private_file(terminal: Terminal, key: str) -> None:
    result = await terminal.run("conversation", "export", key, "--to", "theirs.json")
    again = await terminal.run("conversation", "export", key, "--to", "theirs.json", code=1)

    file = terminal.folder / "theirs.json"
    assert result.stdout == "3 messages written to theirs.json\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(file.read_text())["messages"]) == 3
    assert again.stderr == "pabal: to: theirs.json cannot be created: File exists\n"


async def test_erase_shows_the_counts_and_asks(terminal: Terminal, key: str) -> None:
    refused = await terminal.run("conversation", "erase", key, feed="n\n", code=1)
    assert await left(terminal) == 6

    done = await terminal.run("conversation", "erase", key, feed="y\n")

    assert refused.stderr == f"Erase {HELD}? [y/N] pabal: Nothing erased\n"
    assert done.stdout == f"{HELD} erased\n"
    assert await left(terminal) == 0
    actor = await terminal.event_queue.owner.fetchval(
        "select actor from pabal.audit_log where subject = $1", conversation_pseudonym(key)
    )
    assert actor.startswith("cli:")


async def test_yes_skips_the_question(terminal: Terminal, key: str) -> None:
    done = await terminal.read("conversation", "erase", key, "--yes")

    assert done == {"messages": 3, "replies": 1, "events": 0, "dead_letters": 0, "others": 2, "rows": 6}
    assert await left(terminal) == 0


@pytest.mark.parametrize("args", [["export"], ["erase"], ["erase", "--yes"]])
async def test_an_unknown_key_is_one_line(terminal: Terminal, args: list[str]) -> None:
    refused = await terminal.run("conversation", *args, "channel:nobody", code=1)

    assert (refused.stdout, refused.stderr) == ("", "pabal: No such conversation\n")
