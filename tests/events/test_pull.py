"""Pulling: a service claims its own events, waits without a connection, and settles only what it holds."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.db.doorbell.channels import Channel
from pabal.events.consume.lane import LANE, ClaimedEvent
from pabal.events.consume.pull import EventPollRequest, claim_events_for_polls
from pabal.hub import Hub
from pabal.queue.long_poll import LongPoll
from pabal.tokens.revoke import revoke_service_tokens
from support.clusters import Connection
from support.event_api import ClaimedBody, Service, connect_service
from support.lane_under_test import Travel
from support.oauth_client import TESTER
from support.server import serve_hub
from support.wait import wait_for_lock_of, wait_until

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await connect_service(hub, web, "shop")


async def claim_new(shop: Service, count: int = 1, lease_seconds: int = 30, **overrides: Any) -> list[ClaimedBody]:
    """Publish and claim `count` events of the shop."""
    await shop.batch(*({"event_type": f"order.n{n}", "target_service": "shop", **overrides} for n in range(count)))
    events = await shop.claim(limit=count, lease_seconds=lease_seconds)
    assert len(events) == count
    return events


async def test_a_claimed_event_has_all_fields(shop: Service) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    fields: dict[str, Any] = {
        "payload": {"n": [1, None, "파발"]},
        "priority": 2,
        "ordering_key": "o",
        "correlation_id": "c",
    }
    published = await shop.publish(target_service="shop", traceparent=trace, max_retries=7, **fields)

    [event] = await shop.claim()

    assert event.pop("receipt")
    assert event.pop("created_at") == published["created_at"]
    assert event == {
        "id": published["id"],
        "origin_id": published["id"],
        "event_type": "order.paid",
        "source_service": "shop",
        "target_service": "shop",
        "retry_count": 0,
        "max_retries": 7,
        "traceparent": trace,
        **fields,
    }


async def test_a_claim_returns_the_events_of_its_service_up_to_its_limit(
    hub: Hub, web: httpx2.AsyncClient, shop: Service
) -> None:
    other = await connect_service(hub, web, "other")
    await shop.batch(
        *({"event_type": f"order.n{n}", "target_service": "shop", "priority": n} for n in range(10, 0, -1)),
        {"event_type": "order.theirs", "target_service": "other"},
    )

    assert len(await shop.claim()) == 10
    assert await shop.claim() == []
    assert [event["event_type"] for event in await other.claim(limit=1000)] == ["order.theirs"]


class TestWaiting:
    @pytest.fixture
    async def long_poll(self, hub: Hub) -> AsyncGenerator[LongPoll[EventPollRequest, ClaimedEvent]]:
        """A long poll that polls once an hour, so that only the doorbell can end a wait."""
        await wait_until(lambda: hub.doorbell.listening)
        long_poll = LongPoll(
            hub.db,
            hub.doorbell,
            Channel.EVENTS,
            claim_events_for_polls,
            LANE.release,
            topic=lambda request: request.service,
            poll_interval=timedelta(hours=1),
        )
        yield long_poll
        await long_poll.close()

    @pytest.fixture
    async def waiting_shop(
        self, hub: Hub, long_poll: LongPoll[EventPollRequest, ClaimedEvent], shop: Service
    ) -> AsyncGenerator[Service]:
        """The shop as a client of that long poll, with many connections."""
        limits = httpx2.Limits(max_connections=200)
        async with (
            serve_hub(replace(hub, event_long_poll=long_poll)) as address,
            httpx2.AsyncClient(base_url=address, limits=limits) as web,
        ):
            yield replace(shop, web=web)

    async def test_a_publish_ends_a_wait_within_50_ms_without_a_connection(
        self, hub: Hub, long_poll: LongPoll[EventPollRequest, ClaimedEvent], shop: Service, waiting_shop: Service
    ) -> None:
        durations: list[float] = []
        for _ in range(5):
            waits = asyncio.create_task(waiting_shop.claim(wait=30_000))
            await wait_until(lambda: waiting(long_poll) == 1 and hub.db.connections_in_use() == 0)
            started = time.perf_counter()
            await shop.publish(target_service="shop")
            assert len(await waits) == 1
            durations.append(time.perf_counter() - started)

        assert min(durations) < 0.05

    async def test_a_publish_by_plain_sql_ends_a_wait(
        self, hub: Hub, long_poll: LongPoll[EventPollRequest, ClaimedEvent], waiting_shop: Service, owner: Connection
    ) -> None:
        waits = asyncio.create_task(waiting_shop.claim(wait=30_000))
        await wait_until(lambda: waiting(long_poll) == 1 and hub.db.connections_in_use() == 0)
        await owner.execute("select pabal.publish('minu_find', 'order.paid', target => 'shop')")

        assert [event["source_service"] for event in await waits] == ["minu_find"]

    async def test_a_hundred_waiters_hold_no_connection_and_share_the_events(
        self, hub: Hub, long_poll: LongPoll[EventPollRequest, ClaimedEvent], shop: Service, waiting_shop: Service
    ) -> None:
        polls = [asyncio.create_task(waiting_shop.claim(wait=30_000, limit=1)) for _ in range(100)]
        await wait_until(lambda: waiting(long_poll) == 100 and hub.db.connections_in_use() == 0)
        await shop.batch(*({"event_type": f"order.n{n}", "target_service": "shop"} for n in range(100)))
        batches = await asyncio.gather(*polls)

        assert sorted(event["event_type"] for [event] in batches) == sorted(f"order.n{n}" for n in range(100))

    async def test_a_wait_ends_empty_after_its_time(self, shop: Service) -> None:
        assert await shop.claim(wait=50) == []


def waiting(long_poll: LongPoll[EventPollRequest, ClaimedEvent]) -> int:
    return sum(map(len, long_poll._waiters.values()))


class TestReceipts:
    async def test_a_receipt_settles_once(self, shop: Service) -> None:
        done, failed, extended = await claim_new(shop, 3)

        assert await shop.ack(done) == [200]
        assert await shop.nack(failed) == [200]
        for settled in (done, failed):
            assert await shop.ack(settled) == [409]
            assert await shop.nack(settled, outcome="dead") == [409]
            assert await shop.extend(settled) == [409]
        assert await shop.extend(extended) == [200]
        statuses = [(await shop.get_event(event["id"]))["status"] for event in (done, failed, extended)]
        assert statuses == ["completed", "pending", "processing"]

    async def test_each_receipt_has_its_own_result_in_order(self, shop: Service) -> None:
        first, second = await claim_new(shop, 2)
        await shop.ack(first)
        garbage = [{"receipt": text} for text in ("", "x", "!" * 43, "A" * 43, "A" * 64)]

        assert await shop.ack(garbage[0], second, first, *garbage[1:]) == [409, 200, 409, 409, 409, 409, 409]
        assert await shop.ack(*garbage) == [409] * 5

    async def test_a_receipt_of_another_service_settles_nothing(
        self, hub: Hub, web: httpx2.AsyncClient, shop: Service
    ) -> None:
        stranger = await connect_service(hub, web, "thief", "write", "hub:admin")
        [event] = await claim_new(shop)

        assert await stranger.ack(event) == [409]
        assert await stranger.nack(event, outcome="dead") == [409]
        assert await stranger.extend(event, seconds=3600) == [409]
        assert (await shop.get_event(event["id"]))["status"] == "processing"
        assert await shop.ack(event) == [200]

    async def test_a_repeated_receipt_in_one_request_settles_once(self, shop: Service, owner: Connection) -> None:
        [event] = await claim_new(shop)
        answer = await shop.call("POST", "ack", json={"receipts": [event["receipt"]] * 2})

        assert [result["status"] for result in answer["results"]] == [200]
        assert await owner.fetchval("select coalesce(sum(held), 0) from pabal.event_leases") == 0

    async def test_an_invalid_request_names_its_field(self, shop: Service) -> None:
        for endpoint, body, field in (
            ("ack", {}, "receipts"),
            ("ack", {"receipts": []}, "receipts"),
            ("ack", {"receipts": ["x"] * 1001}, "receipts"),
            ("ack", {"receipts": ["x" * 65]}, "receipts[0]"),
            ("nack", {"receipts": ["x"]}, "error"),
            ("nack", {"receipts": ["x"], "error": "e", "outcome": "lost"}, "outcome"),
            ("nack", {"receipts": ["x"], "error": "e", "retry_after": -1}, "retry_after"),
            ("nack", {"receipts": ["x"], "error": "e", "retry_after": 86_401}, "retry_after"),
            ("extend", {"receipts": ["x"], "lease_seconds": 4}, "lease_seconds"),
            ("claim", {"limit": 0}, "limit"),
            ("claim", {"limit": 1001}, "limit"),
            ("claim", {"wait": -1}, "wait"),
            ("claim", {"wait": 30_001}, "wait"),
            ("claim", {"lease_seconds": 3601}, "lease_seconds"),
        ):
            problem = await shop.call("POST", endpoint, status=400, json=body)
            assert (endpoint, [error["field"] for error in problem["mistakes"]]) == (endpoint, [field])


class TestLeases:
    async def test_a_lease_lasts_as_requested_and_then_its_receipt_is_stale(
        self, shop: Service, travel: Travel
    ) -> None:
        [event] = await claim_new(shop, lease_seconds=90)
        await travel(timedelta(seconds=89))
        assert await shop.claim() == []

        await travel(SECOND)
        [again] = await shop.claim(lease_seconds=5)

        assert (again["id"], again["retry_count"]) == (event["id"], 1)
        assert await shop.ack(event) == [409]
        assert await shop.extend(event) == [409]
        assert await shop.ack(again) == [200]
        [failure] = (await shop.get_event(event["id"]))["error_history"]
        assert (failure["code"], failure["worker"]) == ("lease_expired", "pull:shop")

    async def test_an_extension_counts_from_now(self, shop: Service, travel: Travel) -> None:
        [event] = await claim_new(shop)
        await travel(LEASE - SECOND)
        assert await shop.extend(event, seconds=60) == [200]
        await travel(timedelta(seconds=59))
        assert await shop.claim() == []
        assert await shop.extend(event, seconds=5) == [200]
        await travel(timedelta(seconds=5))

        assert [claimed["id"] for claimed in await shop.claim()] == [event["id"]]

    async def test_extending_a_lease_that_just_ended_is_refused(
        self, hub: Hub, shop: Service, owner: Connection, travel: Travel
    ) -> None:
        [event] = await claim_new(shop)
        await travel(LEASE)

        async with hub.transaction() as tx:
            assert await LANE.revive(tx, 10) == 1
            extending = asyncio.create_task(shop.extend(event))
            await wait_for_lock_of(owner, extending)

        assert await extending == [409]

    async def test_an_event_fails_when_its_last_lease_expires(self, shop: Service, travel: Travel) -> None:
        [event] = await claim_new(shop, max_retries=1)
        await travel(LEASE)
        assert len(await shop.claim()) == 1
        await travel(LEASE)
        assert await shop.claim() == []

        event_view = await shop.get_event(event["id"])
        assert (event_view["status"], event_view["error_code"], len(event_view["dead_letters"])) == (
            "failed",
            "lease_expired",
            1,
        )


class TestNacks:
    async def test_a_retry_waits_for_retry_after(self, shop: Service, travel: Travel) -> None:
        [event] = await claim_new(shop)
        await shop.nack(event, error="try later", error_code="E1", error_stack="line 7", retry_after=600)
        await travel(timedelta(seconds=599))
        assert await shop.claim() == []
        await travel(SECOND)
        [again] = await shop.claim()

        assert again["retry_count"] == 1
        event_view = await shop.get_event(event["id"])
        assert (event_view["last_error"], event_view["error_code"]) == ("try later", "E1")
        assert [(failure["error"], failure["attempt"]) for failure in event_view["error_history"]] == [("try later", 1)]

    async def test_without_retry_after_the_backoff_grows(
        self, shop: Service, travel: Travel, owner: Connection
    ) -> None:
        [event] = await claim_new(shop, max_retries=5)
        wait = "select extract(epoch from next_retry_at - updated_at)::float from public.event_queue where id = $1"
        waits: list[float] = []
        for _ in range(4):
            await shop.nack(event)
            waits.append(await owner.fetchval(wait, event["id"]))
            await travel(timedelta(seconds=10))
            [event] = await shop.claim()

        assert [round(wait / 2**index, 6) for index, wait in enumerate(waits)] == pytest.approx([1] * 4, abs=0.2)

    async def test_a_dead_outcome_creates_a_dead_letter_at_once(self, shop: Service, owner: Connection) -> None:
        [event] = await claim_new(shop)
        await shop.nack(event, error="no such order", error_code="gone", outcome="dead")

        event_view = await shop.get_event(event["id"])
        assert (event_view["status"], event_view["retry_count"], len(event_view["dead_letters"])) == ("failed", 0, 1)
        reason = "select error_message from public.dead_letter_queue where original_event_id = $1"
        assert await owner.fetchval(reason, event["id"]) == "no such order"

    async def test_a_snooze_uses_no_attempt(self, shop: Service, travel: Travel) -> None:
        [event] = await claim_new(shop, max_retries=0)
        for retry_after, delay in ((None, 30), (3, 3)):
            assert await shop.nack(event, outcome="snooze", retry_after=retry_after) == [200]
            await travel(timedelta(seconds=delay) - SECOND)
            assert await shop.claim() == []
            await travel(SECOND)
            [event] = await shop.claim()
            assert event["retry_count"] == 0

        assert (await shop.get_event(event["id"]))["error_history"] == []

    async def test_a_snooze_without_delay_is_due_at_once(self, shop: Service) -> None:
        [event] = await claim_new(shop)
        await shop.nack(event, outcome="snooze", retry_after=0)

        assert [claimed["id"] for claimed in await shop.claim()] == [event["id"]]

    async def test_the_last_failed_attempt_creates_a_dead_letter(self, shop: Service) -> None:
        [event] = await claim_new(shop, max_retries=2)
        for attempt in range(3):
            assert event["retry_count"] == attempt
            await shop.nack(event, error=f"failure {attempt + 1}", retry_after=0)
            event, *_ = [*await shop.claim(), event]

        event_view = await shop.get_event(event["id"])
        assert (event_view["status"], event_view["retry_count"], event_view["last_error"]) == ("failed", 2, "failure 3")
        assert [failure["error"] for failure in event_view["error_history"]] == ["failure 1", "failure 2", "failure 3"]
        assert len(event_view["dead_letters"]) == 1


async def test_an_unreadable_number_does_not_block_the_queue(shop: Service, owner: Connection) -> None:
    """PostgreSQL stores numbers that Python refuses to parse; plain SQL may publish one."""
    await owner.execute("select pabal.publish('minu_find', 'order.odd', '{\"n\": 1e5000}', target => 'shop')")
    await shop.publish(target_service="shop")

    events = {event["event_type"]: event for event in await shop.claim()}

    assert events.keys() == {"order.odd", "order.paid"}
    assert await shop.ack(*events.values()) == [200, 200]


async def test_each_who_waits_holds_alone(hub: Hub, shop: Service) -> None:
    waiting = [
        asyncio.create_task(hub.event_long_poll.poll(EventPollRequest("shop", LEASE), 1, LEASE)) for _ in range(2)
    ]
    await wait_until(lambda: len(hub.event_long_poll._waiters) == 2)
    await shop.batch(*({"event_type": "order.paid", "target_service": "shop"} for _ in range(2)))

    [[first], [second]] = await asyncio.gather(*waiting)

    assert first.id != second.id
    assert first.lease != second.lease, "a heartbeat of one would extend an event the other has lost"


async def test_a_claim_cut_by_its_size_leaves_the_rest_to_other_polls(hub: Hub, owner: Connection) -> None:
    publish = "select pabal.publish('hub', 'order.paid', jsonb_build_object('x', repeat('x', 250000)), 'minu_build')"
    await owner.execute(f"{publish} from generate_series(1, 40)")
    polls = [EventPollRequest("minu_build", LEASE) for _ in range(2)]

    async with hub.autocommit() as tx:
        claimed = await claim_events_for_polls(tx, dict.fromkeys(polls, 100))

    first, second = (len(claimed.get(poll, ())) for poll in polls)
    assert 0 < first < 40, "8 MB are less than all events"
    assert first + second == 40


async def test_a_token_revoked_during_a_wait_gets_no_events(hub: Hub, web: httpx2.AsyncClient, shop: Service) -> None:
    other = await connect_service(hub, web, "other")
    waiting = asyncio.create_task(web.post("/v1/queue/claim", headers=shop.headers, json={"wait": 20_000}, timeout=30))
    await wait_until(lambda: bool(hub.event_long_poll._waiters))
    async with hub.transaction() as tx:
        await revoke_service_tokens(tx, "shop", TESTER)
    await other.publish(target_service="shop")

    assert (await waiting).status_code == 401
    [released] = await hub.event_long_poll.poll(EventPollRequest("shop", LEASE), 1, LEASE)
    assert released.attempt == 1


async def test_nothing_is_claimed_for_a_disconnected_client(hub: Hub, web: httpx2.AsyncClient, shop: Service) -> None:
    async with httpx2.AsyncClient(base_url=web.base_url) as caller:
        request = asyncio.create_task(caller.post("/v1/queue/claim", headers=shop.headers, json={"wait": 20_000}))
        await wait_until(lambda: bool(hub.event_long_poll._waiters))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await wait_until(lambda: not hub.event_long_poll._waiters)
    published = await shop.publish(target_service="shop")

    [event] = await shop.claim()
    assert (event["id"], event["retry_count"]) == (published["id"], 0)
