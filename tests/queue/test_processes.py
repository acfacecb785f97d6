"""The list of processes: running ones are in it, stopped and dead ones are not."""

import os
from datetime import timedelta
from typing import Any

import pytest

from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.hub_workers import build_workers, register_hub_process
from pabal.queue import processes
from pabal.queue.processes import (
    DEAD_AFTER,
    ProcessDetails,
    ProcessInfo,
    list_processes,
    process_name,
    purge_processes,
    registered_process,
)
from support.lane_under_test import Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SHORT_INTERVAL = timedelta(milliseconds=10)


async def list_all(hub: Hub) -> list[ProcessInfo]:
    async with hub.autocommit() as tx:
        return await list_processes(tx)


async def wait_for_entry(hub: Hub, count: int = 0) -> ProcessInfo:
    """This process's entry, once it has been written `count` times."""

    async def is_listed() -> bool:
        return any((process.details.holds or 0) >= count for process in await list_all(hub))

    await wait_until(is_listed)
    [entry] = await list_all(hub)
    return entry


class CountedHeartbeats:
    def __init__(self) -> None:
        self.count = 0

    async def report(self, _tx: Tx) -> ProcessDetails:
        self.count += 1
        return ProcessDetails(holds=self.count)


async def test_a_process_is_listed_while_it_runs(hub: Hub) -> None:
    workers = build_workers(hub)
    async with register_hub_process(hub, workers):
        entry = await wait_for_entry(hub)
        assert (entry.pid, entry.lanes, entry.details.holds) == (os.getpid(), ["events", "notifications"], 0)
        assert [worker.name.partition(":")[2] for worker in workers] == [entry.id] * len(workers)
    assert await list_all(hub) == []


async def test_heartbeats_move_seen_at_and_not_started_at(hub: Hub) -> None:
    heartbeats = CountedHeartbeats()
    async with registered_process(hub.db, ["events"], heartbeats.report, SHORT_INTERVAL):
        first = await wait_for_entry(hub, 1)
        later = await wait_for_entry(hub, heartbeats.count + 2)

    assert later.seen_at > first.seen_at
    assert later.started_at == first.started_at


async def test_a_silent_process_is_purged_and_listed_again_at_its_next_heartbeat(hub: Hub, travel: Travel) -> None:
    heartbeats = CountedHeartbeats()
    async with registered_process(hub.db, ["events"], heartbeats.report):
        await wait_for_entry(hub, 1)
        await travel(DEAD_AFTER - timedelta(seconds=5))
        async with hub.autocommit() as tx:
            assert await purge_processes(tx, 10) == 0
        await travel(timedelta(seconds=10))
        async with hub.autocommit() as tx:
            assert await purge_processes(tx, 10) == 1
    async with registered_process(hub.db, ["events"], heartbeats.report, SHORT_INTERVAL):
        await wait_for_entry(hub, 2)
        async with hub.autocommit() as tx:
            await purge_processes(tx, 10)
            await tx.run(processes.Q.delete_process, id=process_name())
        assert (await wait_for_entry(hub, heartbeats.count + 1)).id == process_name()


async def test_a_reused_process_name_replaces_the_entry(hub: Hub, travel: Travel) -> None:
    async with hub.autocommit() as tx:
        previous = {"id": process_name(), "host": "other-host", "pid": 7, "lanes": ["relay"], "details": {}}
        await tx.run(processes.Q.upsert_process, **previous, first=True)
    await travel(timedelta(minutes=1))
    heartbeats = CountedHeartbeats()
    async with registered_process(hub.db, ["events"], heartbeats.report):
        entry = await wait_for_entry(hub, 1)

    assert (entry.pid, entry.lanes) == (os.getpid(), ["events"])
    assert entry.started_at == entry.seen_at


async def test_a_process_of_another_version_is_listed_with_what_is_known_of_it(hub: Hub) -> None:
    details: list[dict[str, Any]] = [
        {"version": "0.9", "holds": 3, "colour": "red"},
        {"version": "9.0", "holds": {"events": 1}},
    ]
    async with hub.autocommit() as tx:
        for pid, reported in enumerate(details):
            process = {"id": f"hub-{pid}", "host": "hub", "pid": pid, "lanes": ["relay"], "details": reported}
            await tx.run(processes.Q.upsert_process, **process, first=True)

    assert [process.details for process in await list_all(hub)] == [
        ProcessDetails(version="0.9", holds=3),
        ProcessDetails(),
    ]
