"""The hub creates the deliveries of a large broadcast in slices: each once, also after a crash."""

from collections import Counter
from collections.abc import AsyncGenerator
from uuid import UUID

import pytest

from pabal.core.errors import Conflict
from pabal.events.events import cancel_event
from pabal.events.publish.fan_out import MAX_BYTES_PER_RUN, Q, expand_broadcasts
from pabal.hub import DatabaseUrls, Hub
from support.clusters import Connection, open_connection
from support.subscriptions import TESTER, load_event, publish_test_event

pytestmark = pytest.mark.anyio

INLINE_LIMIT = 200
EXPAND_300: dict[str, object] = {"limit": 300, "max_bytes": MAX_BYTES_PER_RUN}
RECEIVERS = 1000
ADD_RECEIVERS = """
with added as (
    insert into public.services (name) select 'receiver_' || n from generate_series(1, $1::integer) n returning name
)
insert into pabal.subscriptions (service_name, mode, event_types) select name, 'pull', '{order.*}' from added
"""


async def add_receivers(owner: Connection, count: int = RECEIVERS) -> None:
    await owner.execute(ADD_RECEIVERS, count)


async def receivers(owner: Connection, broadcast: UUID) -> Counter[str]:
    rows = await owner.fetch("select target_service from public.event_queue where parent_id = $1", broadcast)
    return Counter(name for (name,) in rows)


async def expand(hub: Hub, batch: int) -> int:
    async with hub.transaction() as tx:
        return await expand_broadcasts(tx, batch)


@pytest.fixture
async def crashing(database_urls: DatabaseUrls) -> AsyncGenerator[Connection]:
    """A connection that a process loses."""
    async with open_connection(database_urls.main) as conn:
        yield conn


async def test_a_publisher_creates_no_delivery_of_a_large_broadcast(hub: Hub, owner: Connection) -> None:
    await add_receivers(owner)

    broadcast = await publish_test_event(hub, "order.paid", None)

    assert await receivers(owner, broadcast) == Counter()
    assert (await load_event(hub, broadcast)).status == "completed"


@pytest.mark.parametrize("options", [{}, {"ordering_key": "k"}], ids=["small", "ordered"])
async def test_small_and_ordered_broadcasts_are_delivered_at_once(
    hub: Hub, owner: Connection, options: dict[str, str]
) -> None:
    """A later event of the same key would overtake a delivery that is created later."""
    await add_receivers(owner, RECEIVERS if options else INLINE_LIMIT)

    broadcast = await publish_test_event(hub, "order.paid", None, **options)

    assert len(await receivers(owner, broadcast)) == (RECEIVERS if options else INLINE_LIMIT)
    assert await expand(hub, 10) == 0


async def test_slices_create_each_delivery_once(hub: Hub, owner: Connection) -> None:
    await add_receivers(owner)
    broadcasts = [await publish_test_event(hub, "order.paid", None, {"n": n}, correlation_id="c") for n in range(2)]
    await owner.execute("delete from pabal.subscriptions where service_name = 'receiver_1'")  # it was a receiver

    slices = [await expand(hub, 300)]
    assert [len(await receivers(owner, broadcast)) for broadcast in broadcasts] == [300, 0]  # in order
    while slices[-1]:
        slices.append(await expand(hub, 300))

    assert slices == [300] * 6 + [200, 0]
    for broadcast in broadcasts:
        assert await receivers(owner, broadcast) == Counter(f"receiver_{n}" for n in range(1, RECEIVERS + 1))
    rows = await owner.fetch(
        "select distinct e.payload, e.correlation_id, e.status from public.event_queue e "
        "join pabal.event_due d on d.id = e.id where e.parent_id = $1",
        broadcasts[1],
    )
    assert [tuple(row) for row in rows] == [('{"n": 1}', "c", "pending")]


async def test_a_run_ends_with_the_payloads_that_reach_its_size(hub: Hub, owner: Connection) -> None:
    """A slice of 5,000 large deliveries would exceed the statement timeout each time, and hold back all later ones."""
    await add_receivers(owner, 300)
    await owner.execute(
        """
        select pabal.publish('hub', 'order.paid', jsonb_build_object('noise', string_agg(md5(n::text), '')))
        from generate_series(1, 8000) n
        """
    )
    broadcast: UUID = await owner.fetchval("select id from public.event_queue")
    small = await publish_test_event(hub, "order.paid", None)

    runs = [await expand(hub, 1000)]
    assert (len(await receivers(owner, broadcast)) - 1) * 256_000 < MAX_BYTES_PER_RUN
    while runs[-1]:
        runs.append(await expand(hub, 1000))

    assert len(runs) > 3
    all_receivers = Counter(f"receiver_{n}" for n in range(1, 301))
    assert await receivers(owner, broadcast) == await receivers(owner, small) == all_receivers


async def test_a_crash_between_slices_neither_loses_nor_repeats_deliveries(
    hub: Hub, owner: Connection, crashing: Connection
) -> None:
    await add_receivers(owner)
    broadcast = await publish_test_event(hub, "order.paid", None)
    await expand(hub, 300)

    await crashing.execute("begin")
    assert await crashing.fetchval(Q.expand_broadcast.sql, *Q.expand_broadcast.bind(EXPAND_300)) == 300
    pid = crashing.get_server_pid()
    crashing.terminate()  # as kill -9 does: the server sees the connection end without a commit
    await owner.execute("select pg_terminate_backend($1, 10000)", pid)
    while await expand(hub, 300):
        pass

    assert await receivers(owner, broadcast) == Counter(f"receiver_{n}" for n in range(1, RECEIVERS + 1))


async def test_two_processes_do_not_expand_the_same_broadcast(hub: Hub, owner: Connection) -> None:
    await add_receivers(owner)
    broadcast = await publish_test_event(hub, "order.paid", None)

    async with hub.transaction() as tx:
        assert await expand_broadcasts(tx, 300) == 300
        assert await expand(hub, 300) == 0
    assert len(await receivers(owner, broadcast)) == 300


async def test_cancelling_a_broadcast_stops_its_expansion(hub: Hub, owner: Connection) -> None:
    await add_receivers(owner)
    broadcast = await load_event(hub, await publish_test_event(hub, "order.paid", None))
    untouched = await load_event(hub, await publish_test_event(hub, "order.paid", None))
    await expand(hub, 300)

    async with hub.transaction() as tx:
        assert len(await cancel_event(tx, broadcast, TESTER)) == 300
    async with hub.transaction() as tx:
        assert await cancel_event(tx, untouched, TESTER) == []

    assert await expand(hub, 300) == 0
    with pytest.raises(Conflict):
        async with hub.transaction() as tx:
            await cancel_event(tx, untouched, TESTER)


async def test_the_chores_of_a_hub_expand_broadcasts(hub: Hub, owner: Connection) -> None:
    await add_receivers(owner, 300)
    broadcast = await publish_test_event(hub, "order.paid", None)

    await hub.chores.run_due()

    assert len(await receivers(owner, broadcast)) == 300
