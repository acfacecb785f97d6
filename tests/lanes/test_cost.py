"""What the lanes' statements cost in pages, beside hundreds of thousands of rows that are none of their business."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass

import pytest

from pabal import stats
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.db.queries import Query
from pabal.events import events, repair
from pabal.events.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.relay.delivery.lane import LANE as RELAY
from support.clusters import Connection, connected
from support.large_tables import ACCOUNT, DUE, FEW, FILL, FLOODED, FORGET, pages

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FULL = 40 * DUE
"""A claim writes too: each row, and what its change does to seven or nine indexes."""
ONE = 150
NOTHING = 80
"""Ten descents, one for each priority, or a look into one index."""
OLD = 200
"""As NOTHING, and BRIN summaries, which are read whole."""
COUNTED = 12_000
"""200,000 rows do wait and are counted, most of them in an index; what is future or finished adds nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    query: Query
    given: Mapping[str, object]
    rows: int
    most: int


def claim(query: Query, rows: int, most: int, **whom: object) -> Case:
    return Case(query, {"lease": new_id(), "hold": "30 s", "holder": "tester"} | whom, rows, most)


def of_events(service: str, rows: int, most: int, *patterns: str) -> Case:
    return claim(EVENTS.q.claim, rows, most, service=service, limit=DUE, aged=6, patterns=[*patterns] or None)


def a_look(query: Query, rows: int, **chosen: object) -> Case:
    asked = {name: chosen.get(name) for name in query.parameters}
    return Case(query, asked | {"reach": DUE, "limit": DUE}, rows, NOTHING)


def of_notifications(channel: str, rows: int, most: int) -> Case:
    return claim(NOTIFICATIONS.q.claim, rows, most, limit=DUE, channels=[channel], priorities=[1, 3, 5])


def of_messages(account: object, rows: int, most: int) -> Case:
    given = {"lease": new_id(), "accounts": [account], "holders": ["tester"], "limits": [DUE], "holds": ["30 s"]}
    return Case(RELAY.q.claim, given, rows, most)


CASES = {
    "events, a full claim": of_events("minu_build", DUE, FULL),
    "events, an empty claim": of_events("minu_find", 0, NOTHING),
    "events, a claim from a flood": of_events("minu_keep", DUE, FULL),
    "events, a claim of the head of a long line": of_events("minu_frame", 1, ONE),
    "events, a claim of the few of one type in a flood": of_events("minu_keep", FEW, ONE, "cart.%"),
    "events, a claim of a type in a flood of others": of_events("minu_keep", 0, NOTHING, "%.lost", "cart.lost", "z%"),
    "events, a claim of the flood by its type": of_events("minu_keep", DUE, FULL, "order.%"),
    "events, who has something due": Case(EVENTS.q.services_with_due, {}, 4, ONE),
    "events, what a service sent": a_look(events.Q.scan_sent_events, FEW, source="hub"),
    "events, what it sent of a state": a_look(events.Q.scan_sent_events, FEW, source="hub", status="pending"),
    "events, what it sent of a type": a_look(events.Q.scan_sent_events, 0, source="hub", event_type="order.%"),
    "events, what it sent somebody": a_look(events.Q.scan_sent_events, FEW, source="hub", target="minu_keep"),
    "events, what it received": a_look(events.Q.scan_received_events, FEW, target="hub", besides="hub"),
    "events, what it received of a state": a_look(events.Q.scan_received_events, FEW, target="hub", status="pending"),
    "events, what it received of a type": a_look(events.Q.scan_received_events, 0, target="hub", event_type="order.%"),
    "events, what it has of somebody": a_look(events.Q.scan_received_events, FEW, target="hub", source="minu_find"),
    "events, everybody's list": a_look(events.Q.scan_newest_events, DUE),
    "events, revive": Case(EVENTS.q.revive, {"batch": DUE}, 1, NOTHING),
    "events, call lines": Case(repair.Q.advance_ordered_events, {"batch": 5000}, 0, NOTHING),
    "events, expire": Case(EVENTS.q.expire, {"batch": 5000}, 0, NOTHING),
    "events, purge": Case(EVENTS.q.purge, {"days": 30, "batch": 5000}, 1, OLD),
    "notifications, a full claim": of_notifications("dashboard_toast", DUE, FULL),
    "notifications, a claim beside a flood of another channel": of_notifications("user_dm", 0, NOTHING),
    "notifications, expire": Case(NOTIFICATIONS.q.expire, {"batch": 5000}, 0, NOTHING),
    "notifications, purge": Case(NOTIFICATIONS.q.purge, {"days": 30, "batch": 5000}, 0, NOTHING),
    "relay, a full claim": of_messages(ACCOUNT, DUE, FULL),
    "relay, an empty claim": of_messages(new_id(), 0, NOTHING),
    "relay, a claim from a flood": of_messages(FLOODED, DUE, FULL),
    "relay, expire": Case(RELAY.q.expire, {"batch": 5000, "told": "{}", "keep": "1 day"}, 1, NOTHING),
    "relay, purge": Case(RELAY.q.purge, {"days": 7, "batch": 5000}, 0, NOTHING),
    "the census": Case(stats.Q.lane_stats, {}, 3, COUNTED),
}

KNOWLEDGE = {"as autovacuum leaves it": "", "without statistics": FORGET}
PLANS = ("custom", "generic")


@pytest.fixture(scope="module")
def crowded(postgres: embedded.ServerAddress, template_database: str) -> Generator[str]:
    url = postgres.owner_url.rpartition("/")[0] + "/crowded"

    async def make() -> None:
        async with connected(postgres.owner_url) as conn:
            await conn.execute(f"create database crowded template {template_database}")
        async with connected(url) as conn:
            await conn.execute(FILL)
            await conn.execute("vacuum analyze")

    async def drop() -> None:
        async with connected(postgres.owner_url) as conn:
            await conn.execute("drop database crowded with (force)")

    asyncio.run(make())
    yield url
    asyncio.run(drop())


@pytest.fixture
async def owner(crowded: str) -> AsyncGenerator[Connection]:
    async with connected(crowded) as conn:
        yield conn


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("knowledge", KNOWLEDGE)
@pytest.mark.parametrize("case", CASES)
async def test_it_reads_what_it_takes(owner: Connection, case: str, knowledge: str, plan: str) -> None:
    asked = CASES[case]
    prepare = f"{KNOWLEDGE[knowledge]}; set local plan_cache_mode = force_{plan}_plan"

    touched, rows = await pages(owner, asked.query, asked.given, prepare=prepare)

    assert rows == asked.rows
    assert touched <= asked.most


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("knowledge", KNOWLEDGE)
@pytest.mark.parametrize("road", ["sent", "newest"])
async def test_a_second_page_costs_what_the_first_did(owner: Connection, knowledge: str, plan: str, road: str) -> None:
    theirs = "select created_at, id from public.event_queue where source_service = 'hub'"
    [first, *others] = await owner.fetch(f"{theirs} order by created_at desc, id desc")
    looks = {"sent": (events.Q.scan_sent_events, len(others)), "newest": (events.Q.scan_newest_events, DUE)}
    asked = a_look(*looks[road], source="hub", before=first["created_at"], before_id=first["id"])
    prepare = f"{KNOWLEDGE[knowledge]}; set local plan_cache_mode = force_{plan}_plan"

    touched, found = await pages(owner, asked.query, asked.given, prepare=prepare)

    assert found == asked.rows
    assert touched <= asked.most
