"""Under load, publishers in their own transactions do not notify, and no event waits for it."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel
from pabal.db.doorbell.load_polling import LOAD_COUNT
from pabal.events.consume.lane import ClaimedEvent
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.outcome import DONE, Outcome
from pabal.settings import Settings
from support.clusters import Connection, open_connection
from support.wait import wait_until
from support.worker import run_worker

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
PUBLISH = "select pabal.publish('hub', 'order.paid', target => 'minu_build')"
TO_MINU_BUILD = "sql events/minu_build"
POLLING = "select setval('pabal.polling_until', (extract(epoch from clock_timestamp()) * 1000)::bigint + {})"
POLLING_ON, POLLING_OFF, AN_HOUR_AHEAD = POLLING.format(55_000), POLLING.format(-1), POLLING.format(3_600_000)


@pytest.fixture
async def publisher(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A connection that is not the hub's."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        yield conn


class Notifications:
    """What a listening connection hears."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self) -> None:
        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            self._heard.put_nowait(str(payload))

        await self._conn.add_listener(NOTIFY_CHANNEL, hear)

    async def until_now(self) -> list[str]:
        """All notifications of transactions that have committed; a mark sent now arrives after them."""
        await self._conn.execute(f"select pg_notify('{NOTIFY_CHANNEL}', 'mark')")
        heard: list[str] = []
        while (payload := await self._heard.get()) != "mark":
            heard.append(payload)
        return heard


@pytest.fixture
async def notifications(database_urls: DatabaseUrls) -> AsyncGenerator[Notifications]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        notifications = Notifications(conn)
        await notifications.listen()
        yield notifications


async def announce_load(conn: Connection) -> None:
    """As many notifications as publishers under load send, at once."""
    await conn.execute(
        f"select pg_notify('{NOTIFY_CHANNEL}', 'sql events/' || n) from generate_series(1, {LOAD_COUNT}) n"
    )


async def test_a_publisher_notifies_once_per_transaction(publisher: Connection, notifications: Notifications) -> None:
    async with publisher.transaction():
        await publisher.execute(PUBLISH)
        await publisher.execute(PUBLISH)
    await publisher.execute(PUBLISH)

    assert await notifications.until_now() == [TO_MINU_BUILD] * 2


@pytest.mark.parametrize(
    ("targets", "payloads"),
    [
        (["minu_keep", "minu_keep"], {"sql events/minu_keep"}),
        (["minu_build", "minu_keep"], {"sql events"}),
        (["minu_build", None, "minu_build"], {"sql events"}),
        ([None], {"sql events"}),
    ],
    ids=["one service", "two services", "a broadcast in between", "a broadcast"],
)
async def test_a_notification_names_the_only_service_of_its_transaction(
    publisher: Connection, notifications: Notifications, targets: list[str | None], payloads: set[str]
) -> None:
    async with publisher.transaction():
        for target in targets:
            await publisher.execute("select pabal.publish('hub', 'order.paid', target => $1)", target)

    assert {*await notifications.until_now()} == payloads


async def test_the_delivery_to_the_hub_that_a_rule_matches_does_not_wake_other_services(
    owner: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('hub', 'rule', '{order.*}')"
    )
    await publisher.execute(PUBLISH)

    assert await owner.fetchval("select count(*) from public.event_queue where target_service = 'hub'") == 1
    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_second_service_in_a_savepoint_that_is_rolled_back_does_not_count(
    publisher: Connection, notifications: Notifications
) -> None:
    async with publisher.transaction():
        await publisher.execute(PUBLISH)
        savepoint = publisher.transaction()
        await savepoint.start()
        await publisher.execute("select pabal.publish('hub', 'order.paid', target => 'minu_keep')")
        await savepoint.rollback()

    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_role_that_may_insert_events_needs_no_other_right(
    publisher: Connection, notifications: Notifications
) -> None:
    columns = "event_type, source_service, target_service"
    insert = f"insert into public.event_queue ({columns}) values ('order.paid', 'hub', 'minu_build')"
    async with publisher.transaction():
        await publisher.execute(
            """
            create role inserting_app;
            grant insert on public.event_queue to inserting_app;
            create policy inserting_app on public.event_queue for insert to inserting_app with check (true);
            set local role inserting_app;
            """
        )
        await publisher.execute(insert)
        await publisher.execute(insert)
        await publisher.execute(
            """
            reset role;
            drop policy inserting_app on public.event_queue;
            drop owned by inserting_app;
            drop role inserting_app;
            """
        )

    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_publisher_does_not_notify_while_the_hub_polls(
    publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(POLLING_ON)
    await publisher.execute(PUBLISH)
    assert await notifications.until_now() == []

    await publisher.execute(POLLING_OFF)
    await publisher.execute(PUBLISH)
    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_clock_that_was_set_back_does_not_silence_publishers(
    hub: Hub, publisher: Connection, notifications: Notifications
) -> None:
    await wait_until(lambda: hub.doorbell.listening)
    await publisher.execute(AN_HOUR_AHEAD)
    await publisher.execute(PUBLISH)

    assert TO_MINU_BUILD in await notifications.until_now()
    await announce_load(publisher)
    await wait_until(lambda: is_within_a_minute(publisher))


async def test_a_transaction_that_outlives_the_polling_notifies(
    owner: Connection, publisher: Connection, notifications: Notifications
) -> None:
    """It published while the hub polled and commits when the hub has stopped: what counts is the commit."""
    await owner.execute(POLLING_ON)
    async with publisher.transaction():
        await publisher.execute(PUBLISH)
        await owner.execute(PUBLISH)
        await owner.execute(POLLING_OFF)
        assert await notifications.until_now() == []

    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_publisher_that_commits_after_another_one_notified_notifies_too(
    owner: Connection, publisher: Connection, notifications: Notifications
) -> None:
    async with publisher.transaction():
        await publisher.execute(PUBLISH)
        await owner.execute(PUBLISH)
        assert await notifications.until_now() == [TO_MINU_BUILD]

    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_a_rollback_to_a_savepoint_does_not_silence_the_rest(
    publisher: Connection, notifications: Notifications
) -> None:
    async with publisher.transaction():
        savepoint = publisher.transaction()
        await savepoint.start()
        await publisher.execute(PUBLISH)
        await savepoint.rollback()
        await publisher.execute(PUBLISH)
    async with publisher.transaction():
        savepoint = publisher.transaction()
        await savepoint.start()
        await publisher.execute(PUBLISH)
        await savepoint.rollback()

    assert await notifications.until_now() == [TO_MINU_BUILD]


async def test_load_makes_every_process_poll_and_publishers_silent(
    hub: Hub, database_urls: DatabaseUrls, settings: Settings, publisher: Connection, notifications: Notifications
) -> None:
    handled: list[str] = []

    async def handle(event: ClaimedEvent) -> Outcome:
        handled.append(event.event_type)
        return DONE

    async with open_hub(settings, database_urls) as other_hub, run_worker(other_hub, handle, poll_interval=HOUR):
        await wait_until(lambda: hub.doorbell.listening and other_hub.doorbell.listening)
        await announce_load(publisher)
        await wait_until(lambda: hub.doorbell.load_polling.is_polling and other_hub.doorbell.load_polling.is_polling)
        await wait_until(lambda: is_polling_announced(publisher))
        await notifications.until_now()

        await publisher.execute(PUBLISH)
        is_silent = await is_polling_announced(publisher)  # false only on a machine that stood still for two seconds
        await wait_until(lambda: handled == ["order.paid"])

    assert not is_silent or TO_MINU_BUILD not in await notifications.until_now()


async def is_polling_announced(conn: Connection) -> bool:
    return await conn.fetchval(
        "select last_value > extract(epoch from clock_timestamp()) * 1000 from pabal.polling_until"
    )


async def is_within_a_minute(conn: Connection) -> bool:
    return await conn.fetchval(
        "select last_value < extract(epoch from clock_timestamp()) * 1000 + 60000 from pabal.polling_until"
    )


async def test_a_process_that_starts_under_load_polls_from_the_start(
    database_urls: DatabaseUrls, settings: Settings, publisher: Connection
) -> None:
    await publisher.execute(POLLING_ON)

    async with open_hub(settings, database_urls) as hub:
        await wait_until(lambda: hub.doorbell.listening)
        with hub.doorbell.listen(Channel.EVENTS) as listener:
            assert await listener.wait(HOUR)
            assert await listener.wait(HOUR)
        assert hub.doorbell.load_polling.is_polling
