"""Cancelling: the source of an event may cancel it until it ends; a holder is told and settles nothing."""

import asyncio
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

from pabal.core.errors import Conflict
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.events import OPERATOR_ACCESS, cancel_event, find_event
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.outcome import DONE, Outcome
from support.clusters import Connection, open_connection
from support.event_api import Service, connect_service
from support.lane_under_test import Travel
from support.oauth_client import TESTER
from support.subscriptions import publish_test_event
from support.wait import COUNT_LOCK_WAITS, wait_for_lock_of, wait_until
from support.worker import run_worker

pytestmark = pytest.mark.anyio

HOLD = timedelta(minutes=1)


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await connect_service(hub, web, "shop")


async def test_a_cancelled_event_is_not_claimed_and_names_who_cancelled_it(shop: Service, owner: Connection) -> None:
    event = await shop.publish(target_service="shop")

    assert await shop.cancel(event["id"]) == {"cancelled": [event["id"]]}

    assert await shop.claim() == []
    trace = await shop.get_event(event["id"])
    assert (trace["status"], trace["last_error"], bool(trace["processed_at"])) == (
        "cancelled",
        "cancelled by shop",
        True,
    )
    assert trace["dead_letters"] == []
    audit_query = "select actor, action from pabal.audit_log where subject = $1"
    assert [tuple(row) for row in await owner.fetch(audit_query, event["id"])] == [("shop", "event.cancelled")]


async def test_a_holder_learns_of_the_cancellation_and_settles_nothing(shop: Service, travel: Travel) -> None:
    await shop.batch(*({"event_type": f"order.n{n}", "target_service": "shop"} for n in range(3)))
    first, second, third = await shop.claim()
    await shop.cancel(first["id"])

    assert await shop.extend(first, second) == [409, 200]
    assert await shop.ack(first, second) == [409, 200]
    assert await shop.nack(first, third, outcome="dead") == [409, 200]
    await travel(timedelta(hours=1))
    assert await shop.claim() == []
    statuses = [(await shop.get_event(event["id"]))["status"] for event in (first, second, third)]
    assert statuses == ["cancelled", "completed", "failed"]


async def test_a_running_handler_is_cancelled(hub: Hub, shop: Service, owner: Connection) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def handle(event: ClaimedEvent) -> Outcome:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return DONE

    async with run_worker(hub, handle, hold=timedelta(seconds=0.3)):
        event = await shop.publish(target_service="minu_build")
        async with asyncio.timeout(10):
            await began.wait()
            await shop.cancel(event["id"])
            await stopped.wait()

    assert (await shop.get_event(event["id"]))["status"] == "cancelled"


async def test_only_the_source_or_an_admin_may_cancel(hub: Hub, web: httpx2.AsyncClient, shop: Service) -> None:
    target, stranger = await connect_service(hub, web, "target"), await connect_service(hub, web, "stranger")
    admin = await connect_service(hub, web, "admin", "write", "hub:admin")
    one, two = [(await shop.publish(target_service="target"))["id"] for _ in range(2)]

    assert (await target.cancel(one, status=403))["code"] == "forbidden"
    await stranger.cancel(one, status=404)
    assert (await shop.get_event(one))["status"] == "pending"
    await shop.cancel(one)
    assert (await admin.cancel(two))["cancelled"] == [two]
    assert (await shop.get_event(two))["last_error"] == "cancelled by admin"


async def test_cancelling_an_ended_event_says_how_it_ended(hub: Hub, owner: Connection) -> None:
    """The event ended after it was read."""
    event_id = await publish_test_event(hub, "order.paid", "minu_build")
    async with hub.autocommit() as tx:
        event = await find_event(tx, event_id, OPERATOR_ACCESS)

    async def cancel() -> None:
        async with hub.transaction() as tx:
            await cancel_event(tx, event, TESTER)

    async with hub.transaction() as tx:
        await cancel_event(tx, event, TESTER)
        late = asyncio.create_task(cancel())
        await wait_for_lock_of(owner, late)

    with pytest.raises(Conflict, match="it is cancelled"):
        await late


async def test_what_has_ended_stays_as_it_is(shop: Service) -> None:
    for end in ("ack", "dead", "cancel"):
        event = await shop.publish(target_service="shop")
        if end == "cancel":
            await shop.cancel(event["id"])
        elif end == "ack":
            await shop.ack(*await shop.claim())
        else:
            await shop.nack(*await shop.claim(), outcome="dead")
        before = await shop.get_event(event["id"])

        refused = await shop.cancel(event["id"], status=409)

        assert (end, refused["code"]) == (end, "conflict")
        assert before["status"] in refused["detail"]
        assert await shop.get_event(event["id"]) == before


async def test_of_a_broadcast_what_is_still_open_is_called_off(
    hub: Hub, web: httpx2.AsyncClient, shop: Service
) -> None:
    receivers = [await connect_service(hub, web, name) for name in ("done", "holds", "waits")]
    for receiver in receivers:
        await web.post("/v1/subscriptions", json={"event_types": ["order.*"]}, headers=receiver.headers)
    done, holds, waits = receivers
    event = await shop.publish()
    await done.ack(*await done.claim())
    [held] = await holds.claim()

    assert len((await shop.cancel(event["id"]))["cancelled"]) == 2

    assert await holds.ack(held) == [409]
    assert await waits.claim() == []
    statuses = {
        delivery["target_service"]: delivery["status"] for delivery in (await shop.get_event(event["id"]))["deliveries"]
    }
    assert statuses == {"done": "completed", "holds": "cancelled", "waits": "cancelled"}
    await shop.cancel(event["id"], status=409)


async def test_a_subscriber_cannot_cancel_a_broadcast_or_its_delivery(
    hub: Hub, web: httpx2.AsyncClient, shop: Service
) -> None:
    receiver = await connect_service(hub, web, "receiver")
    await web.post("/v1/subscriptions", json={"event_types": ["order.*"]}, headers=receiver.headers)
    event = await shop.publish()
    [held] = await receiver.claim()

    await receiver.cancel(event["id"], status=403)
    await receiver.cancel(held["id"], status=403)
    assert await receiver.ack(held) == [200]


async def test_of_a_concurrent_cancel_and_ack_only_one_succeeds(
    hub: Hub, web: httpx2.AsyncClient, shop: Service
) -> None:
    """The caller that gets 200 decides the status."""
    await shop.batch(*({"event_type": f"order.n{n}", "target_service": "shop"} for n in range(40)))
    events = await shop.claim(limit=40)

    async def cancel(event: str) -> bool:
        answer = await web.post(f"/v1/queue/events/{event}/cancel", headers=shop.headers)
        assert answer.status_code in {200, 409}
        return answer.status_code == 200

    cancellations, acked = await asyncio.gather(
        asyncio.gather(*(cancel(event["id"]) for event in events)),
        asyncio.gather(*(shop.ack(event) for event in events)),
    )

    assert all(cancelled != (status == [200]) for cancelled, status in zip(cancellations, acked, strict=True))
    for event, cancelled in zip(events, cancellations, strict=True):
        assert (await shop.get_event(event["id"]))["status"] == ("cancelled" if cancelled else "completed")


async def test_cancelling_an_ordered_event_makes_the_next_one_due(hub: Hub, shop: Service) -> None:
    rows: list[UUID] = [
        await publish_test_event(hub, "order.paid", "shop", {"n": n}, ordering_key="k") for n in range(3)
    ]
    admin = await connect_service(hub, shop.web, "admin", "write", "hub:admin")
    await admin.cancel(str(rows[1]))
    [head] = await shop.claim()
    await admin.cancel(str(rows[0]))

    assert head["payload"] == {"n": 0}
    assert [event["payload"] for event in await shop.claim()] == [{"n": 2}]


async def test_cancelling_a_broadcast_and_a_heartbeat_do_not_deadlock(
    hub: Hub, owner: Connection, database_urls: DatabaseUrls
) -> None:
    """The leases have another order than the deliveries, and another session locks the lease both need."""
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " select name, 'pull', '{order.paid}' from unnest('{minu_build,minu_keep}'::text[]) name"
    )
    event = await publish_test_event(hub, "order.paid", None)
    deliveries = await owner.fetch(
        "select target_service from event_queue where parent_id = $1 order by id desc", event
    )
    async with hub.autocommit() as tx:
        [[later], [sooner]] = [await LANE.claim(tx, 1, HOLD, "tester", EventClaimFilter(row[0])) for row in deliveries]
        broadcast = await find_event(tx, event, OPERATOR_ACCESS)
    assert sooner.id < later.id
    assert sooner.lease > later.lease

    async def cancel() -> list[UUID]:
        async with hub.transaction() as tx:
            return await cancel_event(tx, broadcast, TESTER)

    async def extend() -> set[UUID]:
        async with hub.autocommit() as tx:
            return await LANE.extend(tx, [later, sooner], HOLD)

    async def wait(sessions: int) -> bool:
        return await owner.fetchval(COUNT_LOCK_WAITS) == sessions

    async with open_connection(database_urls.main) as blocker, blocker.transaction():
        await blocker.execute("select from pabal.event_leases where id = $1 for no key update", sooner.lease)
        cancelling = asyncio.create_task(cancel())
        await wait_until(lambda: wait(1))
        extending = asyncio.create_task(extend())
        await wait_until(lambda: wait(2))

    assert {*await cancelling} == {sooner.id, later.id}
    assert await extending <= {sooner.id, later.id}
