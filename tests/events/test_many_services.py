"""Claims cost the same for ten services and for ten thousand, and no service starves."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.core.ids import new_id
from pabal.db.stored_json import MAX_RESPONSE_BYTES
from pabal.events.consume.lane import LANE, EventClaimFilter, claim_columns
from pabal.events.push import due_services, targets
from pabal.events.push.due_services import SERVICES_PER_ROUND
from pabal.events.push.push_lane import PushLane
from pabal.events.subscriptions import webhook_secret_location
from pabal.hub import Hub
from pabal.keys.envelope import encrypt_envelope
from pabal.queue.lane import ClaimRequest
from pabal.settings import Settings
from support.clusters import Connection
from support.large_tables import count_pages
from support.receiver import Receiver, run_receiver
from support.subscriptions import publish_test_event, run_workers
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MINUTE = timedelta(minutes=1)
FEW, MANY = 100, 10_000
FLOOD, OTHERS = 100_000, 999
PAGES_PER_SERVICE = 40
"""Ten index probes, one per priority, and the rows of a claimed event."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server


async def add_services(hub: Hub, owner: Connection, count: int, url: str, *, flood: int = 0) -> None:
    """Add services with a push subscription and one due event each; the first has `flood` more."""
    await owner.execute("set session_replication_role = replica")  # the tables of the lane are filled below
    await owner.execute(
        "insert into public.services (name) select 'many_' || n from generate_series(1, $1::integer) n", count
    )
    ids = [new_id() for _ in range(count)]
    await owner.execute(
        "insert into pabal.subscriptions (id, service_name, mode, event_types, url, secret) "
        "select id, 'many_' || n, 'push', '{order.*}', $3, secret "
        "from unnest($1::uuid[], $2::text[]) with ordinality as s (id, secret, n)",
        ids,
        [encrypt_envelope(hub.key_ring, "whsec_" + "a" * 32, webhook_secret_location(row)) for row in ids],
        url,
    )
    await owner.execute(
        "insert into public.event_queue (id, event_type, source_service, target_service) "
        "select pabal.uuid7(), 'order.paid', 'minu_find', 'many_' || greatest(n - $2::integer, 1) "
        "from generate_series(1, $1::integer + $2::integer) n",
        count,
        flood,
    )
    await owner.execute(
        "insert into pabal.event_due (id, service, priority, due_at, seq, event_type) "
        "select id, target_service, priority, created_at, seq, event_type from public.event_queue"
    )
    await owner.execute("reset session_replication_role")
    await owner.execute("analyze")


class TestRounds:
    @pytest.mark.parametrize("count", [FEW, MANY])
    async def test_a_round_of_pushes_takes_some_services_and_reads_their_rows_only(
        self, hub: Hub, owner: Connection, count: int
    ) -> None:
        await add_services(hub, owner, count, "http://127.0.0.1/hook")

        scheduled = await hub.pusher.schedule()
        services = [claim.claim_filter.service for claim in scheduled]
        requests = [ClaimRequest(EventClaimFilter(service, ["order.paid"]), 1) for service in services]
        limits = {"limit": 100, "max_bytes": MAX_RESPONSE_BYTES}
        claim = claim_columns(requests) | {"lease": new_id(), "hold": "30 s", "holder": "tester"} | limits
        scan = {"after": "", "limit": due_services.SCAN_PAGE}
        pages = [
            await count_pages(owner, due_services.Q.scan_services, scan),
            await count_pages(owner, targets.Q.list_active_push_subscriptions, {"services": services}),
            await count_pages(owner, LANE.q.claim, claim),
        ]

        assert len(services) == SERVICES_PER_ROUND
        assert pages[2][1] == SERVICES_PER_ROUND
        limits = [due_services.SCAN_PAGE, SERVICES_PER_ROUND, SERVICES_PER_ROUND]
        assert all(read <= limit * PAGES_PER_SERVICE for (read, _), limit in zip(pages, limits, strict=True))

    async def test_a_round_is_one_claim_under_one_lease(self, hub: Hub, owner: Connection) -> None:
        await add_services(hub, owner, FEW, "http://127.0.0.1/hook")
        scheduled = await hub.pusher.schedule()
        requests = [ClaimRequest(claim.claim_filter, 1) for claim in scheduled]

        async with hub.autocommit() as tx:
            claimed = await PushLane().claim_many(tx, requests, 100, MINUTE, "tester")

        assert len({delivery.target.service_name for delivery in claimed.items}) == SERVICES_PER_ROUND
        [lease] = await owner.fetch("select held, cardinality(ids) as ids from pabal.event_leases")
        assert (lease["held"], lease["ids"]) == (SERVICES_PER_ROUND, SERVICES_PER_ROUND)

    async def test_a_claim_for_many_services_takes_no_more_than_its_limit(self, hub: Hub, owner: Connection) -> None:
        await add_services(hub, owner, FEW, "http://127.0.0.1/hook")
        requests = [ClaimRequest(EventClaimFilter(f"many_{number}"), 1) for number in range(1, FEW + 1)]

        async with hub.autocommit() as tx:
            first = await LANE.claim_many(tx, requests, 10, MINUTE, "tester")
            second = await LANE.claim_many(tx, requests, FEW, MINUTE, "tester")

        assert (len(first.items), first.has_more) == (10, [True] * FEW)
        assert (len(second.items), second.has_more) == (FEW - 10, [False] * 10 + [True] * (FEW - 10))


async def test_no_service_waits_for_the_queue_of_another(hub: Hub, owner: Connection, receiver: Receiver) -> None:
    """One service has 100,000 events and 999 services have one each: a round has a slot for each."""
    await add_services(hub, owner, OTHERS + 1, receiver.url, flood=FLOOD)

    def pushes() -> Counter[str]:
        return Counter(json.loads(request.body)["target_service"] for request in receiver.requests)

    async with run_workers(hub):
        await wait_until(lambda: len(receiver.requests) > OTHERS and len(pushes()) == OTHERS + 1, within=120)

    assert pushes()["many_1"] < len(receiver.requests) / 2


async def test_services_found_by_the_scan_and_by_wakeups_are_all_served(
    hub: Hub, owner: Connection, receiver: Receiver
) -> None:
    """While thousands of services wait for their turn, a new event of another is pushed as well."""
    await add_services(hub, owner, 2 * due_services.SCAN_PAGE, receiver.url)
    async with run_workers(hub):
        row = await publish_test_event(hub, "order.paid", "many_1")
        await wait_until(lambda: len(receiver.requests) == 2 * due_services.SCAN_PAGE + 1, within=60)
        assert str(row) in {request.headers["webhook-id"] for request in receiver.requests}
