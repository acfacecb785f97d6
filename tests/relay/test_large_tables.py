"""Large tables: every list returns one page and reads only that page."""

from datetime import timedelta

import httpx2
import pytest

from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay import messages
from pabal.relay.delivery import follow
from pabal.relay.delivery.follow import MessageFollower
from pabal.relay.delivery.stream import MAX_MESSAGES_IN_FLIGHT
from pabal.relay.messages import MessageFilter, list_messages
from pabal.relay.webhook import receive
from pabal.trace import relay
from pabal.trace.relay import trace_conversation
from relay.bot import connect_stream
from relay.marker import mark
from support.large_tables import count_pages
from support.relay_rows import Chat, Owner

pytestmark = pytest.mark.anyio

MESSAGES, PAGE = 10_000, 50
KEY = "channel:user"
MAX_PAGES = 3 * PAGE
"""Database pages per list page: each row is found by an index."""

HUB_PLANNER_SETTINGS = "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off"

FILL_TABLES = """
insert into inbound_messages (account_id, conversation_key, kakao_payload, normalized, source_event_id)
select $1, $2, '{}', jsonb_build_object('text', n::text), n::text from generate_series(1, $3::integer) n
"""


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    await chat.db.execute(FILL_TABLES, owner.id, KEY, MESSAGES)
    await chat.db.execute("analyze inbound_messages")
    return owner


@pytest.mark.parametrize("scope", ["conversation", "account", "all"])
async def test_a_long_list_is_paginated_without_gaps(hub: Hub, owner: Owner, scope: str) -> None:
    message_filter = {
        "conversation": MessageFilter(conversation_key=KEY),
        "account": MessageFilter(owner.id),
        "all": MessageFilter(),
    }[scope]
    async with hub.autocommit() as tx:
        first = await list_messages(tx, message_filter, PAGE)
        second = await list_messages(tx, message_filter, PAGE, first.cursor)

    assert [len(first.items), len(second.items)] == [PAGE, PAGE]
    assert second.cursor
    if scope != "all":  # that list is ordered by ids
        seqs = [message.seq for message in (*first.items, *second.items)]
        assert seqs == [*range(seqs[0], seqs[0] - 2 * PAGE, -1)]


async def test_a_page_of_a_long_conversation_reads_only_that_page(chat: Chat, owner: Owner) -> None:
    arguments = {
        "conversation": KEY,
        "statuses": [*messages.MESSAGE_STATUSES],
        "before": 2**62,
        "account": owner.id,
        "limit": PAGE,
    }

    page_count, rows = await count_pages(chat.db, messages.Q.list_ids_in_conversation, arguments)

    assert rows == PAGE
    assert page_count <= MAX_PAGES


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_webhook_in_a_long_conversation_reads_no_other_messages_of_it(chat: Chat, is_encrypted: bool) -> None:
    """Also if the conversation has become long since the statement was planned."""
    owner = await chat.owner()
    await chat.conversation(owner)
    fill = f"""
        insert into inbound_messages (
            account_id, conversation_key, kakao_payload, normalized, source_event_id, status, acked_at, ended_at, reason
        )
        select '{owner.id}', '{KEY}', '{{}}', '{{}}', n::text, 'ACKED', now(), now(), 'acked'
        from generate_series(1, {MESSAGES}) n
    """
    second = timedelta(seconds=1)
    arguments = {
        "positions": [0],
        "keys": [KEY],
        "channels": ["channel"],
        "users": ["user"],
        "source_events": ["new"],
        "payloads": ["{}"],
        "normalized": ["{}"],
        "callbacks": [None],
        "key_accounts": [owner.id],
        "is_encrypted": is_encrypted,
        "ids": [new_id()],
        "streams": [None],
        "holders": [None],
        "auto_holds": [None],
        "holds": [None],
        "process": new_id(),
        "is_awaited": False,
        "notify_channel": "",
        "notify_prefix": None,
        "lease": new_id(),
        **dict.fromkeys(("lease_life", "poll_span", "callback_life", "queue_life"), second),
        **dict.fromkeys(("new_per_hub", "new_per_channel"), 10),
        **dict.fromkeys(("per_conversation", "per_channel"), 0),
    }

    page_count, rows = await count_pages(
        chat.db,
        receive.Q.receive_messages,
        arguments,
        prepare=HUB_PLANNER_SETTINGS,
        grow=fill,
    )

    assert rows == 1
    assert page_count <= MAX_PAGES


async def test_a_trace_shows_the_newest_messages(hub: Hub, owner: Owner) -> None:
    async with hub.autocommit() as tx:
        trace = await trace_conversation(tx, KEY, owner.id)

    assert trace
    assert len(trace.messages) == relay.MAX_RECENT_MESSAGES


async def test_a_follower_reads_a_bounded_number_of_messages(hub: Hub, owner: Owner) -> None:
    follower = MessageFollower(owner.id)
    async with hub.autocommit() as tx:
        await follower.start(tx)
        assert await follower.poll(tx) == []

    assert len(follower._seen) <= follow.MAX_FOLLOWED_MESSAGES


async def test_a_poll_returns_at_most_a_hundred_messages(web: httpx2.AsyncClient, owner: Owner) -> None:
    page = (await web.get("/v1/messages", params={"limit": 100}, headers=owner.header)).json()

    assert [message["normalized"]["text"] for message in page["messages"]] == [str(n) for n in range(1, 101)]
    assert page["hasMore"] is True


async def test_a_full_stream_gets_no_more_messages_until_it_answers(
    hub: Hub, web: httpx2.AsyncClient, owner: Owner
) -> None:
    async with connect_stream(str(web.base_url), owner.token) as client:
        await client.next("connected")
        ids = [(await client.next_message())["id"] for _ in range(MAX_MESSAGES_IN_FLIGHT)]
        assert await client.until(await mark(hub, owner.id)) == []

        await web.post("/v1/messages/ack", json={"messageIds": ids[:3]}, headers=owner.header)
        for _ in range(3):
            await client.next_message()
        assert await client.until(await mark(hub, owner.id)) == []
    assert client.messages() == [str(n) for n in range(1, MAX_MESSAGES_IN_FLIGHT + 4)]
