"""Publishing over HTTP, in a transaction and by plain SQL: the same event, and one per idempotency key."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest

import pabal_client as client
from pabal.core.errors import Invalid
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.events.consume.lane import ClaimedEvent
from pabal.events.publish.publish import EventDraft, PublishResult, publish_event_batch, publish_events
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.outcome import DONE, Outcome
from pabal.settings import Settings
from support.clusters import Connection, open_connection
from support.databases import url_with_database
from support.event_api import Service, connect_service
from support.lane_under_test import Travel
from support.wait import wait_until
from support.worker import run_worker

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
UNREADABLE = b'{"n": 1e400000}'
"""Valid JSON that PostgreSQL cannot store."""

SECOND_WAITS = """
create function public.waits() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(1); return new; end';
create trigger waits before insert on public.event_queue for each row
    when (new.correlation_id = 'waits') execute function public.waits();
"""


ACT_AS = "insert into pabal.service_sql_roles (service_name, role_name) values ($1, 'shop_app')"


@pytest.fixture
async def second_hub(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    """A second hub on the same database."""
    async with open_hub(settings, database_urls) as other:
        yield other


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await connect_service(hub, web, "shop")


@pytest.fixture
async def publisher(
    postgres: embedded.ServerAddress, database_urls: DatabaseUrls, owner: Connection
) -> AsyncGenerator[Connection]:
    """A login that may publish as minu_find and nothing else."""
    await owner.execute("create role shop_app login password 'horse' in role pabal_publisher")
    await owner.execute(ACT_AS, "minu_find")
    _, _, address = postgres.hub_url.partition("@")
    _, _, database = database_urls.main.rpartition("/")
    try:
        async with open_connection(url_with_database(f"postgresql://shop_app:horse@{address}", database)) as conn:
            yield conn
    finally:
        await owner.execute("drop role shop_app")


def drafts(*numbers: int, keys: Callable[[int], str | None] = lambda _: None, **overrides: Any) -> list[EventDraft]:
    fields: dict[str, Any] = {"source": "minu_find", "target": "minu_build"} | overrides
    return [EventDraft(event_type=f"order.n{n}", idempotency_key=keys(n), **fields) for n in numbers]


async def published_types(owner: Connection) -> list[str]:
    """The types of the published events, in order, without those of the hub."""
    rows = await owner.fetch("select event_type from public.event_queue where source_service <> 'hub' order by seq")
    return [row["event_type"] for row in rows]


async def has_count(owner: Connection, question: str, number: int) -> bool:
    return await owner.fetchval(question) == number


class TestBatches:
    async def test_an_invalid_event_of_one_caller_fails_alone(self, shop: Service, owner: Connection) -> None:
        async def call(number: int) -> int:
            fields = {"payload": {"n": 1}, "target_service": "nobody"} if number == 37 else {"target_service": "shop"}
            request: dict[str, Any] = {"json": {"event_type": f"order.n{number}", **fields}, "headers": shop.headers}
            return (await shop.web.post("/v1/queue/events", **request)).status_code

        statuses = await asyncio.gather(*map(call, range(64)))

        assert [number for number, status in enumerate(statuses) if status != 202] == [37]
        assert statuses[37] == 400
        assert sorted(await published_types(owner)) == sorted(f"order.n{n}" for n in range(64) if n != 37)

    async def test_an_event_refused_by_the_table_fails_alone(self, hub: Hub, owner: Connection) -> None:
        """The payload, the target or both are invalid; the valid events are recorded once."""
        good, bad = drafts(1), drafts(2, payload=UNREADABLE)
        lost = drafts(3, target="nobody", payload=UNREADABLE)
        drafts_to_publish = [*good, *bad, *good, *lost, *good]

        together = await publish_event_batch(hub.db, drafts_to_publish)
        alone = await asyncio.gather(*map(hub.publisher.put, drafts_to_publish), return_exceptions=True)

        for results in (together, alone):
            assert [type(result) for result in results] == [
                PublishResult,
                Invalid,
                PublishResult,
                Invalid,
                PublishResult,
            ]
            assert [str(result).partition(":")[0] for result in results[1::2]] == ["payload", "target_service"]
        assert await published_types(owner) == ["order.n1"] * 6


class TestBatch:
    async def test_a_thousand_keep_their_order_and_each_is_told(self, shop: Service, owner: Connection) -> None:
        events: list[dict[str, Any]] = [
            {"event_type": f"order.n{n}", "target_service": "shop", "ordering_key": f"k{n % 3}"} for n in range(1000)
        ]
        events[500] |= {"priority": 11}

        results = await shop.batch(*events)

        assert len(results) == 1000
        assert {index for index, item in enumerate(results) if item["status"] != 202} == {500}
        assert (results[500]["code"], results[500]["detail"].partition(":")[0]) == ("invalid", "priority")
        assert await published_types(owner) == [f"order.n{n}" for n in range(1000) if n != 500]
        last = await owner.fetchval("select id from public.event_queue order by seq desc limit 1")
        assert results[-1]["id"] == str(last)

    async def test_a_batch_has_between_1_and_1000_events(self, shop: Service, owner: Connection) -> None:
        for events in ([{"event_type": "order.paid"}] * 1001, []):
            problem = await shop.call("POST", "events/batch", status=400, json={"events": events})
            assert [error["field"] for error in problem["mistakes"]] == ["events"]

        assert await published_types(owner) == []

    async def test_each_item_of_a_batch_has_its_own_error(self, shop: Service, owner: Connection) -> None:
        results = await shop.batch(
            {"event_type": "order.paid", "idempotency_key": "k", "target_service": "shop"},
            {"event_type": "order.paid", "idempotency_key": "k", "target_service": "shop"},
            {"event_type": "order.sent", "idempotency_key": "k", "target_service": "shop"},
            {"event_type": "order.paid", "source_service": "minu_find"},
            {"event_type": "order.paid", "target_service": "nobody"},
            {"event_type": "order.paid", "payload": {"n": "x" * 262_144}},
            {"event_type": "order.paid", "payload": []},
            {"event_type": "order.paid", "target_service": "shop"},
        )

        assert [result["status"] for result in results] == [202, 200, 409, 403, 400, 413, 400, 202]
        assert results[0]["id"] == results[1]["id"]
        assert results[2]["detail"].startswith("idempotency_key: ")
        assert results[4]["detail"].startswith("target_service: ")
        assert await published_types(owner) == ["order.paid", "order.paid"]


class TestTransactions:
    async def test_a_publisher_may_call_the_function_and_nothing_else(
        self, publisher: Connection, owner: Connection
    ) -> None:
        hub = client.App("minu_find")
        async with publisher.transaction():
            event = await hub.publish(publisher, "order.paid", {"n": 1}, target="minu_build", ordering_key="k")

        row = await owner.fetchrow("select * from public.event_queue where event_type = 'order.paid'")
        assert row
        assert (row["id"], row["source_service"], row["status"]) == (event, "minu_find", "pending")
        for forbidden in (
            "select * from public.event_queue",
            "insert into public.event_queue (event_type, source_service) values ('a.b', 'minu_find')",
            "delete from pabal.event_due",
            "select pabal.remove_from_event_order(gen_random_uuid())",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await publisher.execute(forbidden)

    async def test_a_rolled_back_event_never_existed(self, hub: Hub, publisher: Connection, owner: Connection) -> None:
        work = publisher.transaction()
        await work.start()
        await client.App("minu_find").publish(publisher, "order.paid", target="minu_build", idempotency_key="k")
        await work.rollback()

        assert await owner.fetchval("select count(*) from public.event_queue") == 0
        assert await owner.fetchval("select count(*) from pabal.event_due") == 0
        [again] = await publish_event_batch(hub.db, drafts(1, keys=lambda _: "k"))
        assert isinstance(again, PublishResult)
        assert not again.repeated

    async def test_the_sql_function_refuses_what_the_api_refuses(
        self, publisher: Connection, owner: Connection
    ) -> None:
        hub = client.App("minu_find")
        await hub.publish(publisher, "order.paid", {"n": "x" * (262_144 - 9)})  # jsonb adds a space after the colon
        with pytest.raises(asyncpg.ProgramLimitExceededError, match=r"^payload: "):
            await hub.publish(publisher, "order.paid", {"n": "x" * (262_144 - 8)})
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await hub.publish(publisher, "order.paid", target="nobody")
        with pytest.raises(asyncpg.CheckViolationError):
            await hub.publish(publisher, "Order Paid")

        assert await published_types(owner) == ["order.paid"]


class TestDoorbell:
    @pytest.fixture
    async def woken(self, hub: Hub) -> AsyncGenerator[list[str]]:
        """The events handled by a worker that polls once an hour, so that only the doorbell wakes it."""
        handled: list[str] = []

        async def handle(event: ClaimedEvent) -> Outcome:
            handled.append(event.event_type)
            return DONE

        await wait_until(lambda: hub.doorbell.listening)
        async with run_worker(hub, handle, poll_interval=HOUR) as worker:
            await wait_until(lambda: worker._listener is not None)
            yield handled

    async def test_every_way_of_publishing_wakes_a_worker(
        self, woken: list[str], shop: Service, publisher: Connection, owner: Connection, second_hub: Hub
    ) -> None:
        minu_build: dict[str, Any] = {"target_service": "minu_build"}
        await shop.publish("by.http", **minu_build)
        await wait_until(lambda: woken == ["by.http"])

        await shop.batch({"event_type": "by.batch", **minu_build})
        await wait_until(lambda: "by.batch" in woken)

        await client.App("minu_find").publish(publisher, "by.function", target="minu_build")
        await wait_until(lambda: "by.function" in woken)

        await owner.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "values ('by.insert', 'minu_find', 'minu_build')"
        )
        await wait_until(lambda: "by.insert" in woken)

        await second_hub.publisher.put(drafts(1)[0])
        await wait_until(lambda: "order.n1" in woken)
        assert len(woken) == 5


async def test_a_plain_insert_without_an_id_gets_one_that_sorts_by_time(owner: Connection) -> None:
    """A random one would be written to any page of the index."""
    insert = "insert into public.event_queue (event_type, source_service) values ('a.b', 'minu_find') returning id"
    before, inserted, after = new_id(), await owner.fetchval(insert), await owner.fetchval("select pabal.uuid7()")

    times = [id_.int >> 80 for id_ in (before, inserted, after)]
    assert inserted.version == 7
    assert times == sorted(times)


class TestIdempotency:
    async def test_a_hundred_concurrent_publishes_of_one_key_are_one_event(
        self, hub: Hub, second_hub: Hub, owner: Connection
    ) -> None:
        publishers = [hub.publisher, second_hub.publisher]
        [draft] = drafts(1, keys=lambda _: "k", payload=b'{"n": 1}')
        same_content = msgspec.structs.replace(draft, payload=b'{"n":1}', correlation_id="a second try has its own")
        async with asyncio.TaskGroup() as racing:
            tasks = [racing.create_task(publishers[n % 2].put(draft if n % 3 else same_content)) for n in range(100)]

        results = [task.result() for task in tasks]
        assert len({result.id for result in results}) == 1
        assert Counter(result.repeated for result in results) == {True: 99, False: 1}
        assert await published_types(owner) == ["order.n1"]
        assert await owner.fetchval("select count(*) from pabal.event_due") == 1

    @pytest.mark.parametrize(
        "other",
        [
            {"event_type": "order.sent"},
            {"target_service": "minu_build"},
            {"payload": {"n": 2}},
            {"priority": 1},
            {"max_retries": 0},
            {"deliver_at": "2030-01-01T00:00:00Z"},
            {"expires_at": "2030-01-01T00:00:00Z"},
            {"ordering_key": "k"},
        ],
        ids=lambda other: next(iter(other)),
    )
    async def test_the_same_key_with_other_content_is_refused(
        self, shop: Service, other: dict[str, Any], owner: Connection
    ) -> None:
        event: dict[str, Any] = {"target_service": "shop", "payload": {"n": 1}, "idempotency_key": "k"}
        first = await shop.publish(**event)
        again = await shop.publish(status=200, **event)
        problem = await shop.publish(**{**event, **other}, status=409)

        assert again["id"] == first["id"]
        assert (problem["code"], problem["detail"].partition(":")[0]) == ("conflict", "idempotency_key")
        assert await published_types(owner) == ["order.paid"]

    async def test_a_key_covers_sql_and_http(self, shop: Service, publisher: Connection, owner: Connection) -> None:
        await owner.execute(ACT_AS, "shop")
        by_sql = client.App("shop")
        content: dict[str, Any] = {"payload": {"b": 1, "a": [1.50, None, "파발"]}, "priority": 3, "ordering_key": "o"}
        key_fields: dict[str, Any] = {"deliver_at": "2030-01-01T09:00:00+09:00", "idempotency_key": "from http"}
        first = await shop.publish(target_service="shop", **content, **key_fields)
        deliver_time = datetime(2030, 1, 1, tzinfo=UTC)
        options: dict[str, Any] = {"target": "shop", "deliver_at": deliver_time, "priority": 3, "ordering_key": "o"}

        again = await by_sql.publish(
            publisher, "order.paid", content["payload"], idempotency_key="from http", **options
        )
        assert str(again) == first["id"]

        second = await by_sql.publish(
            publisher, "order.paid", content["payload"], idempotency_key="from sql", **options
        )
        repeated = await shop.publish(
            status=200, target_service="shop", **content, **key_fields | {"idempotency_key": "from sql"}
        )
        assert repeated["id"] == str(second)
        with pytest.raises(asyncpg.UniqueViolationError, match=f"^idempotency_key: .*{first['id']}"):
            await by_sql.publish(publisher, "order.paid", {}, idempotency_key="from http", **options)

    async def test_keys_of_different_sources_do_not_collide(self, hub: Hub) -> None:
        mine, theirs = await publish_event_batch(
            hub.db, [*drafts(1, keys=lambda _: "k"), *drafts(2, keys=lambda _: "k", source="minu_keep")]
        )
        assert isinstance(mine, PublishResult)
        assert isinstance(theirs, PublishResult)
        assert mine.id != theirs.id

    async def test_a_key_expires_after_a_day_and_its_event_stays(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        async def again() -> PublishResult:
            await hub.chores.run_due()
            [published] = await publish_event_batch(hub.db, drafts(1, keys=lambda _: "k"))
            assert isinstance(published, PublishResult)
            return published

        first = await again()
        await travel(timedelta(hours=24, seconds=-30))
        assert (await again()).id == first.id

        await travel(timedelta(minutes=2))
        later = await again()

        assert not later.repeated
        assert later.id != first.id
        assert await published_types(owner) == ["order.n1", "order.n1"]

    @pytest.mark.parametrize("by", ["batch", "batcher"])
    async def test_concurrent_batches_with_the_same_keys_in_opposite_order_succeed(
        self, hub: Hub, second_hub: Hub, owner: Connection, by: str
    ) -> None:
        """Keys are recorded in their own order: the second batch waits for the first and finds its events."""
        await owner.execute(SECOND_WAITS)
        one, two = drafts(1, 2, keys=str)
        waits = {"correlation_id": "waits"}  # not part of what the key covers
        forth = [one, msgspec.structs.replace(two, **waits)]
        back = [two, msgspec.structs.replace(one, **waits)]

        async def put(target_hub: Hub, drafts_to_publish: list[EventDraft]) -> Sequence[PublishResult | Exception]:
            if by == "batch":
                return await publish_event_batch(target_hub.db, drafts_to_publish)
            return [*await asyncio.gather(*map(target_hub.publisher.put, drafts_to_publish))]

        await owner.execute("select pg_advisory_lock(1)")
        both = asyncio.gather(put(hub, forth), put(second_hub, back))
        await wait_until(lambda: has_count(owner, "select count(*) from pg_locks where not granted", 2))
        await owner.execute("select pg_advisory_unlock(1)")
        first, second = await both

        ids = [[result.id for result in results if isinstance(result, PublishResult)] for results in (first, second)]
        assert ids[0] == ids[1][::-1]
        assert sorted(await published_types(owner)) == ["order.n1", "order.n2"]


async def test_a_rolled_back_transaction_publishes_nothing(hub: Hub, owner: Connection) -> None:
    with pytest.raises(RuntimeError):
        async with hub.transaction() as tx:
            await publish_events(tx, drafts(1, 2))
            raise RuntimeError
    assert await published_types(owner) == []
