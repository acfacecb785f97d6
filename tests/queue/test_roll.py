"""The roll: who is at work is on it, who stops or dies is not."""

import os
from datetime import timedelta
from typing import Any

import pytest

from pabal.db.tx import Tx
from pabal.hub import Hub, build_workers, register_hub_process
from pabal.queue import processes
from pabal.queue.processes import (
    DEAD_AFTER,
    ProcessInfo,
    list_processes,
    process_name,
    purge_processes,
    registered_process,
)
from support.lane_under_test import Travel
from support.wait import until

pytestmark = pytest.mark.anyio

SOON = timedelta(milliseconds=10)


async def everybody(hub: Hub) -> list[ProcessInfo]:
    async with hub.autocommit() as tx:
        return await list_processes(tx)


async def there(hub: Hub, beats: int = 0) -> ProcessInfo:
    """Our own entry, once it has been written so often."""

    async def is_there() -> bool:
        return any(each.details.get("beats", 0) >= beats for each in await everybody(hub))

    await until(is_there)
    [entry] = await everybody(hub)
    return entry


class Heart:
    def __init__(self) -> None:
        self.beats = 0

    async def report(self, _tx: Tx) -> dict[str, Any]:
        self.beats += 1
        return {"beats": self.beats}


async def test_a_process_is_on_the_roll_for_as_long_as_it_works(hub: Hub) -> None:
    employed = build_workers(hub)
    async with register_hub_process(hub, employed):
        entry = await there(hub)
        assert (entry.pid, entry.lanes, entry.details["holds"]) == (os.getpid(), ["events", "notifications"], 0)
        assert [each.name.partition(":")[2] for each in employed] == [entry.id] * len(employed)
    assert await everybody(hub) == []


async def test_it_reports_again_and_again_and_began_once(hub: Hub) -> None:
    heart = Heart()
    async with registered_process(hub.db, ["events"], heart.report, SOON):
        first = await there(hub, 1)
        later = await there(hub, first.details["beats"] + 2)

    assert later.seen_at > first.seen_at
    assert later.started_at == first.started_at


async def test_who_falls_silent_is_struck_off_and_comes_back_when_heard(hub: Hub, travel: Travel) -> None:
    heart = Heart()
    async with registered_process(hub.db, ["events"], heart.report):
        await there(hub, 1)
        await travel(DEAD_AFTER - timedelta(seconds=5))
        async with hub.autocommit() as tx:
            assert await purge_processes(tx, 10) == 0
        await travel(timedelta(seconds=10))
        async with hub.autocommit() as tx:
            assert await purge_processes(tx, 10) == 1
    async with registered_process(hub.db, ["events"], heart.report, SOON):
        await there(hub, 2)
        async with hub.autocommit() as tx:
            await purge_processes(tx, 10)
            await tx.run(processes.Q.delete_process, id=process_name())
        assert (await there(hub, heart.beats + 1)).id == process_name()


async def test_the_same_number_of_another_process_begins_anew(hub: Hub, travel: Travel) -> None:
    async with hub.autocommit() as tx:
        dead = {"id": process_name(), "host": "there", "pid": 7, "lanes": ["relay"], "details": {}}
        await tx.run(processes.Q.upsert_process, **dead, first=True)
    await travel(timedelta(minutes=1))
    heart = Heart()
    async with registered_process(hub.db, ["events"], heart.report):
        entry = await there(hub, 1)

    assert (entry.pid, entry.lanes) == (os.getpid(), ["events"])
    assert entry.started_at == entry.seen_at
