import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.db.doorbell import doorbell, notify
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.doorbell.notify import check_listen_notify
from pabal.db.doorbell.outbox import WakeupOutbox, encode_wakeups
from pabal.db.waiting import stop_tasks
from pabal.hub import DatabaseUrls, Hub, connect_options, open_hub
from pabal.settings import Settings
from support.clusters import Connection, open_connection
from support.fault_proxy import run_fault_proxy
from support.inbox import Inbox
from support.wait import wait_until

pytestmark = pytest.mark.anyio

TIMEOUT, SHORT_TIMEOUT = timedelta(seconds=10), timedelta(milliseconds=50)


@pytest.fixture
async def other_hub(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    """A second process of the same hub."""
    async with open_hub(settings, database_urls) as hub:
        yield hub


async def test_a_notification_wakes_another_process(hub: Hub, other_hub: Hub) -> None:
    await wait_until(lambda: other_hub.doorbell.listening)
    with other_hub.doorbell.listen(Channel.EVENTS) as events, other_hub.doorbell.listen(Channel.MESSAGES) as messages:
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)

        assert await events.wait(TIMEOUT)
        assert not await messages.wait(SHORT_TIMEOUT)


async def test_a_process_receives_its_own_notification_at_once_and_once(hub: Hub) -> None:
    await wait_until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.EVENTS) as listener:
        async with hub.transaction() as tx:
            tx.notify(Channel.EVENTS)

        assert await listener.wait(SHORT_TIMEOUT)
        assert not await listener.wait(SHORT_TIMEOUT)


async def test_topics_reach_every_process(hub: Hub, other_hub: Hub) -> None:
    await wait_until(lambda: other_hub.doorbell.listening)
    with (
        other_hub.doorbell.listen(Channel.MESSAGES) as remote,
        hub.doorbell.listen(Channel.MESSAGES) as local,
    ):
        async with hub.transaction() as tx:
            tx.notify(Channel.MESSAGES, "one")
            tx.notify(Channel.MESSAGES, "another")

        for listener in (local, remote):
            assert await listener.wait_for_topics(TIMEOUT)
            assert listener.take_topics() == {"one", "another"}
            assert not await listener.wait_for_topics(SHORT_TIMEOUT)


def test_topics_that_exceed_one_notify_payload_wake_all_listeners() -> None:
    wakeups = {Wakeup(Channel.MESSAGES, f"{number:036}") for number in range(150)}

    assert len(encode_wakeups(wakeups)) == 150
    assert encode_wakeups({*wakeups, *(Wakeup(Channel.MESSAGES, f"x{number:036}") for number in range(50))}) == [
        "messages"
    ]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("topic", ["x" * 7950, "가" * 2700])
def test_a_foreign_topic_that_fills_a_payload_is_shortened_beside_others(topic: str) -> None:
    others = [Wakeup(channel, "short") for channel in Channel if channel is not Channel.EVENTS]

    for wakeups in ([*others, Wakeup(Channel.EVENTS, topic)], [Wakeup(Channel.EVENTS, topic), *others]):
        assert encode_wakeups(wakeups) == sorted(["events", *map(str, others)])


async def test_a_wakeup_between_listening_and_waiting_is_not_missed(hub: Hub) -> None:
    await wait_until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.EVENTS) as listener:
        hub.doorbell.notify([Channel.EVENTS])
        hub.doorbell.notify([Channel.EVENTS])

        assert await listener.wait(SHORT_TIMEOUT)
        assert not await listener.wait(SHORT_TIMEOUT)


async def test_waiting_holds_no_connection_and_leaves_no_listener_behind(hub: Hub) -> None:
    await wait_until(lambda: hub.doorbell.listening)
    tasks = [asyncio.create_task(hub.doorbell.wait(Channel.EVENTS, TIMEOUT)) for _ in range(200)]
    await wait_until(lambda: len(hub.doorbell._listeners[Channel.EVENTS]) == 200)
    assert hub.db.connections_in_use() == 0

    hub.doorbell.notify([Channel.EVENTS])

    assert all(await asyncio.gather(*tasks))
    assert not hub.doorbell._listeners[Channel.EVENTS]


async def test_unknown_payloads_are_ignored(hub: Hub, database_urls: DatabaseUrls) -> None:
    await wait_until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.TOKENS) as listener:
        async with open_connection(database_urls.main) as client:
            for payload in ("", " ", "sender", "sender unknown channels", "sender tokens unknown"):
                await client.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, payload)

        assert await listener.wait(TIMEOUT)
    assert hub.doorbell.listening


async def test_many_wakeups_are_sent_in_few_notifies(hub: Hub, database_urls: DatabaseUrls) -> None:
    payloads: list[str] = []
    async with open_connection(database_urls.main) as connection:
        await connection.add_listener(
            NOTIFY_CHANNEL, lambda _conn, _pid, _channel, payload: payloads.append(str(payload))
        )
        for _ in range(500):
            hub.doorbell.notify([Channel.EVENTS, Channel.MESSAGES])

        await wait_until(lambda: any(payload.endswith("events messages") for payload in payloads))
        await connection.execute("select pg_notify($1, 'last')", NOTIFY_CHANNEL)
        await wait_until(lambda: "last" in payloads)

    assert len([payload for payload in payloads if "events" in payload]) < 5


async def test_wakeups_are_sent_at_once_and_then_at_most_every_five_milliseconds(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    loop, payloads = asyncio.get_running_loop(), list[str]()
    async with open_connection(database_urls.main) as connection:
        await connection.add_listener(
            NOTIFY_CHANNEL, lambda _conn, _pid, _channel, payload: payloads.append(str(payload))
        )
        began = loop.time()
        while loop.time() - began < 0.1:
            hub.doorbell.notify([Channel.TOASTS])
            await asyncio.sleep(0)
        await hub.doorbell._notify_outbox.flush()
        await connection.execute("select pg_notify($1, 'last')", NOTIFY_CHANNEL)
        await wait_until(lambda: "last" in payloads)
        elapsed = loop.time() - began

    assert 2 <= len([payload for payload in payloads if "toasts" in payload]) <= elapsed / 0.005 + 2


async def test_the_first_wakeup_waits_for_nothing() -> None:
    sent: list[set[Wakeup]] = []

    async def send(wakeups: set[Wakeup]) -> None:
        sent.append(wakeups)

    outbox = WakeupOutbox(send, interval=3600)
    sending = asyncio.create_task(outbox.run())
    outbox.add([Wakeup(Channel.EVENTS)])
    await wait_until(lambda: len(sent) == 1)
    outbox.add([Wakeup(Channel.EVENTS), Wakeup(Channel.TOASTS)])
    outbox.add([Wakeup(Channel.EVENTS)])
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(sent) == 1
    await stop_tasks([sending])
    await outbox.flush()

    assert sent[1] == {Wakeup(Channel.EVENTS), Wakeup(Channel.TOASTS)}


async def test_tasks_that_swallow_a_cancellation_are_stopped() -> None:
    cancellations: list[int] = []

    async def swallow() -> None:
        while len(cancellations) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations.append(1)

    task = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT.total_seconds()):
        await stop_tasks([task])

    assert task.done()


async def test_a_notification_requested_by_plain_sql_wakes_the_dispatcher(
    hub: Hub, owner: Connection, inbox: Inbox
) -> None:
    await inbox.request()  # its template exists
    await wait_until(lambda: hub.doorbell.listening)
    with hub.doorbell.listen(Channel.NOTIFICATIONS) as listener:
        await owner.execute("select notification.request('user_dm', '100', 'test.payment', '{}')")

        assert await listener.wait(TIMEOUT)


async def test_all_listeners_are_woken_after_a_reconnect(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with run_fault_proxy(database_urls.direct or database_urls.main) as (proxy, url):
        second_doorbell = Doorbell(hub.db, connect_options(settings, url, pooler=False))
        await second_doorbell.open()
        try:
            await wait_until(lambda: second_doorbell.listening)
            with second_doorbell.listen(Channel.NOTIFICATIONS) as listener:
                proxy.reset()
                await wait_until(lambda: not second_doorbell.listening)

                assert await listener.wait(TIMEOUT)
                assert second_doorbell.listening
        finally:
            await second_doorbell.close()
    assert not second_doorbell.listening


async def test_a_silently_dead_connection_is_detected(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with run_fault_proxy(database_urls.direct or database_urls.main) as (proxy, url):
        second_doorbell = Doorbell(
            hub.db, connect_options(settings, url, pooler=False), keepalive_interval=timedelta(milliseconds=50)
        )
        await second_doorbell.open()
        try:
            await wait_until(lambda: second_doorbell.listening)
            proxy.drop_bytes()
            await wait_until(lambda: not second_doorbell.listening)
            proxy.pass_bytes()
            await wait_until(lambda: second_doorbell.listening)
        finally:
            await second_doorbell.close()


async def test_the_self_test_receives_its_own_notification(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert await check_listen_notify(connect_options(settings, database_urls.main, pooler=False))


async def test_sending_continues_after_an_unexpected_error(
    hub: Hub, other_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wait_until(lambda: other_hub.doorbell.listening)
    calls: list[str] = []

    def fail(wakeups: object) -> list[str]:
        calls.append(str(wakeups))
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(doorbell, "encode_wakeups", fail)
        hub.doorbell.notify([Channel.EVENTS])
        await wait_until(lambda: bool(calls))
    with other_hub.doorbell.listen(Channel.EVENTS) as listener:
        hub.doorbell.notify([Channel.EVENTS])

        assert await listener.wait(TIMEOUT)


async def test_listening_continues_after_an_unexpected_error(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail(*arguments: object) -> dict[str, object]:
        calls.append(str(arguments))
        raise ZeroDivisionError

    second_doorbell = Doorbell(
        hub.db, connect_options(settings, database_urls.direct or database_urls.main, pooler=False)
    )
    with monkeypatch.context() as patch:
        patch.setattr(notify, "connect_arguments", fail)
        await second_doorbell.open()
        await wait_until(lambda: len(calls) > 1)
        assert not second_doorbell.listening
    try:
        await wait_until(lambda: second_doorbell.listening)
    finally:
        await second_doorbell.close()
