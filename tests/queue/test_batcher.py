import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pabal.core.errors import Unavailable
from pabal.db.errors import CheckViolation
from pabal.db.queries import parse_queries
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.queue.batcher import Batcher

pytestmark = pytest.mark.anyio

[PUT, COUNT] = parse_queries("""
-- name: put
insert into public.services (name) select unnest(:names::text[])
-- name: count
select count(*) from public.services where name like 'batched%'
""")


class CountingWriter:
    """Records the size of every batch."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    async def __call__(self, tx: Tx, names: Sequence[str]) -> Sequence[str | Exception]:
        self.batch_sizes.append(len(names))
        await tx.run(PUT, names=[*names])
        return [name.upper() for name in names]


async def count(hub: Hub) -> int:
    async with hub.autocommit() as tx:
        return await tx.value(COUNT)


async def test_a_lone_put_is_written_at_once(hub: Hub) -> None:
    writer = CountingWriter()
    batcher = Batcher(hub.db, writer)

    assert await batcher.put("batched") == "BATCHED"
    assert writer.batch_sizes == [1]


async def test_sequential_puts_do_not_wait_for_further_puts(hub: Hub) -> None:
    """A caller puts again before the write task that returned its result has ended."""
    batcher = Batcher(hub.db, CountingWriter())

    async with asyncio.timeout(10):
        for number in range(20):
            await batcher.put(f"batched_{number}")

    assert await count(hub) == 20


async def test_many_puts_become_few_statements_and_each_gets_its_own_result(hub: Hub) -> None:
    writer = CountingWriter()
    batcher = Batcher(hub.db, writer)
    names = [f"batched_{number}" for number in range(300)]

    results = await asyncio.gather(*map(batcher.put, names))

    assert results == [name.upper() for name in names]
    assert await count(hub) == 300
    assert len(writer.batch_sizes) <= 3


async def test_one_invalid_row_fails_alone(hub: Hub) -> None:
    batcher = Batcher(hub.db, CountingWriter())
    names = [f"batched_{number}" for number in range(40)]
    names[17] = "Not A Name"

    results: list[Any] = await asyncio.gather(*map(batcher.put, names), return_exceptions=True)

    assert [type(result) for result in results].count(CheckViolation) == 1
    assert isinstance(results[17], CheckViolation)
    assert await count(hub) == 39


async def test_an_error_of_one_item_reaches_its_own_caller_only(hub: Hub) -> None:
    async def put(_tx: Tx, numbers: Sequence[int]) -> Sequence[int | Exception]:
        return [ValueError(number) if number == 3 else number for number in numbers]

    batcher = Batcher(hub.db, put)
    results = await asyncio.gather(*map(batcher.put, range(5)), return_exceptions=True)

    assert results[:3] + results[4:] == [0, 1, 2, 4]
    assert isinstance(results[3], ValueError)


async def test_every_caller_gets_an_error_when_the_database_is_unavailable(hub: Hub) -> None:
    batcher = Batcher(hub.db, CountingWriter())
    await hub.db.close()

    results = await asyncio.gather(*map(batcher.put, ["a", "b"]), return_exceptions=True)

    assert [type(result) for result in results] == [Unavailable, Unavailable]


async def test_the_item_of_a_cancelled_caller_is_written(hub: Hub) -> None:
    batcher = Batcher(hub.db, CountingWriter())
    caller = asyncio.create_task(batcher.put("batched_after_cancel"))
    await asyncio.sleep(0)
    caller.cancel()
    await batcher.close()

    assert await count(hub) == 1


async def test_an_item_that_raises_in_the_writer_fails_alone(hub: Hub) -> None:
    async def put(_tx: Tx, numbers: Sequence[Any]) -> Sequence[Any]:
        return [number + 1 for number in numbers]

    batcher: Batcher[Any, Any] = Batcher(hub.db, put)
    results: list[Any] = await asyncio.gather(*map(batcher.put, [1, "two", 3]), return_exceptions=True)

    assert [results[0], results[2]] == [2, 4]
    assert isinstance(results[1], TypeError)


async def test_a_writer_that_returns_too_few_results_leaves_no_caller_waiting(hub: Hub) -> None:
    async def put(_tx: Tx, numbers: Sequence[int]) -> Sequence[int | Exception]:
        return numbers[1:]

    batcher = Batcher(hub.db, put)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*map(batcher.put, range(3)), return_exceptions=True)

    assert [type(result) for result in results] == [ValueError] * 3
