"""A queued message notifies other processes only if one of them waits for its account, and never too late."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Self

import httpx2
import pytest

from pabal.db.doorbell import doorbell
from pabal.db.doorbell.channels import Channel, Wakeup
from pabal.db.doorbell.notify import NOTIFY_QUERY
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.delivery import lane, remote_waiters
from pabal.settings import Settings
from relay.bot import connect_stream
from relay.skills import send_message
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.statement_log import StatementLog, run_statement_log
from support.wait import COUNT_LOCK_WAITS, wait_until

pytestmark = pytest.mark.anyio

NEVER = timedelta(hours=1)
BARRIER_TIMEOUT = timedelta(seconds=30)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    owner = await chat.owner()
    await chat.conversation(owner)
    return owner


@pytest.fixture
async def counting_proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[StatementLog, DatabaseUrls]]:
    async with run_statement_log(database_urls.main) as (proxy, url):
        yield proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
def statements(counting_proxy: tuple[StatementLog, DatabaseUrls]) -> StatementLog:
    """The statements of the other process."""
    return counting_proxy[0]


@pytest.fixture
async def other_hub(
    hub: Hub,
    counting_proxy: tuple[StatementLog, DatabaseUrls],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Hub]:
    """Another process. Neither finds a message without being woken, and neither has just connected."""
    lifetime = remote_waiters.ANNOUNCEMENT_LIFETIME
    monkeypatch.setattr(remote_waiters, "ANNOUNCEMENT_LIFETIME", 0.0)
    async with open_hub(settings, counting_proxy[1]) as other:
        await wait_until(lambda: hub.doorbell.listening and other.doorbell.listening)
        monkeypatch.setattr(hub.relay.remote_waiters, "_all_awaited_until", 0.0)
        monkeypatch.setattr(remote_waiters, "ANNOUNCEMENT_LIFETIME", lifetime)
        for process in (hub, other):
            monkeypatch.setattr(process.relay.long_poll, "_poll_interval", NEVER)
        yield other


@pytest.fixture
async def other_address(other_hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(other_hub) as url:
        yield url


@pytest.fixture
async def other_web(other_address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=other_address, timeout=60) as client:
        yield client


class RecordedWakeups:
    """The topics of one channel that reach a process from another one."""

    def __init__(self, sender: Hub, receiver: Hub, channel: Channel) -> None:
        self._sender = sender
        self._receiver = receiver
        self._topics: list[str] = []
        self._listener = receiver.doorbell.listen(channel, on_wakeup=self._record)

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.__exit__()

    def _record(self, topic: str) -> bool:
        self._topics.append(topic)
        return False

    async def topics(self) -> list[str]:
        """All topics that were sent before this call."""
        with self._receiver.doorbell.listen(Channel.TOASTS) as listener:
            self._sender.doorbell.send([Wakeup(Channel.TOASTS, "barrier")])
            assert await listener.wait(BARRIER_TIMEOUT)
        return [*self._topics]


async def test_a_message_that_no_bot_waits_for_notifies_no_other_process(
    web: httpx2.AsyncClient, hub: Hub, other_hub: Hub, owner: Owner
) -> None:
    with RecordedWakeups(hub, other_hub, Channel.MESSAGES) as recorded:
        await send_message(web, "hello")
        assert await recorded.topics() == []


async def test_a_message_for_a_stream_of_this_process_notifies_no_other(
    web: httpx2.AsyncClient, hub: Hub, other_hub: Hub, chat: Chat, owner: Owner
) -> None:
    """The hub does not know the conversation yet, so the message is queued and claimed for the stream."""
    async with serve_hub(hub) as address, connect_stream(address, owner.token) as client:
        await client.next("connected")
        with RecordedWakeups(hub, other_hub, Channel.MESSAGES) as recorded:
            await send_message(web, "hello")
            assert (await client.next_message())["normalized"]["text"] == "hello"
            assert await recorded.topics() == []
    assert await chat.db.fetchval("select delivered_at > created_at from inbound_messages")


async def test_a_stream_of_another_process_is_woken(
    web: httpx2.AsyncClient, other_address: str, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_waiters, "ANNOUNCEMENT_LIFETIME", 0.0)  # it opened long ago
    async with connect_stream(other_address, owner.token) as client:
        await client.next("connected")
        for text in ("one", "two"):
            await send_message(web, text)
            assert (await client.next_message())["normalized"]["text"] == text


async def test_a_single_message_wakes_a_stream_of_another_process_at_its_commit(
    hub: Hub, other_web: httpx2.AsyncClient, statements: StatementLog, owner: Owner
) -> None:
    async with serve_hub(hub) as address, connect_stream(address, owner.token) as client:
        await client.next("connected")
        statements.clear()
        await send_message(other_web, "hello")
        await client.next_message()
        assert statements.count(NOTIFY_QUERY) == 0


async def test_frequent_messages_wake_a_stream_of_another_process_after_their_commits(
    hub: Hub,
    other_web: httpx2.AsyncClient,
    statements: StatementLog,
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doorbell, "NOTIFY_INTERVAL", NEVER.total_seconds())
    async with serve_hub(hub) as address, connect_stream(address, owner.token) as client:
        await client.next("connected")
        await send_message(other_web, "at its commit, at most")
        await client.next_message()
        statements.clear()
        await send_message(other_web, "after it")
        assert (await client.next_message())["normalized"]["text"] == "after it"
        assert statements.count(NOTIFY_QUERY) == 1


async def test_a_long_poll_of_another_process_is_woken(
    web: httpx2.AsyncClient, hub: Hub, other_hub: Hub, other_web: httpx2.AsyncClient, owner: Owner
) -> None:
    with RecordedWakeups(other_hub, hub, Channel.WAITERS) as announced:
        poll = asyncio.create_task(other_web.get("/v1/messages", params={"wait": 30}, headers=owner.header))
        await wait_until(lambda: bool(other_hub.relay.long_poll._waiters))
        assert await announced.topics() == [str(owner.id)]
    await send_message(web, "hello")
    assert [message["normalized"]["text"] for message in (await poll).json()["messages"]] == ["hello"]


async def test_a_stream_that_opens_while_a_message_is_stored_gets_it(
    web: httpx2.AsyncClient,
    other_hub: Hub,
    other_address: str,
    statements: StatementLog,
    chat: Chat,
    owner: Owner,
) -> None:
    """The statement does not see the stream, and the stream's first claim does not see the message."""
    async with chat.db.transaction():
        await chat.db.execute("select from accounts for no key update")
        sending = asyncio.create_task(send_message(web, "hello"))
        await wait_until(lambda: chat.db.fetchval(f"select ({COUNT_LOCK_WAITS}) > 0"))
        client_context = connect_stream(other_address, owner.token)
        client = await client_context.__aenter__()
        await client.next("connected")
        await wait_until(lambda: has_claimed(other_hub, statements))
    await sending
    try:
        assert (await client.next_message())["normalized"]["text"] == "hello"
    finally:
        await client_context.__aexit__(None, None, None)


def has_claimed(hub: Hub, statements: StatementLog) -> bool:
    """Whether the first claim of the only stream has ended."""
    [stream] = hub.relay.stream_registry
    return statements.count(lane.LANE.q.claim) > 0 and not hub.relay.long_poll.is_claiming(stream.poll_request)


async def test_an_announcement_that_arrives_after_the_message_was_queued_wakes_its_sender(
    web: httpx2.AsyncClient, hub: Hub, other_hub: Hub, owner: Owner
) -> None:
    await send_message(web, "hello")
    received = asyncio.Event()

    def receive(topic: str) -> bool:
        if topic == str(owner.id):
            received.set()
        return False

    with other_hub.doorbell.listen(Channel.MESSAGES, on_wakeup=receive):
        other_hub.relay.remote_waiters.announce(str(owner.id))
        async with asyncio.timeout(BARRIER_TIMEOUT.total_seconds()):
            await received.wait()


async def test_a_process_announces_an_account_once_in_a_while(
    hub: Hub, other_hub: Hub, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(remote_waiters, "monotonic", lambda: now)
    with RecordedWakeups(other_hub, hub, Channel.WAITERS) as announced:
        other_hub.relay.remote_waiters.announce(str(owner.id))
        await announced.topics()
        other_hub.relay.remote_waiters.announce(str(owner.id))
        assert await announced.topics() == [str(owner.id)]
        assert hub.relay.remote_waiters.is_awaited(str(owner.id))
        now += remote_waiters.ANNOUNCEMENT_INTERVAL
        other_hub.relay.remote_waiters.announce(str(owner.id))
        assert await announced.topics() == [str(owner.id)] * 2
        now += remote_waiters.ANNOUNCEMENT_LIFETIME
        assert not hub.relay.remote_waiters.is_awaited(str(owner.id))


async def test_everything_is_notified_while_announcements_may_be_missing(
    hub: Hub, other_hub: Hub, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters = hub.relay.remote_waiters
    assert not waiters.is_awaited(str(owner.id))
    monkeypatch.setattr(hub.doorbell._notify, "is_connected", False)
    assert waiters.is_awaited(str(owner.id))
    monkeypatch.setattr(hub.doorbell._notify, "is_connected", True)
    hub.doorbell.wake_here(Wakeup(Channel.WAITERS))  # as when the listener has just connected
    assert waiters.is_awaited(str(owner.id))


async def test_accounts_in_memory_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_waiters, "MAX_REMEMBERED_ACCOUNTS", 3)
    accounts: dict[str, Any] = {}
    for name in ("a", "b", "c", "a", "d"):
        remote_waiters.remember(accounts, name, 0.0)
    assert [*accounts] == ["c", "a", "d"]


async def test_an_account_that_no_longer_fits_into_memory_is_still_notified(
    hub: Hub, other_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(remote_waiters, "monotonic", lambda: now)
    monkeypatch.setattr(remote_waiters, "MAX_REMEMBERED_ACCOUNTS", 1)
    waiters = hub.relay.remote_waiters
    for account in ("first", "second"):
        hub.doorbell.wake_here(Wakeup(Channel.WAITERS, account))
    assert waiters.is_awaited("first")

    now += remote_waiters.ANNOUNCEMENT_LIFETIME
    hub.doorbell.wake_here(Wakeup(Channel.WAITERS, "third"))  # an announcement that has ended is forgotten for good
    assert not waiters.is_awaited("first")
