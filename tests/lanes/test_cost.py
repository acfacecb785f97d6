"""Pages that lane statements read in tables with hundreds of thousands of unrelated rows."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from uuid import UUID

import pytest

from pabal import stats
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.db.queries import Query
from pabal.events import events
from pabal.events.consume.lane import LANE as EVENTS
from pabal.events.push import due_services
from pabal.events.repair import repair
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.relay.delivery.lane import LANE as RELAY
from support.clusters import Connection, open_connection
from support.large_tables import ACCOUNT, DELETE_STATISTICS, DUE, FEW, FILL, FLOODED, count_pages

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PAGES_FULL = 40 * DUE
"""A claim also writes: each row, and entries in seven or nine indexes."""
PAGES_ONE = 150
PAGES_NONE = 80
"""Ten index descents, one per priority, or one scan of an index."""
PAGES_COUNTED = 12_000
"""200,000 waiting rows are counted, most of them in an index; future and finished rows cost nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    query: Query
    arguments: Mapping[str, object]
    rows: int
    max_pages: int


MAX_BYTES = 8 << 20


def claim(query: Query, rows: int, max_pages: int, **claim_filter: object) -> Case:
    return Case(query, {"lease": new_id(), "hold": "30 s", "holder": "tester"} | claim_filter, rows, max_pages)


def event_claim(service: str, rows: int, max_pages: int, *patterns: str) -> Case:
    return claim(
        EVENTS.q.claim,
        rows,
        max_pages,
        services=[service],
        patterns=[" ".join(patterns) or None],
        except_patterns=[None],
        programs=[None],
        limits=[DUE],
        oldest_quotas=[6],
        limit=DUE,
        max_bytes=MAX_BYTES,
    )


def repair_check(query: Query) -> Case:
    return Case(query, {"after": UUID(int=0), "window": DUE}, 0, 10 * DUE)


def scan_case(query: Query, rows: int, **filters: object) -> Case:
    arguments = {name: filters.get(name) for name in query.parameters}
    return Case(query, arguments | {"scan_limit": DUE, "limit": DUE}, rows, PAGES_NONE)


def notification_claim(channel: str, rows: int, max_pages: int) -> Case:
    return claim(NOTIFICATIONS.q.claim, rows, max_pages, limit=DUE, channels=[channel], priorities=[1, 3, 5])


def message_claim(account: object, rows: int, max_pages: int) -> Case:
    arguments = {"lease": new_id(), "accounts": [account], "holders": ["tester"], "limits": [DUE], "holds": ["30 s"]}
    return Case(RELAY.q.claim, arguments | {"max_bytes": MAX_BYTES}, rows, max_pages)


CASES = {
    "events, a full claim": event_claim("minu_build", DUE, PAGES_FULL),
    "events, an empty claim": event_claim("minu_find", 0, PAGES_NONE),
    "events, a claim from a flood": event_claim("minu_keep", DUE, PAGES_FULL),
    "events, a claim of the first of many ordered events": event_claim("minu_frame", 1, PAGES_ONE),
    "events, a claim of the few of one type in a flood": event_claim("minu_keep", FEW, PAGES_ONE, "cart.%"),
    "events, a claim of a type in a flood of others": event_claim(
        "minu_keep", 0, PAGES_NONE, "%.lost", "cart.lost", "z%"
    ),
    "events, a claim of the flood by its type": event_claim("minu_keep", DUE, PAGES_FULL, "order.%"),
    "events, services with due events": Case(
        EVENTS.q.services_with_due, {"services": ["minu_build", "minu_find", "minu_keep"]}, 2, PAGES_ONE
    ),
    "events, a scan of the services": Case(due_services.Q.scan_services, {"after": "", "limit": 256}, 4, PAGES_ONE),
    "events, sent by a service": scan_case(events.Q.scan_sent_events, FEW, source="hub"),
    "events, sent, by status": scan_case(events.Q.scan_sent_events, FEW, source="hub", status="pending"),
    "events, sent, by type": scan_case(events.Q.scan_sent_events, 0, source="hub", event_type="order.%"),
    "events, sent, by target": scan_case(events.Q.scan_sent_events, FEW, source="hub", target="minu_keep"),
    "events, received by a service": scan_case(events.Q.scan_received_events, FEW, target="hub", except_source="hub"),
    "events, received, by status": scan_case(events.Q.scan_received_events, FEW, target="hub", status="pending"),
    "events, received, by type": scan_case(events.Q.scan_received_events, 0, target="hub", event_type="order.%"),
    "events, received, by source": scan_case(events.Q.scan_received_events, FEW, target="hub", source="minu_find"),
    "events, list of all services": scan_case(events.Q.scan_newest_events, DUE),
    "events, revive": Case(EVENTS.q.revive, {"batch": DUE}, 1, PAGES_NONE),
    "events, advance ordered events": Case(repair.Q.advance_ordered_events, {"batch": 5000}, 0, PAGES_NONE),
    "events, check a slice of the events": repair_check(repair.Q.check_events),
    "events, check a slice of the due events": repair_check(repair.Q.check_due),
    "events, check a slice of the ordered events": repair_check(repair.Q.check_order),
    "events, check a slice of the leases": repair_check(repair.Q.check_leases),
    "events, find the end of a slice": Case(
        repair.Q.find_event_position, {"after": UUID(int=0), "window": DUE}, 1, PAGES_NONE
    ),
    "events, expire": Case(EVENTS.q.expire, {"batch": 5000}, 0, PAGES_NONE),
    "events, purge": Case(EVENTS.q.purge, {"days": 30, "batch": 5000, "after": None}, 1, PAGES_NONE),
    "notifications, a full claim": notification_claim("dashboard_toast", DUE, PAGES_FULL),
    "notifications, a claim beside a flood of another channel": notification_claim("user_dm", 0, PAGES_NONE),
    "notifications, expire": Case(NOTIFICATIONS.q.expire, {"batch": 5000}, 0, PAGES_NONE),
    "notifications, purge": Case(NOTIFICATIONS.q.purge, {"days": 30, "batch": 5000}, 0, PAGES_NONE),
    "relay, a full claim": message_claim(ACCOUNT, DUE, PAGES_FULL),
    "relay, an empty claim": message_claim(new_id(), 0, PAGES_NONE),
    "relay, a claim from a flood": message_claim(FLOODED, DUE, PAGES_FULL),
    "relay, expire": Case(RELAY.q.expire, {"batch": 5000, "response": "{}", "keep": "1 day"}, 1, PAGES_NONE),
    "relay, purge": Case(RELAY.q.purge, {"days": 7, "batch": 5000}, 0, PAGES_NONE),
    "lane statistics": Case(stats.Q.lane_stats, {}, 3, PAGES_COUNTED),
}

STATISTICS = {"after autovacuum": "", "without statistics": DELETE_STATISTICS}
PLANS = ("custom", "generic")


@pytest.fixture(scope="module")
def filled_database(postgres: embedded.ServerAddress, template_database: str) -> Generator[str]:
    url = postgres.owner_url.rpartition("/")[0] + "/crowded"

    async def create() -> None:
        async with open_connection(postgres.owner_url) as conn:
            await conn.execute(f"create database crowded template {template_database}")
        async with open_connection(url) as conn:
            await conn.execute(FILL)
            await conn.execute("vacuum analyze")

    async def drop() -> None:
        async with open_connection(postgres.owner_url) as conn:
            await conn.execute("drop database crowded with (force)")

    asyncio.run(create())
    yield url
    asyncio.run(drop())


@pytest.fixture
async def owner(filled_database: str) -> AsyncGenerator[Connection]:
    async with open_connection(filled_database) as conn:
        yield conn


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("case", CASES)
async def test_a_statement_reads_only_the_rows_it_returns(
    owner: Connection, case: str, statistics: str, plan: str
) -> None:
    measured_case = CASES[case]
    prepare = f"{STATISTICS[statistics]}; set local plan_cache_mode = force_{plan}_plan"

    page_count, rows = await count_pages(owner, measured_case.query, measured_case.arguments, prepare=prepare)

    assert rows == measured_case.rows
    assert page_count <= measured_case.max_pages


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("scan", ["sent", "newest"])
async def test_a_second_page_costs_as_much_as_the_first(
    owner: Connection, statistics: str, plan: str, scan: str
) -> None:
    hub_events = "select created_at, id from public.event_queue where source_service = 'hub'"
    [first, *others] = await owner.fetch(f"{hub_events} order by created_at desc, id desc")
    scans = {"sent": (events.Q.scan_sent_events, len(others)), "newest": (events.Q.scan_newest_events, DUE)}
    measured_case = scan_case(*scans[scan], source="hub", before=first["created_at"], before_id=first["id"])
    prepare = f"{STATISTICS[statistics]}; set local plan_cache_mode = force_{plan}_plan"

    page_count, rows = await count_pages(owner, measured_case.query, measured_case.arguments, prepare=prepare)

    assert rows == measured_case.rows
    assert page_count <= measured_case.max_pages
