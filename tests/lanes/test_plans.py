"""A generic plan is created once, possibly while every table is still empty."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pabal.db.connect import ConnectOptions, HostDialer, HubConnection, connect_arguments, probe_server
from pabal.db.queries import Query
from pabal.hub import DatabaseUrls
from support.lane_under_test import Events, LaneUnderTest

pytestmark = pytest.mark.anyio

MAX_PAGES = 100
"""Pages: a few index descents. Reading the five thousand rows touches more, with any plan."""
LARGE_TABLES = ("event_queue", "event_due", "requests", "inbound_messages")
ARGUMENTS: dict[str, Any] = {
    "limit": 50,
    "oldest_quotas": [6],
    "max_bytes": 8 << 20,
    "patterns": [None],
    "except_patterns": [None],
    "programs": [None],
    "hold": timedelta(minutes=1),
    "holder": "tester",
    "services": ["minu_build"],
    "lease": uuid4(),
    "ids": [uuid4() for _ in range(50)],
    "leases": [uuid4() for _ in range(50)],
    "answers": f"{{{','.join(['null'] * 50)}}}",
    "channels": ["user_dm", "guild_audit_channel", "dashboard_toast"],
    "priorities": [1, 3, 5],
    "accounts": [uuid4()],
    "holders": ["tester"],
    "holds": [timedelta(minutes=1)],
    "limits": [50],
}


async def connect_as_hub(options: ConnectOptions) -> HubConnection:
    arguments = connect_arguments(options, await probe_server(options))
    return await HostDialer(options.url, options.connect_timeout).dial(arguments)


def literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case int():
            return str(value)
        case timedelta():
            return f"interval '{value.total_seconds()} s'"
        case UUID():
            return f"'{value}'::uuid"
        case list():
            return f"array[{', '.join(map(literal, value))}]"
        case _:
            return f"'{value}'"


@pytest.mark.parametrize("statement", ["claim", "settle_done", "extend"])
async def test_a_plan_created_on_an_empty_table_does_not_read_the_full_one(
    lane: LaneUnderTest, database_urls: DatabaseUrls, statement: str
) -> None:
    query: Query = getattr(lane.lane.q, statement)
    arguments = ARGUMENTS | {"accounts": [lane.claimer.get("account", uuid4())] * (1 if statement == "claim" else 50)}
    options = ConnectOptions(database_urls.main)
    connection = await connect_as_hub(options)
    try:
        call = f"execute statement ({', '.join(literal(arguments[name]) for name in query.parameters)})"
        await connection.execute(f"prepare statement as {query.sql}")
        await connection.execute(call)
        await lane.put(5000)
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain {call}"))
    finally:
        await connection.close()

    assert "Scan" in plan
    assert [table for table in LARGE_TABLES if f"Seq Scan on {table}" in plan] == [], plan


@pytest.mark.parametrize("lane", [Events], ids=["events"], indirect=True)
@pytest.mark.parametrize("patterns", [["cart.%"], ["cart.filled", "%.lost"]])
async def test_a_claim_of_some_types_planned_on_an_empty_table_does_not_read_other_types(
    lane: LaneUnderTest, database_urls: DatabaseUrls, patterns: list[str]
) -> None:
    query: Query = lane.lane.q.claim
    options = ConnectOptions(database_urls.main)
    connection = await connect_as_hub(options)
    try:
        values = ", ".join(literal((ARGUMENTS | {"patterns": [" ".join(patterns)]})[name]) for name in query.parameters)
        await connection.execute(f"prepare statement as {query.sql}")
        await connection.execute(f"execute statement ({values})")
        await lane.put(1)
        await lane.owner.execute("update public.event_queue set event_type = 'cart.filled'")
        await lane.put(5000)
        plan = await connection.fetchval(f"explain (analyze, buffers, format json) execute statement ({values})")
    finally:
        await connection.close()

    [top] = json.loads(plan)
    assert top["Plan"]["Actual Rows"] == 1
    assert top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"] < MAX_PAGES


@pytest.mark.parametrize("lane", [Events], ids=["events"], indirect=True)
@pytest.mark.parametrize("statement", ["claim", "expire"])
async def test_statistics_without_pending_rows_do_not_cause_a_full_scan(
    lane: LaneUnderTest, database_urls: DatabaseUrls, statement: str
) -> None:
    """If no row was pending when they were collected, `status = 'pending'` looks like the most selective condition."""
    await lane.put(5000)
    await lane.owner.execute("update public.event_queue set status = 'completed'; analyze")
    query: Query = getattr(lane.lane.q, statement)
    options = ConnectOptions(database_urls.main)
    connection = await connect_as_hub(options)
    try:
        values = ", ".join(literal((ARGUMENTS | {"batch": 5000})[name]) for name in query.parameters)
        await connection.execute(f"prepare statement as {query.sql}")
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain execute statement ({values})"))
    finally:
        await connection.close()

    assert "Scan on event_queue_pkey" in plan or "using event_queue_pkey" in plan
    assert "idx_event_queue_status" not in plan
