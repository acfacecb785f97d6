"""Failures behind an open stream: the stream recovers, or ends so that its client reconnects."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from pabal.db.doorbell.channels import Channel
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.long_poll import StreamWaiter
from pabal.relay.conversations import unpair_conversation
from pabal.relay.delivery import control_events, stream_registry
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from relay.bot import StreamClient, connect_stream
from relay.people import TESTER
from support.clusters import open_connection
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
KEY = "channel:user"
Capture = pytest.CaptureFixture[str]
COUNT_WAITING = (
    "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


async def unpair(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await unpair_conversation(tx, KEY, TESTER)


@asynccontextmanager
async def open_stream(hub: Hub, database_urls: DatabaseUrls, owner: Owner) -> AsyncGenerator[StreamClient]:
    """A stream of a hub with these database URLs."""
    async with (
        open_hub(hub.settings, database_urls) as other_hub,
        serve_hub(other_hub) as address,
        connect_stream(address, owner.token) as client,
    ):
        await client.next("connected")
        yield client


class TestDatabaseOutage:
    """Outages that are longer than the lookback, which is shortened here."""

    @pytest.fixture(autouse=True)
    def _short_lookback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(control_events, "CONTROL_EVENT_LOOKBACK", timedelta(seconds=0.3))

    @staticmethod
    async def unpair_during_outage(hub: Hub, chat: Chat) -> None:
        await unpair(hub)
        is_old = "select created_at < pabal.now() - interval '0.5 s' from relay_control_events"
        await wait_until(lambda: chat.db.fetchval(is_old))

    async def test_control_events_of_an_outage_are_sent_after_it(
        self, hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
    ) -> None:
        async with (
            run_fault_proxy(database_urls.main) as (proxy, url),
            open_stream(hub, DatabaseUrls(url, None), owner) as client,
        ):
            self.cut(proxy)
            await self.unpair_during_outage(hub, chat)
            proxy.pass_bytes()
            assert (await client.first()).name == "unpaired"

    async def test_control_events_are_sent_without_a_notification(
        self, hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
    ) -> None:
        assert database_urls.direct
        async with (
            run_fault_proxy(database_urls.direct) as (proxy, url),
            open_stream(hub, DatabaseUrls(database_urls.main, url), owner) as client,
        ):
            self.cut(proxy)
            await self.unpair_during_outage(hub, chat)
            assert (await client.first()).name == "unpaired"
            proxy.pass_bytes()

    @staticmethod
    def cut(proxy: FaultProxy) -> None:
        proxy.drop_bytes()
        proxy.reset()


async def test_a_malformed_control_event_does_not_block_others(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Capture
) -> None:
    async with open_stream(hub, database_urls, owner) as client:
        await chat.db.execute(
            "insert into relay_control_events (kind, account_id, data) values ('unpaired', $1, '[]')", owner.id
        )
        await unpair(hub)
        assert (await client.first()).data == {"conversationKey": KEY, "reason": "unpaired"}
    assert "control event failed" in capsys.readouterr().out


async def test_reading_control_events_recovers_after_errors(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Capture
) -> None:
    async with open_stream(hub, database_urls, owner) as client:
        await chat.db.execute("alter table relay_control_events rename to renamed")
        await wait_until(lambda: "control events not read" in capsys.readouterr().out)
        await chat.db.execute("alter table renamed rename to relay_control_events")
        await unpair(hub)
        assert (await client.first()).name == "unpaired"


async def test_the_stream_keepalive_recovers_after_errors(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_registry, "KEEPALIVE_INTERVAL", timedelta())
    async with open_stream(hub, database_urls, owner) as client:
        await chat.message(owner, KEY, None)
        await client.next_message()
        await chat.db.execute("alter table relay_streams rename to renamed")
        await wait_until(lambda: "stream keepalive failed" in capsys.readouterr().out)
        await chat.db.execute("alter table renamed rename to relay_streams")
        before = await chat.db.fetchrow("select s.alive_until, m.leased_until from relay_streams s, inbound_messages m")
        assert before
        query = "select s.alive_until > $1 and m.leased_until > $2 from relay_streams s, inbound_messages m"
        await wait_until(lambda: chat.db.fetchval(query, *before))


async def test_a_stream_opened_while_the_hub_stops_ends(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
) -> None:
    async def read_all(address: str) -> list[str]:
        async with connect_stream(address, owner.token) as client:
            while await client.read():
                continue
            return [event.name for event in client.received]

    assert database_urls.direct
    async with serve_hub(hub) as address, open_connection(database_urls.direct) as blocker, asyncio.timeout(10):
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("lock table accounts")  # the token lookup waits for it
        events = asyncio.create_task(read_all(address))
        await wait_until(lambda: chat.db.fetchval(COUNT_WAITING))
        await hub.begin_shutdown()
        await transaction.rollback()
        assert await events == ["connected"]


async def test_a_consumer_that_fails_on_delivery_does_not_block_others(
    hub: Hub, chat: Chat, owner: Owner, capsys: Capture
) -> None:
    def refuse(_rows: list[ClaimedMessage]) -> None:
        raise RuntimeError("the consumer fails")

    other = await chat.owner()
    long_poll, failing = hub.relay.long_poll, StreamWaiter[ClaimedMessage](1, refuse)
    long_poll.subscribe(MessagePollRequest(owner.id, "failing", MINUTE), failing)
    polling = asyncio.create_task(
        long_poll.poll(MessagePollRequest(other.id, "poll:other", MINUTE), 1, timedelta(seconds=10))
    )
    await wait_until(lambda: len(long_poll._waiters) == 2 and hub.db.connections_in_use() == 0)
    await chat.message(owner, KEY, None)
    message = await chat.message(other, await chat.conversation(other, "other"), None)
    hub.doorbell.notify([Channel.MESSAGES])

    assert [claimed.id for claimed in await polling] == [message]
    long_poll.unsubscribe(MessagePollRequest(owner.id, "failing", MINUTE), failing, [])
    assert "delivery to waiter failed" in capsys.readouterr().out


async def test_streams_of_a_stopping_hub_end_cleanly_with_a_hint_to_come_back(hub: Hub, owner: Owner) -> None:
    async with serve_hub(hub) as address, connect_stream(address, owner.token) as client, asyncio.timeout(10):
        await client.first()
        await hub.begin_shutdown()

        assert await client.read() is None
        assert re.search(rb": stopping\nretry: [0-9]{3,4}\n\n\Z", client.raw)
