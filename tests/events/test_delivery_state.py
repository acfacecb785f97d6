"""The state of a broadcast: its `status` is completed at once, its deliveries take their time."""

from typing import Any

import httpx2
import pytest

from pabal.events.publish.fan_out import expand_broadcasts
from pabal.hub import Hub
from pabal.queue.outcome import Dead
from support.clusters import Connection
from support.event_api import connect_service
from support.failed_events import EventQueue
from support.subscriptions import subscribe

pytestmark = pytest.mark.anyio

ADD_RECEIVERS = """
with added as (
    insert into public.services (name) select 'receiver_' || n from generate_series(1, 300) n returning name
)
insert into pabal.subscriptions (service_name, mode, event_types) select name, 'pull', '{order.*}' from added
"""


def state(summary: str, **counts: int) -> dict[str, Any]:
    return {"summary": summary, "deliveries": 0, "created": 0, "done": 0, "dead": 0, "cancelled": 0} | counts


async def test_a_publisher_sees_all_deliveries_and_a_subscriber_its_own(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue
) -> None:
    shop = await connect_service(hub, web, "shop")
    keep = await connect_service(hub, web, "keep")
    for service in ("keep", "minu_build", "minu_keep"):
        await subscribe(hub, service, "order.*")
    broadcast = (await shop.publish())["id"]
    single = (await shop.publish(target_service="keep", event_type="cart.paid"))["id"]
    await event_queue.settle((await event_queue.claim(service="minu_build"))[0])
    await event_queue.settle((await event_queue.claim(service="minu_keep"))[0], Dead("boom"))

    seen = await shop.get_event(broadcast)
    listed = {item["id"]: item["delivery_state"] for item in (await shop.call("GET", "events"))["items"]}

    expected = state("1 of 3 done, 1 dead", deliveries=3, created=3, done=1, dead=1)
    assert (seen["status"], seen["delivery_state"]) == ("completed", expected)
    assert (listed[broadcast], listed[single]) == (expected, None)
    own = (await keep.get_event(broadcast))["delivery_state"]
    assert own == state("0 of 1 done", deliveries=1, created=1), "it learns nothing of other subscribers"


async def test_a_broadcast_without_subscribers_says_so(hub: Hub, web: httpx2.AsyncClient) -> None:
    shop = await connect_service(hub, web, "shop")

    broadcast = (await shop.publish())["id"]

    assert (await shop.get_event(broadcast))["delivery_state"] == state("no subscribers")


async def test_a_large_broadcast_is_being_expanded_until_all_deliveries_exist(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection
) -> None:
    shop = await connect_service(hub, web, "shop")
    await owner.execute(ADD_RECEIVERS)
    broadcast = (await shop.publish())["id"]
    summary = "being expanded, 0 of 300 deliveries created"
    assert (await shop.get_event(broadcast))["delivery_state"] == state(summary, deliveries=300)

    for slice_size, expected in ((100, "being expanded, 100 of 300 deliveries created"), (200, "0 of 300 done")):
        async with hub.transaction() as tx:
            assert await expand_broadcasts(tx, slice_size) == slice_size
        assert (await shop.get_event(broadcast))["delivery_state"]["summary"] == expected


async def test_a_cancelled_broadcast_counts_its_cancelled_deliveries(hub: Hub, web: httpx2.AsyncClient) -> None:
    shop = await connect_service(hub, web, "shop")
    await subscribe(hub, "minu_build", "order.*")
    broadcast = (await shop.publish())["id"]

    await shop.cancel(broadcast)

    assert (await shop.get_event(broadcast))["delivery_state"]["summary"] == "0 of 1 done, 1 cancelled"
