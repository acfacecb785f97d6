"""`pabal message`, and `pabal trace` of a message."""

import json
from datetime import timedelta

import pytest

from pabal.relay.delivery.lane import LANE
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.encryption.encrypted_values import NORMALIZED_REFERENCE, encrypt_payload
from support.relay_rows import Chat, Owner
from support.terminal import Terminal, read_line

pytestmark = pytest.mark.anyio

URL = "https://bot-api.kakao.com/callback/secret"
REPLY = """
insert into relay_replies (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, settled_at,
                           response, answered_at, status_code, kakao)
values ($1, $2, $3, 'agent', 'sent', gen_random_uuid(), pabal.now(), pabal.now(), '{"version": "2.0"}', pabal.now(),
        200, '{"status": "SUCCESS"}')
returning id
"""


@pytest.fixture
def chat(terminal: Terminal) -> Chat:
    return Chat(terminal.event_queue.owner)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


@pytest.fixture
async def key(chat: Chat, owner: Owner) -> str:
    return await chat.conversation(owner)


async def test_messages_are_listed_in_pages(terminal: Terminal, chat: Chat, owner: Owner, key: str) -> None:
    first = await chat.message(owner, key, None)
    second = await chat.message(owner, key, URL)
    async with terminal.event_queue.hub.transaction() as tx:
        await ack_messages(tx, owner.id, [first])

    table = (await terminal.run("message", "list", "--conversation", key)).stdout
    page = await terminal.read("message", "list", "--account", str(owner.id), "--limit", "1")
    rest = await terminal.read(
        "message", "list", "--account", str(owner.id), "--limit", "1", "--cursor", page["cursor"]
    )
    acked = await terminal.read("message", "list", "--status", "ACKED")
    none = await terminal.run("message", "list", "--status", "EXPIRED")

    assert [line.split()[0] for line in table.splitlines()[1:]] == [str(second), str(first)]
    assert "ACKED (acked)" in table
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [str(second), str(first)]
    assert rest["cursor"] is None
    assert [item["id"] for item in acked["items"]] == [str(first)]
    assert none.stdout == "No messages.\n"


async def test_a_message_is_shown_with_its_reply_but_without_its_callback(
    terminal: Terminal, chat: Chat, owner: Owner, key: str
) -> None:
    message = await chat.message(owner, key, URL)
    await chat.db.execute(
        "update inbound_messages set kakao_payload = $1::text::jsonb",
        json.dumps({"userRequest": {"utterance": "안녕", "callbackUrl": URL}}),
    )
    reply = await chat.db.fetchval(REPLY, message, owner.id, key)

    shown = (await terminal.run("message", "show", str(message))).stdout
    whole = await terminal.read("message", "show", str(message))

    assert ["reply", "id", str(reply)] in [line.split() for line in shown.splitlines()]
    assert '"utterance": "안녕"' in shown
    assert "Kakao's response" in shown
    assert (whole["payload"], whole["reply"]["id"]) == ({"userRequest": {"utterance": "안녕"}}, str(reply))
    assert URL not in shown + json.dumps(whole)


async def test_tail_prints_new_and_changed_messages(terminal: Terminal, chat: Chat, owner: Owner, key: str) -> None:
    async with terminal.follow("message") as command:
        message = await chat.message(owner, key, None)
        came = await read_line(command)
        async with terminal.event_queue.hub.autocommit() as tx:
            await LANE.claim(tx, 1, timedelta(minutes=1), "poll:x", owner.id)
        handed = await read_line(command)
        async with terminal.event_queue.hub.transaction() as tx:
            await ack_messages(tx, owner.id, [message])
        ended = await read_line(command)

    assert f"received  {message}  {key}  QUEUED" in came
    assert f"changed   {message}  {key}  DELIVERED" in handed
    assert f"changed   {message}  {key}  ACKED (acked)" in ended
    assert all(item[23:29] == "+09:00" for item in (came, handed, ended))


async def test_tail_filters(terminal: Terminal, chat: Chat, owner: Owner, key: str) -> None:
    other = await chat.owner()
    async with terminal.follow("message", "--account", str(other.id), "--json") as command:
        await chat.message(owner, key, None)
        theirs = await chat.message(other, "channel:other", None)
        result = json.loads(await read_line(command))

    assert (result["what"], result["id"], result["status"]) == ("came", str(theirs), "QUEUED")


async def test_a_message_is_traced_by_its_id_or_its_replys(
    terminal: Terminal, chat: Chat, owner: Owner, key: str
) -> None:
    message = await chat.message(owner, key, URL)
    reply = await chat.db.fetchval(REPLY, message, owner.id, key)

    text = (await terminal.run("trace", str(message))).stdout
    result = await terminal.read("trace", str(reply))

    heading, status_line, empty, *lines = text.splitlines()
    assert heading == f"message {message}  {key} → {owner.id}"
    assert status_line.startswith(("  QUEUED, expires in 14 min ", "  QUEUED, expires in 15 min 0 s"))
    assert empty == ""
    assert [item[45:].partition(" (")[0] for item in lines] == [
        f"accepted from {key}, with a callback",
        f"replied through the callback: reply {reply}",
        "Kakao accepted the reply: 200 SUCCESS",
    ]
    assert all(item[31] == "+" for item in lines[1:])
    assert result.keys() == {"about", "kind", "messages", "reply", "moments"}
    assert (result["about"], result["kind"], result["reply"]["id"]) == (str(reply), "reply", str(reply))
    assert [item["kind"] for item in result["moments"]] == ["accepted", "answered", "sent"]
    assert [item["after"] is None for item in result["moments"]] == [True, False, False]
    assert URL not in text + json.dumps(result)


async def test_a_conversation_is_traced_as_its_newest_messages(
    terminal: Terminal, chat: Chat, owner: Owner, key: str
) -> None:
    nothing = (await terminal.run("trace", key)).stdout
    messages = [await chat.message(owner, key, None) for _ in range(2)]

    text = (await terminal.run("trace", key)).stdout

    assert nothing == "No messages.\n"
    assert [line.split()[0] for line in text.splitlines()[1:]] == [str(item) for item in reversed(messages)]
    assert text.count("QUEUED, expires in ") == 2


async def test_a_prefix_that_matches_two_lanes_lists_both(
    terminal: Terminal, chat: Chat, owner: Owner, key: str
) -> None:
    event = await terminal.event_queue.publish()
    message = await chat.message(owner, key, None)
    twin = str(event)[:-1] + ("0" if str(event)[-1] != "0" else "1")
    await chat.db.execute("update inbound_messages set id = $2 where id = $1", message, twin)

    refused = await terminal.run("trace", str(event)[:18], code=1)

    assert refused.stderr == f"pabal: id: {str(event)[:18]} is ambiguous: {event}, {twin}\n"
    assert (await terminal.run("trace", twin)).stdout.startswith(f"message {twin}")
    assert (await terminal.run("trace", str(event))).stdout.startswith(f"event {event}")


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["show", "01a1e213-77cd-735e-833f-ffb381ea569f"], 1, "No such message"),
        (["list", "--status", "queued"], 2, "--status"),
        (["list", "--cursor", "x"], 1, "cursor: is not a cursor of this list"),
    ],
)
async def test_a_refusal_is_one_line(terminal: Terminal, args: list[str], code: int, result: str) -> None:
    refused = await terminal.run("message", *args, code=code)

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


async def test_an_encrypted_message_is_hidden_in_lists_and_shown_with_the_keys_of_the_host(
    terminal: Terminal, chat: Chat, owner: Owner, key: str
) -> None:
    hub = terminal.event_queue.hub
    message_id = await chat.message(owner, key, None)
    async with hub.autocommit() as tx:
        data_key = (await hub.relay.cipher.load_keys(tx, {owner.id}))[owner.id]
    payload = encrypt_payload(data_key, message_id, '{"userRequest": {"callbackUrl": "secret"}}', b'{"text": "hello"}')
    await chat.db.execute(
        "update inbound_messages set kakao_payload = $2, normalized = $3 where id = $1",
        message_id,
        payload,
        NORMALIZED_REFERENCE,
    )

    table = (await terminal.run("message", "list")).stdout
    shown = await terminal.read("message", "show", str(message_id))
    exported = await terminal.run("conversation", "export", key)

    assert "(encrypted)" in table
    assert "hello" not in table
    assert (shown["text"], shown["is_encrypted"], shown["payload"]) == ("hello", True, {"userRequest": {}})
    assert '"text": "hello"' in exported.stdout
    assert "secret" not in exported.stdout
