"""A service with slow receivers or a huge backlog does not delay other services."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec
import pytest

from pabal.db.tx import Tx
from pabal.events.consume.fair_claims import MAX_TYPES_PER_ROUND, share_by_type
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.rules.apply_rules import apply_rules
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import Settled
from pabal.settings import Settings
from support.notifications import register_builtin_templates, sql
from support.receiver import Receiver, respond_after, run_receiver
from support.rules import BUYER, add_test_rule, rules_worker, run_rules_workers
from support.subscriptions import load_event, publish_test_event, run_workers, subscribe, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SLOW_RECEIVERS = 40
EVENTS_EACH = 5


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


async def test_forty_slow_receivers_of_one_service_leave_half_of_the_slots(hub: Hub, endpoint: Receiver) -> None:
    """The slow receivers never respond while the other service's events are sent, so no event waits for them."""
    release = asyncio.Event()
    async with AsyncExitStack() as stack:
        silent = await stack.enter_async_context(run_receiver())
        silent.responder = respond_after(release)
        for number in range(SLOW_RECEIVERS):
            await subscribe(hub, "minu_frame", f"slow_{number}.*", url=f"{silent.url}/{number}", within=60)
        await subscribe(hub, "minu_build", "quick.*", url=endpoint.url)
        waiting: list[UUID] = [
            await publish_test_event(hub, f"slow_{number}.went", "minu_frame")
            for _ in range(EVENTS_EACH)
            for number in range(SLOW_RECEIVERS)
        ]
        await stack.enter_async_context(run_workers(hub))
        await wait_until(lambda: len(silent.requests) >= SLOW_RECEIVERS)

        for row in [await publish_test_event(hub, "quick.went") for _ in range(30)]:
            await wait_for_status(hub, row, "completed")
        assert len(silent.requests) <= 50
        assert not [row for row in waiting if (await load_event(hub, row)).status == "completed"]

        release.set()
        for row in waiting:
            await wait_for_status(hub, row, "completed")


# Rules


async def test_a_flood_of_rule_events_leaves_slots_for_other_types(hub: Hub) -> None:
    """Every event of the flood hangs in its handler, and the event of the other type is handled all the same."""
    await register_builtin_templates(hub)
    await add_test_rule(hub, name="all", event_pattern="*")
    for _ in range(150):
        await publish_test_event(hub, "order.paid", payload=BUYER)
    other, release = asyncio.Event(), asyncio.Event()

    class Handler(TransactionalHandler):
        async def handle(self, event: ClaimedEvent) -> Settled:
            if event.event_type == "order.paid":
                await release.wait()
            else:
                other.set()
            return await super().handle(event)

    worker = rules_worker(hub, Handler(hub.db, partial(apply_rules, catalogue=hub.templates)))
    async with run_rules_workers(hub, worker):
        await wait_until(lambda: worker.in_flight >= 50)
        await publish_test_event(hub, "order.sent", payload=BUYER)
        async with asyncio.timeout(15):
            await other.wait()
        assert worker.in_flight < 100
        release.set()


async def test_transactions_take_events_of_every_publisher_in_turn(hub: Hub, database_urls: DatabaseUrls) -> None:
    """A transaction that takes one event only takes the second publisher's right after the first event."""
    rows = [await publish_test_event(hub, "order.paid") for _ in range(20)]
    late = await publish_test_event(hub, "order.paid")
    await sql(database_urls, "update public.event_queue set source_service = 'minu_keep' where id = $1", late)
    async with hub.autocommit() as tx:
        events = await LANE.claim(tx, 100, timedelta(minutes=1), "tester", EventClaimFilter("minu_build"))
    handled: list[UUID] = []

    async def handle_one(_tx: Tx, batch: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        handled.append(batch[0].id)
        return [DONE]

    handler = TransactionalHandler(hub.db, handle_one)
    await asyncio.gather(*(handler.handle(event) for event in sorted(events, key=lambda event: event.seq)))

    assert handled[:2] == [rows[0], late]
    assert handled[2:] == rows[1:]


async def test_an_event_that_arrives_during_a_long_batch_does_not_wait_for_its_end(hub: Hub) -> None:
    for _ in range(10):
        await publish_test_event(hub, "order.paid")
    await publish_test_event(hub, "order.paid", "minu_keep")
    async with hub.autocommit() as tx:
        batch = await LANE.claim(tx, 100, timedelta(minutes=1), "tester", EventClaimFilter("minu_build"))
        [late] = await LANE.claim(tx, 100, timedelta(minutes=1), "tester", EventClaimFilter("minu_keep"))
    late = msgspec.structs.replace(late, source_service="minu_keep")
    handled: list[UUID] = []
    tasks: list[asyncio.Task[Settled]] = []

    async def handle_one(_tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        handled.append(events[0].id)
        if len(handled) == 1:
            tasks.append(asyncio.create_task(handler.handle(late)))
            await asyncio.sleep(0)
        return [DONE]

    handler = TransactionalHandler(hub.db, handle_one)
    await asyncio.gather(*(handler.handle(event) for event in batch))
    await asyncio.gather(*tasks)

    assert handled.index(late.id) <= 2


def test_event_types_share_the_slots_and_the_least_busy_comes_first() -> None:
    in_flight = Counter({"order.paid": 50, "order.sent": 10})

    claims = share_by_type("hub", ["order.paid", "order.quiet", "order.sent"], in_flight, 100)

    assert [claim.max_rows for claim in claims] == [20, 5, 0]
    assert claims[0].claim_filter == EventClaimFilter("hub", ["order.quiet"])
    many = [f"order.n{number}" for number in range(1000)]
    assert len(share_by_type("hub", many, in_flight, 100)) == MAX_TYPES_PER_ROUND
