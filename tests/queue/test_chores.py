import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from pabal.core.errors import PabalError
from pabal.db.errors import CheckViolation
from pabal.db.tx import Tx
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.chores import Chore, ChoreRunner
from support.wait import wait_until

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def test_a_chore_runs_when_due_and_not_before(hub: Hub, travel: Callable[[timedelta], Awaitable[None]]) -> None:
    async def sweep(_tx: Tx, _batch: int) -> int:
        return 0

    chores = ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)])

    assert await chores.run_due() == ["sweep"]
    assert await chores.run_due() == []
    await travel(HOUR)
    assert await chores.run_due() == ["sweep"]


async def test_one_of_many_processes_runs_a_chore(hub: Hub) -> None:
    runs = 0
    gate = asyncio.Event()

    async def sweep(_tx: Tx, _batch: int) -> int:
        nonlocal runs
        runs += 1
        await gate.wait()
        return 0

    first, *others = [ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)]) for _ in range(8)]
    tasks = [asyncio.create_task(chores.run_due()) for chores in (first, *others)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    gate.set()

    assert [name for names in await asyncio.gather(*tasks) for name in names] == ["sweep"]
    assert runs == 1


async def test_a_run_longer_than_its_interval_does_not_overlap_with_the_next(
    hub: Hub, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    started, gate, runs = asyncio.Event(), asyncio.Event(), 0

    async def sweep(_tx: Tx, _batch: int) -> int:
        nonlocal runs
        runs += 1
        started.set()
        await gate.wait()
        return 0

    first_run = asyncio.create_task(ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)]).run_due())
    await started.wait()
    await travel(HOUR)
    await ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)]).run_due()
    gate.set()
    await first_run

    assert runs == 1


async def test_a_big_chore_runs_in_batches_and_its_run_is_recorded(hub: Hub, database_urls: DatabaseUrls) -> None:
    remaining, batches = 12, []

    async def sweep(_tx: Tx, batch: int) -> int:
        nonlocal remaining
        rows = min(remaining, batch)
        remaining -= rows
        batches.append(rows)
        return rows

    await ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)], batch=5).run_due()

    assert batches == [5, 5, 2]
    owner = await asyncpg.connect(database_urls.direct)
    row = await owner.fetchrow("select * from pabal.chores where name = 'sweep'")
    owner.terminate()
    assert row is not None
    assert (row["last_rows"], row["last_error"], row["runs"]) == (12, None, 1)


@pytest.mark.parametrize(("error", "recorded"), [(CheckViolation("no"), "no"), (ValueError("no"), "ValueError: no")])
async def test_a_failure_is_recorded_and_stops_no_other_chore(
    hub: Hub, database_urls: DatabaseUrls, error: Exception, recorded: str
) -> None:
    async def fail(_tx: Tx, _batch: int) -> int:
        raise error

    async def succeed(_tx: Tx, _batch: int) -> int:
        return 1

    chores = ChoreRunner(hub.db, [Chore("fails", HOUR, fail), Chore("works", HOUR, succeed)])
    await chores.run_due()

    owner = await asyncpg.connect(database_urls.direct)
    rows = await owner.fetch("select name, last_error, last_rows from pabal.chores order by name")
    owner.terminate()
    assert [tuple(row) for row in rows] == [("fails", recorded, 0), ("works", None, 1)]


async def test_a_chore_of_many_batches_does_not_delay_the_others(hub: Hub) -> None:
    """An endless chore continues while the others keep running, and stops with the runner."""
    swept_again, batches = asyncio.Event(), 0

    async def purge(_tx: Tx, batch: int) -> int:
        nonlocal batches
        batches += 1
        return batch

    async def sweep(_tx: Tx, _batch: int) -> int:
        if batches > 1:
            swept_again.set()
        return 0

    chores = ChoreRunner(hub.db, [Chore("purge", HOUR, purge), Chore("sweep", timedelta(), sweep)], batch=5)
    running = asyncio.create_task(chores.run())
    async with asyncio.timeout(30):
        await swept_again.wait()
    running.cancel()
    await asyncio.wait([running])

    await wait_until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "chore purge"])


async def test_chores_run_again_after_an_error(hub: Hub, database_urls: DatabaseUrls) -> None:
    swept = asyncio.Event()

    async def sweep(_tx: Tx, _batch: int) -> int:
        swept.set()
        return 0

    owner = await asyncpg.connect(database_urls.direct)
    await owner.execute("alter table pabal.chores rename to chores_renamed")
    chores = ChoreRunner(hub.db, [Chore("sweep", HOUR, sweep)])
    with pytest.raises(PabalError):
        await chores.run_due()
    running = asyncio.create_task(chores.run())
    await asyncio.sleep(0)
    await owner.execute("alter table pabal.chores_renamed rename to chores")
    async with asyncio.timeout(10):
        await swept.wait()

    assert not running.done()
    running.cancel()
    owner.terminate()
