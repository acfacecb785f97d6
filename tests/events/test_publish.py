"""Publishing: over HTTP, in one's own transaction, by plain SQL; always the same event, and never two of one key."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest

from conftest import at
from pabal import client
from pabal.core.errors import Invalid
from pabal.db import embedded
from pabal.events.lane import ClaimedEvent
from pabal.events.publish import EventDraft, PublishResult, publish_event_batch, publish_events
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.queue.outcome import DONE, Outcome
from pabal.settings import Settings
from support.clusters import Connection, connected
from support.event_api import Service, come
from support.lane_under_test import Travel
from support.wait import until
from support.worker import working

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
UNREADABLE = b'{"n": 1e400000}'
"""JSON, but nothing PostgreSQL can keep."""

SECOND_WAITS = """
create function public.waits() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(1); return new; end';
create trigger waits before insert on public.event_queue for each row
    when (new.correlation_id = 'waits') execute function public.waits();
"""


@pytest.fixture
async def elsewhere(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[Hub]:
    """Another process, as far as the database can tell."""
    async with open_hub(settings, database_urls) as other:
        yield other


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await come(hub, web, "shop")


@pytest.fixture
async def publisher(
    postgres: embedded.ServerAddress, database_urls: DatabaseUrls, owner: Connection
) -> AsyncGenerator[Connection]:
    """Somebody's own login, which may publish and nothing else."""
    await owner.execute("create role shop_app login password 'horse' in role pabal_publisher")
    _, _, address = postgres.hub_url.partition("@")
    _, _, database = database_urls.main.rpartition("/")
    try:
        async with connected(at(f"postgresql://shop_app:horse@{address}", database)) as conn:
            yield conn
    finally:
        await owner.execute("drop role shop_app")


def drafts(*numbers: int, keys: Callable[[int], str | None] = lambda _: None, **how: Any) -> list[EventDraft]:
    said: dict[str, Any] = {"source": "minu_find", "target": "minu_build"} | how
    return [EventDraft(event_type=f"order.n{n}", idempotency_key=keys(n), **said) for n in numbers]


async def rows(owner: Connection) -> list[str]:
    """What was published, in its order; the hub's own events besides."""
    found = await owner.fetch("select event_type from public.event_queue where source_service <> 'hub' order by seq")
    return [row["event_type"] for row in found]


async def counted(owner: Connection, question: str, number: int) -> bool:
    return await owner.fetchval(question) == number


class TestOneAmongMany:
    async def test_a_bad_one_of_many_callers_fails_alone(self, shop: Service, owner: Connection) -> None:
        async def call(number: int) -> int:
            bad = {"payload": {"n": 1}, "target_service": "nobody"} if number == 37 else {"target_service": "shop"}
            how: dict[str, Any] = {"json": {"event_type": f"order.n{number}", **bad}, "headers": shop.headers}
            return (await shop.web.post("/v1/queue/events", **how)).status_code

        statuses = await asyncio.gather(*map(call, range(64)))

        assert [number for number, status in enumerate(statuses) if status != 202] == [37]
        assert statuses[37] == 400
        assert sorted(await rows(owner)) == sorted(f"order.n{n}" for n in range(64) if n != 37)

    async def test_one_that_only_the_table_refuses_fails_alone_too(self, hub: Hub, owner: Connection) -> None:
        """By what it carries, by whom it is for, or by both: and what was good is recorded once."""
        good, bad = drafts(1), drafts(2, payload=UNREADABLE)
        lost = drafts(3, target="nobody", payload=UNREADABLE)
        brought = [*good, *bad, *good, *lost, *good]

        together = await publish_event_batch(hub.db, brought)
        alone = await asyncio.gather(*map(hub.publisher.put, brought), return_exceptions=True)

        for results in (together, alone):
            assert [type(each) for each in results] == [PublishResult, Invalid, PublishResult, Invalid, PublishResult]
            assert [str(each).partition(":")[0] for each in results[1::2]] == ["payload", "target_service"]
        assert await rows(owner) == ["order.n1"] * 6


class TestBatch:
    async def test_a_thousand_keep_their_order_and_each_is_told(self, shop: Service, owner: Connection) -> None:
        events: list[dict[str, Any]] = [
            {"event_type": f"order.n{n}", "target_service": "shop", "ordering_key": f"k{n % 3}"} for n in range(1000)
        ]
        events[500] |= {"priority": 11}

        results = await shop.batch(*events)

        assert len(results) == 1000
        assert {place for place, each in enumerate(results) if each["status"] != 202} == {500}
        assert (results[500]["code"], results[500]["detail"].partition(":")[0]) == ("invalid", "priority")
        assert await rows(owner) == [f"order.n{n}" for n in range(1000) if n != 500]
        last = await owner.fetchval("select id from public.event_queue order by seq desc limit 1")
        assert results[-1]["id"] == str(last)

    async def test_one_more_is_too_many_and_none_is_none(self, shop: Service, owner: Connection) -> None:
        for events in ([{"event_type": "order.paid"}] * 1001, []):
            refused = await shop.ask("POST", "events/batch", status=400, json={"events": events})
            assert [each["field"] for each in refused["mistakes"]] == ["events"]

        assert await rows(owner) == []

    async def test_each_item_says_what_is_wrong_with_it(self, shop: Service, owner: Connection) -> None:
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

        assert [each["status"] for each in results] == [202, 200, 409, 403, 400, 413, 400, 202]
        assert results[0]["id"] == results[1]["id"]
        assert results[2]["detail"].startswith("idempotency_key: ")
        assert results[4]["detail"].startswith("target_service: ")
        assert await rows(owner) == ["order.paid", "order.paid"]


class TestOnesOwnTransaction:
    async def test_a_publisher_may_call_the_function_and_nothing_else(
        self, publisher: Connection, owner: Connection
    ) -> None:
        hub = client.App("minu_find")
        async with publisher.transaction():
            event = await hub.publish(publisher, "order.paid", {"n": 1}, target="minu_build", ordering_key="k")

        found = await owner.fetchrow("select * from public.event_queue where event_type = 'order.paid'")
        assert found
        assert (found["id"], found["source_service"], found["status"]) == (event, "minu_find", "pending")
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

    async def test_the_function_refuses_what_the_door_does(self, publisher: Connection, owner: Connection) -> None:
        hub = client.App("minu_find")
        await hub.publish(publisher, "order.paid", {"n": "x" * (262_144 - 9)})  # jsonb writes a blank after the colon
        with pytest.raises(asyncpg.ProgramLimitExceededError, match=r"^payload: "):
            await hub.publish(publisher, "order.paid", {"n": "x" * (262_144 - 8)})
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await hub.publish(publisher, "order.paid", target="nobody")
        with pytest.raises(asyncpg.CheckViolationError):
            await hub.publish(publisher, "Order Paid")

        assert await rows(owner) == ["order.paid"]


class TestTheBell:
    @pytest.fixture
    async def woken(self, hub: Hub) -> AsyncGenerator[list[str]]:
        """What a worker handled that looks by itself once an hour: only the bell can have told it."""
        handled: list[str] = []

        async def handle(event: ClaimedEvent) -> Outcome:
            handled.append(event.event_type)
            return DONE

        await until(lambda: hub.doorbell.listening)
        async with working(hub, handle, poll_interval=HOUR) as worker:
            await until(lambda: worker._listener is not None)
            yield handled

    async def test_every_way_of_publishing_wakes_who_waits(
        self, woken: list[str], shop: Service, publisher: Connection, owner: Connection, elsewhere: Hub
    ) -> None:
        minu_build: dict[str, Any] = {"target_service": "minu_build"}
        await shop.publish("by.http", **minu_build)
        await until(lambda: woken == ["by.http"])

        await shop.batch({"event_type": "by.batch", **minu_build})
        await until(lambda: "by.batch" in woken)

        await client.App("minu_find").publish(publisher, "by.function", target="minu_build")
        await until(lambda: "by.function" in woken)

        await owner.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "values ('by.insert', 'minu_find', 'minu_build')"
        )
        await until(lambda: "by.insert" in woken)

        await elsewhere.publisher.put(drafts(1)[0])
        await until(lambda: "order.n1" in woken)
        assert len(woken) == 5


class TestIdempotency:
    async def test_a_hundred_racing_over_two_hubs_are_one_event(
        self, hub: Hub, elsewhere: Hub, owner: Connection
    ) -> None:
        publishers = [hub.publisher, elsewhere.publisher]
        [draft] = drafts(1, keys=lambda _: "k", payload=b'{"n": 1}')
        alike = msgspec.structs.replace(draft, payload=b'{"n":1}', correlation_id="a second try has its own")
        async with asyncio.TaskGroup() as racing:
            put = [racing.create_task(publishers[n % 2].put(draft if n % 3 else alike)) for n in range(100)]

        results = [task.result() for task in put]
        assert len({each.id for each in results}) == 1
        assert Counter(each.repeated for each in results) == {True: 99, False: 1}
        assert await rows(owner) == ["order.n1"]
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
    async def test_other_content_is_a_mistake(self, shop: Service, other: dict[str, Any], owner: Connection) -> None:
        event: dict[str, Any] = {"target_service": "shop", "payload": {"n": 1}, "idempotency_key": "k"}
        first = await shop.publish(**event)
        again = await shop.publish(status=200, **event)
        refused = await shop.publish(**{**event, **other}, status=409)

        assert again["id"] == first["id"]
        assert (refused["code"], refused["detail"].partition(":")[0]) == ("conflict", "idempotency_key")
        assert await rows(owner) == ["order.paid"]

    async def test_sql_and_http_mean_the_same_by_a_key(self, shop: Service, publisher: Connection) -> None:
        by_sql = client.App("shop")
        said: dict[str, Any] = {"payload": {"b": 1, "a": [1.50, None, "파발"]}, "priority": 3, "ordering_key": "o"}
        more: dict[str, Any] = {"deliver_at": "2030-01-01T09:00:00+09:00", "idempotency_key": "from http"}
        first = await shop.publish(target_service="shop", **said, **more)
        when = datetime(2030, 1, 1, tzinfo=UTC)
        told: dict[str, Any] = {"target": "shop", "deliver_at": when, "priority": 3, "ordering_key": "o"}

        again = await by_sql.publish(publisher, "order.paid", said["payload"], idempotency_key="from http", **told)
        assert str(again) == first["id"]

        second = await by_sql.publish(publisher, "order.paid", said["payload"], idempotency_key="from sql", **told)
        repeated = await shop.publish(
            status=200, target_service="shop", **said, **more | {"idempotency_key": "from sql"}
        )
        assert repeated["id"] == str(second)
        with pytest.raises(asyncpg.UniqueViolationError, match=f"^idempotency_key: .*{first['id']}"):
            await by_sql.publish(publisher, "order.paid", {}, idempotency_key="from http", **told)

    async def test_a_key_is_its_sources_own(self, hub: Hub) -> None:
        mine, theirs = await publish_event_batch(
            hub.db, [*drafts(1, keys=lambda _: "k"), *drafts(2, keys=lambda _: "k", source="minu_keep")]
        )
        assert isinstance(mine, PublishResult)
        assert isinstance(theirs, PublishResult)
        assert mine.id != theirs.id

    async def test_a_key_is_kept_for_a_day_and_its_event_for_longer(
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
        assert await rows(owner) == ["order.n1", "order.n1"]

    @pytest.mark.parametrize("by", ["batch", "gatherer"])
    async def test_two_who_bring_the_same_keys_in_opposite_order_both_succeed(
        self, hub: Hub, elsewhere: Hub, owner: Connection, by: str
    ) -> None:
        """Each holds what the other waits for: PostgreSQL fails one of them, and it is sent again."""
        await owner.execute(SECOND_WAITS)
        one, two = drafts(1, 2, keys=str)
        waits = {"correlation_id": "waits"}  # which is no part of what a key stands for
        forth = [one, msgspec.structs.replace(two, **waits)]
        back = [two, msgspec.structs.replace(one, **waits)]

        async def put(where: Hub, brought: list[EventDraft]) -> Sequence[PublishResult | Exception]:
            if by == "batch":
                return await publish_event_batch(where.db, brought)
            return [*await asyncio.gather(*map(where.publisher.put, brought))]

        await owner.execute("select pg_advisory_lock(1)")
        both = asyncio.gather(put(hub, forth), put(elsewhere, back))
        await until(lambda: counted(owner, "select count(*) from pg_locks where not granted", 2))
        await owner.execute("select pg_advisory_unlock(1)")
        there, here = await both

        ids = [[each.id for each in told if isinstance(each, PublishResult)] for told in (there, here)]
        assert ids[0] == ids[1][::-1]
        assert sorted(await rows(owner)) == ["order.n1", "order.n2"]
        await until(
            lambda: counted(owner, "select deadlocks from pg_stat_database where datname = current_database()", 1)
        )


async def test_a_transaction_may_publish_and_take_it_back(hub: Hub, owner: Connection) -> None:
    with pytest.raises(RuntimeError):
        async with hub.transaction() as tx:
            await publish_events(tx, drafts(1, 2))
            raise RuntimeError
    assert await rows(owner) == []
