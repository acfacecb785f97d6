"""What goes wrong behind an open stream is noticed, and the stream goes on, or ends so that its client comes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from pabal.db.channels import Channel
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.long_poll import StreamWaiter
from pabal.relay.conversations import unpair_conversation
from pabal.relay.delivery import stream, stream_registry
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from relay.bot import Bot, bot
from relay.people import TESTER
from support.clusters import connected
from support.fault_proxy import FaultProxy, between
from support.relay_rows import Chat, Owner
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
KEY = "channel:user"
Printed = pytest.CaptureFixture[str]
WAITING = "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


async def unpair(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await unpair_conversation(tx, KEY, TESTER)


@asynccontextmanager
async def listening(hub: Hub, database_urls: DatabaseUrls, owner: Owner) -> AsyncGenerator[Bot]:
    """A stream in a process that takes these ways to the database."""
    async with (
        open_hub(hub.settings, database_urls) as elsewhere,
        serving(elsewhere) as address,
        bot(address, owner.token) as client,
    ):
        await client.next("connected")
        yield client


class TestADatabaseThatIsAway:
    """Longer than anybody looks back, which is a minute; here it is a moment."""

    @pytest.fixture(autouse=True)
    def _a_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream, "CONTROL_EVENT_LOOKBACK", timedelta(seconds=0.3))

    @staticmethod
    async def happens_meanwhile(hub: Hub, chat: Chat) -> None:
        await unpair(hub)
        old = "select created_at < pabal.now() - interval '0.5 s' from relay_news"
        await until(lambda: chat.db.fetchval(old))

    async def test_what_happened_meanwhile_is_told_when_it_is_back(
        self, hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
    ) -> None:
        async with (
            between(database_urls.main) as (proxy, url),
            listening(hub, DatabaseUrls(url, None), owner) as client,
        ):
            self.cut(proxy)
            await self.happens_meanwhile(hub, chat)
            proxy.flow()
            assert (await client.first()).name == "unpaired"

    async def test_what_happened_while_nobody_heard_the_bell_is_told(
        self, hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
    ) -> None:
        assert database_urls.direct
        async with (
            between(database_urls.direct) as (proxy, url),
            listening(hub, DatabaseUrls(database_urls.main, url), owner) as client,
        ):
            self.cut(proxy)
            await self.happens_meanwhile(hub, chat)
            assert (await client.first()).name == "unpaired"
            proxy.flow()

    @staticmethod
    def cut(proxy: FaultProxy) -> None:
        proxy.swallow()
        proxy.reset()


async def test_news_that_nobody_understands_keep_no_others_from_anybody(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Printed
) -> None:
    async with listening(hub, database_urls, owner) as client:
        await chat.db.execute("insert into relay_news (kind, account_id, data) values ('unpaired', $1, '[]')", owner.id)
        await unpair(hub)
        assert (await client.first()).data == {"conversationKey": KEY, "reason": "unpaired"}
    assert "news not told" in capsys.readouterr().out


async def test_streams_that_hear_nothing_for_a_while_hear_again(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Printed
) -> None:
    async with listening(hub, database_urls, owner) as client:
        await chat.db.execute("alter table relay_news rename to elsewhere")
        await until(lambda: "streams hear nothing" in capsys.readouterr().out)
        await chat.db.execute("alter table elsewhere rename to relay_news")
        await unpair(hub)
        assert (await client.first()).name == "unpaired"


async def test_streams_that_are_not_kept_for_a_while_are_kept_again(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_registry, "KEEPALIVE_INTERVAL", timedelta())
    async with listening(hub, database_urls, owner) as client:
        await chat.message(owner, KEY, None)
        await client.next_message()
        await chat.db.execute("alter table relay_streams rename to elsewhere")
        await until(lambda: "streams not kept" in capsys.readouterr().out)
        await chat.db.execute("alter table elsewhere rename to relay_streams")
        since = await chat.db.fetchrow("select s.alive_until, m.leased_until from relay_streams s, inbound_messages m")
        assert since
        kept = "select s.alive_until > $1 and m.leased_until > $2 from relay_streams s, inbound_messages m"
        await until(lambda: chat.db.fetchval(kept, *since))


async def test_a_stream_that_is_opened_while_the_hub_stops_ends(
    hub: Hub, database_urls: DatabaseUrls, chat: Chat, owner: Owner
) -> None:
    async def everything(address: str) -> list[str]:
        async with bot(address, owner.token) as client:
            while await client.read():
                continue
            return [event.name for event in client.heard]

    assert database_urls.direct
    async with serving(hub) as address, connected(database_urls.direct) as somebody, asyncio.timeout(10):
        slow = somebody.transaction()
        await slow.start()
        await somebody.execute("lock table accounts")  # where its token is looked up
        heard = asyncio.create_task(everything(address))
        await until(lambda: chat.db.fetchval(WAITING))
        await hub.begin_shutdown()
        await slow.rollback()
        assert await heard == ["connected"]


async def test_somebody_who_cannot_take_what_they_are_given_keeps_nothing_from_others(
    hub: Hub, chat: Chat, owner: Owner, capsys: Printed
) -> None:
    def refuse(_rows: list[ClaimedMessage]) -> None:
        raise RuntimeError("no hands free")

    other = await chat.owner()
    desk, clumsy = hub.relay.long_poll, StreamWaiter[ClaimedMessage](1, refuse)
    desk.subscribe(MessagePollRequest(owner.id, "clumsy", MINUTE), clumsy)
    taking = asyncio.create_task(
        desk.poll(MessagePollRequest(other.id, "poll:other", MINUTE), 1, timedelta(seconds=10))
    )
    await until(lambda: len(desk._waiters) == 2 and hub.db.connections_in_use() == 0)
    await chat.message(owner, KEY, None)
    message = await chat.message(other, await chat.conversation(other, "other"), None)
    hub.doorbell.notify([Channel.MESSAGES])

    assert [held.id for held in await taking] == [message]
    desk.unsubscribe(MessagePollRequest(owner.id, "clumsy", MINUTE), clumsy, [])
    assert "delivery to waiter failed" in capsys.readouterr().out
