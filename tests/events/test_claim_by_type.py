"""A claim for some event types: it returns those in order, and no others."""

from datetime import timedelta
from typing import Any

import pytest

from pabal.db.migrate import apply_migrations, revert_migrations
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter, claim_columns
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.lane import ClaimRequest, Settlement
from pabal.queue.outcome import Retry, Snooze
from support.clusters import Connection
from support.subscriptions import publish_test_event

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
TYPES = ("order.paid", "order.sent", "order_x.paid", "orderax.paid", "cart.filled", "order", "a.order.paid")


async def claim(hub: Hub, *patterns: str, limit: int = 100, hold: timedelta = MINUTE) -> list[ClaimedEvent]:
    async with hub.autocommit() as tx:
        return await LANE.claim(tx, limit, hold, "tester", EventClaimFilter("minu_build", [*patterns]))


async def settle(hub: Hub, held: list[ClaimedEvent], outcome: Any) -> None:
    async with hub.transaction() as tx:
        await LANE.settle(tx, [Settlement(event, outcome) for event in held])


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["order.paid"], ["order.paid"]),
        (["order.%"], ["order.paid", "order.sent"]),
        (["order\\_x.%"], ["order_x.paid"]),
        (["order%"], ["order", "order.paid", "order.sent", "order_x.paid", "orderax.paid"]),
        (["%.paid"], ["a.order.paid", "order.paid", "order_x.paid", "orderax.paid"]),
        (["order.%", "%.paid", "order.paid"], ["a.order.paid", *sorted(TYPES)[3:]]),
        (["%"], sorted(TYPES)),
        (["zebra.%", "order.pai", "b%"], []),
        ([], []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_a_claim_takes_matching_events_and_leaves_the_rest(
    hub: Hub, patterns: list[str], expected: list[str]
) -> None:
    for event_type in TYPES:
        for _ in range(3):
            await publish_test_event(hub, event_type)
        await publish_test_event(hub, event_type, "minu_keep")
        await publish_test_event(hub, event_type, deliver_at=None, priority=9)

    claimed = await claim(hub, *patterns)

    assert sorted(event.event_type for event in claimed) == sorted(4 * [event for event in expected if event in TYPES])
    assert len({event.id for event in claimed}) == len(claimed)
    assert {event.target_service for event in claimed} <= {"minu_build"}


async def test_claims_take_the_highest_priority_of_all_types_first(hub: Hub) -> None:
    """One claim in eight takes the oldest event, so this test sets that quota to zero."""
    low = await publish_test_event(hub, "order.sent", priority=9)
    first = await publish_test_event(hub, "order.sent", priority=5)
    second = await publish_test_event(hub, "order.paid", priority=5)
    urgent = await publish_test_event(hub, "order.paid", priority=1)
    requests = [ClaimRequest(EventClaimFilter("minu_build", ["order.%"]), 1)]
    async with hub.autocommit() as tx:
        taken = [
            event.id
            for _ in range(4)
            for event in await LANE.claim_rows(
                tx, 1, MINUTE, "tester", max_bytes=1, **claim_columns(requests) | {"oldest_quotas": [0]}
            )
        ]

    assert taken == [urgent, first, second, low]


async def test_an_event_that_is_due_again_keeps_its_type(hub: Hub, travel: Any) -> None:
    await publish_test_event(hub, "cart.filled")
    row = await publish_test_event(hub, "order.paid")
    for outcome in (Retry("no", timedelta()), Snooze("later", timedelta())):
        held = await claim(hub, "order.%")
        assert [event.id for event in held] == [row]
        await settle(hub, held, outcome)
    assert [event.id for event in await claim(hub, "order.%")] == [row]

    await travel(2 * MINUTE)  # the lease ends
    assert [event.id for event in await claim(hub, "order.%")] == [row]


async def test_a_type_changed_by_plain_sql_counts_at_once(hub: Hub, owner: Connection) -> None:
    row = await publish_test_event(hub, "order.paid")
    await owner.execute("update public.event_queue set event_type = 'cart.filled' where id = $1", row)

    assert await claim(hub, "order.%") == []
    assert [event.id for event in await claim(hub, "cart.%")] == [row]


async def test_the_next_event_of_a_key_is_due_with_its_type(hub: Hub) -> None:
    rows = [await publish_test_event(hub, kind, ordering_key="k") for kind in ("order.paid", "cart.filled")]
    assert await claim(hub, "cart.%") == []
    [head] = await claim(hub, "order.%")
    assert head.id == rows[0]
    async with hub.transaction() as tx:
        await LANE.settle_done(tx, [head])

    assert [event.id for event in await claim(hub, "cart.%")] == [rows[1]]


async def test_the_migration_fills_the_types_of_waiting_events(
    hub: Hub, database_urls: DatabaseUrls, owner: Connection
) -> None:
    assert database_urls.direct
    rows = {await publish_test_event(hub, "order.paid"), await publish_test_event(hub, "order.paid", priority=1)}
    await publish_test_event(hub, "cart.filled")
    await revert_migrations(database_urls.direct, to="20251201083000")
    await apply_migrations(database_urls.direct, login="pabal_hub")

    wrong = (
        "select count(*) from pabal.event_due d join public.event_queue e using (id) where d.event_type <> e.event_type"
    )
    assert await owner.fetchval(wrong) == 0
    assert {event.id for event in await claim(hub, "order.%")} == rows
