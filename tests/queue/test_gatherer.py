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
select count(*) from public.services where name like 'gathered%'
""")


class Written:
    """Counts statements, so that a test can see the gathering."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    async def __call__(self, tx: Tx, names: Sequence[str]) -> Sequence[str | Exception]:
        self.groups.append(len(names))
        await tx.run(PUT, names=[*names])
        return [name.upper() for name in names]


async def count(hub: Hub) -> int:
    async with hub.autocommit() as tx:
        return await tx.value(COUNT)


async def test_a_lone_put_is_written_at_once(hub: Hub) -> None:
    written = Written()
    gatherer = Batcher(hub.db, written)

    assert await gatherer.put("gathered") == "GATHERED"
    assert written.groups == [1]


async def test_one_put_after_the_other_never_waits_for_a_third(hub: Hub) -> None:
    """A caller that was just answered puts again before its writer has quite gone."""
    gatherer = Batcher(hub.db, Written())

    async with asyncio.timeout(10):
        for number in range(20):
            await gatherer.put(f"gathered_{number}")

    assert await count(hub) == 20


async def test_many_puts_become_few_statements_and_each_gets_its_own_answer(hub: Hub) -> None:
    written = Written()
    gatherer = Batcher(hub.db, written)
    names = [f"gathered_{number}" for number in range(300)]

    answers = await asyncio.gather(*map(gatherer.put, names))

    assert answers == [name.upper() for name in names]
    assert await count(hub) == 300
    assert len(written.groups) <= 3


async def test_one_bad_row_fails_alone(hub: Hub) -> None:
    gatherer = Batcher(hub.db, Written())
    names = [f"gathered_{number}" for number in range(40)]
    names[17] = "Not A Name"

    answers: list[Any] = await asyncio.gather(*map(gatherer.put, names), return_exceptions=True)

    assert [type(answer) for answer in answers].count(CheckViolation) == 1
    assert isinstance(answers[17], CheckViolation)
    assert await count(hub) == 39


async def test_a_refusal_reaches_its_own_caller_only(hub: Hub) -> None:
    async def put(_tx: Tx, drafts: Sequence[int]) -> Sequence[int | Exception]:
        return [ValueError(draft) if draft == 3 else draft for draft in drafts]

    gatherer = Batcher(hub.db, put)
    answers = await asyncio.gather(*map(gatherer.put, range(5)), return_exceptions=True)

    assert answers[:3] + answers[4:] == [0, 1, 2, 4]
    assert isinstance(answers[3], ValueError)


async def test_when_the_database_is_away_every_caller_hears_of_it(hub: Hub) -> None:
    gatherer = Batcher(hub.db, Written())
    await hub.db.close()

    answers = await asyncio.gather(*map(gatherer.put, ["a", "b"]), return_exceptions=True)

    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]


async def test_a_caller_that_goes_away_takes_nothing_with_it(hub: Hub) -> None:
    gatherer = Batcher(hub.db, Written())
    leaving = asyncio.create_task(gatherer.put("gathered_anyway"))
    await asyncio.sleep(0)
    leaving.cancel()
    await gatherer.close()

    assert await count(hub) == 1


async def test_a_draft_that_our_own_code_chokes_on_fails_alone_too(hub: Hub) -> None:
    async def put(_tx: Tx, drafts: Sequence[Any]) -> Sequence[Any]:
        return [draft + 1 for draft in drafts]

    gatherer: Batcher[Any, Any] = Batcher(hub.db, put)
    answers: list[Any] = await asyncio.gather(*map(gatherer.put, [1, "two", 3]), return_exceptions=True)

    assert [answers[0], answers[2]] == [2, 4]
    assert isinstance(answers[1], TypeError)


async def test_a_put_that_answers_too_few_leaves_nobody_waiting(hub: Hub) -> None:
    async def put(_tx: Tx, drafts: Sequence[int]) -> Sequence[int | Exception]:
        return drafts[1:]

    gatherer = Batcher(hub.db, put)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*map(gatherer.put, range(3)), return_exceptions=True)

    assert [type(answer) for answer in answers] == [ValueError] * 3
