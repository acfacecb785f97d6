"""What the lanes' statements cost in pages, beside hundreds of thousands of rows that are none of their business."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass

import pytest

from clusters import Connection, connected
from crowd import ACCOUNT, DUE, FEW, FILL, FLOODED, FORGET, pages
from pabal.core.ids import new_id
from pabal.db import embedded
from pabal.db.queries import Query
from pabal.events import mend, read
from pabal.events.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue import census
from pabal.relay.lane import LANE as RELAY

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


def a_list(rows: int, *, everybody: bool = False, **chosen: object) -> Case:
    asked = {name: chosen.get(name) for name in read.Q.list.takes}
    return Case(read.Q.list, asked | {"service": "hub", "all": everybody, "limit": DUE}, rows, NOTHING)


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
    "events, a service's list": a_list(2 * FEW),
    "events, its list of a state": a_list(2 * FEW, status="pending"),
    "events, its list of a type": a_list(0, event_type="order.%"),
    "events, what it sent": a_list(FEW, source="hub"),
    "events, what it was sent": a_list(FEW, target="hub"),
    "events, what it has of somebody": a_list(FEW, source="minu_find"),
    "events, what it sent somebody": a_list(FEW, target="minu_keep"),
    "events, everybody's list": a_list(DUE, everybody=True),
    "events, everybody's list of one source": a_list(FEW, everybody=True, source="hub"),
    "events, everybody's list of one target": a_list(FEW, everybody=True, target="hub"),
    "events, revive": Case(EVENTS.q.revive, {"batch": DUE}, 1, NOTHING),
    "events, call lines": Case(mend.Q.call_lines, {"batch": 5000}, 0, NOTHING),
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
    "the census": Case(census.Q.lanes, {}, 3, COUNTED),
}

KNOWLEDGE = {"as autovacuum leaves it": "", "without statistics": FORGET}
PLANS = ("custom", "generic")


@pytest.fixture(scope="module")
def crowded(postgres: embedded.Endpoint, model: str) -> Generator[str]:
    url = postgres.owner_url.rpartition("/")[0] + "/crowded"

    async def make() -> None:
        async with connected(postgres.owner_url) as conn:
            await conn.execute(f"create database crowded template {model}")
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
@pytest.mark.parametrize("everybody", [False, True])
async def test_a_second_page_costs_what_the_first_did(
    owner: Connection, knowledge: str, plan: str, *, everybody: bool
) -> None:
    theirs = "select created_at, id from public.event_queue where 'hub' in (source_service, target_service)"
    rows = await owner.fetch(f"{theirs} order by created_at desc, id desc")
    before = {"before": rows[FEW - 1]["created_at"], "before_id": rows[FEW - 1]["id"]}
    asked = a_list(DUE if everybody else FEW, everybody=everybody, **before)
    prepare = f"{KNOWLEDGE[knowledge]}; set local plan_cache_mode = force_{plan}_plan"

    touched, found = await pages(owner, asked.query, asked.given, prepare=prepare)

    assert found == asked.rows
    assert touched <= asked.most
