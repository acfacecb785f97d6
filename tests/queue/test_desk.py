"""The desk, on the relay's lane: many accounts wait, one statement serves them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from lane_under_test import MINUTE, Relay, Travel
from pabal.db.doorbell import Doorbell
from pabal.db.tx import Tx
from pabal.queue.desk import Desk
from pabal.queue.outcome import DONE
from pabal.relay.lane import LANE, HeldMessage, Waiting
from pabal.wiring import Hub, Roads
from patience import until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=20)
NOW = timedelta()


class Counting:
    """Claims for the desk and counts its looks."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, tx: Tx, places: Mapping[UUID, int]) -> Mapping[UUID, list[HeldMessage]]:
        found: defaultdict[UUID, list[HeldMessage]] = defaultdict(list)
        wanted = {Waiting(account, "desk", MINUTE): limit for account, limit in places.items()}
        for who, messages in (await LANE.claim_for(tx, wanted)).items():
            found[who.account] += messages
        self.looks.append(len(places))
        await self.gate.wait()
        return found


@pytest.fixture
async def relay(hub: Hub, roads: Roads, travel: Travel) -> AsyncGenerator[Relay]:
    assert roads.direct
    owner = await asyncpg.connect(roads.direct)
    under_test = Relay(hub, owner, travel)
    await under_test.prepare()
    yield under_test
    owner.terminate()


@pytest.fixture
def looks() -> Counting:
    return Counting()


@pytest.fixture
def desk(hub: Hub, looks: Counting) -> Desk[UUID, HeldMessage]:
    return Desk(hub.db, hub.doorbell, Relay.lane.bell, looks, Relay.lane.release, floor=timedelta(hours=1))


async def accounts(relay: Relay, count: int) -> list[UUID]:
    rows = await relay.owner.fetch(
        "insert into public.accounts (openclaw_user_id) select 'many-' || i from generate_series(1, $1) i returning id",
        count,
    )
    return [row["id"] for row in rows]


async def waiting(desk: Desk[Any, Any], count: int) -> None:
    await until(lambda: sum(map(len, desk._waiting.values())) == count)


async def test_what_is_due_is_given_at_once_and_without_waiting_nothing_is(
    relay: Relay, desk: Desk[UUID, HeldMessage]
) -> None:
    account = relay.whom["account"]
    assert await desk.take(account, 5, NOW) == []
    ids = await relay.put(3)

    assert [message.id for message in await desk.take(account, 2, NOW)] == ids[:2]
    assert [message.id for message in await desk.take(account, 2, LONG)] == ids[2:]


async def test_one_look_serves_everybody_who_waits_and_none_holds_a_connection(
    relay: Relay, desk: Desk[UUID, HeldMessage], looks: Counting, hub: Hub
) -> None:
    many = await accounts(relay, 500)
    await until(lambda: hub.doorbell.listening)  # which wakes everybody once
    callers = [asyncio.create_task(desk.take(account, 10, LONG)) for account in many]
    await until(lambda: looks.looks.count(1) >= 500)  # each has looked for itself
    await waiting(desk, 500)
    await until(lambda: hub.db.busy() == 0)
    looks.looks.clear()

    [first] = await relay.put(1, account=many[7])
    [second] = await relay.put(1, account=many[400])
    hub.doorbell.ring([Relay.lane.bell])

    assert [message.id for message in await callers[7]] == [first]
    assert [message.id for message in await callers[400]] == [second]
    assert len(looks.looks) <= 2
    assert max(looks.looks) >= 498
    await desk.close()
    assert await asyncio.gather(*callers[8:400]) == [[]] * 392


async def test_two_who_wait_for_one_account_share_and_neither_gets_the_others(
    relay: Relay, desk: Desk[UUID, HeldMessage], hub: Hub
) -> None:
    account = relay.whom["account"]
    first, second = (asyncio.create_task(desk.take(account, 2, LONG)) for _ in range(2))
    await waiting(desk, 2)
    await until(lambda: hub.db.busy() == 0)

    ids = await relay.put(4)
    hub.doorbell.ring([Relay.lane.bell])
    got = [message.id for caller in (first, second) for message in await caller]

    assert sorted(got) == sorted(ids)


async def test_what_was_claimed_for_somebody_who_left_is_free_again(
    relay: Relay, desk: Desk[UUID, HeldMessage], looks: Counting
) -> None:
    account = relay.whom["account"]
    looks.gate.clear()
    await relay.put(2)
    leaving = asyncio.create_task(desk.take(account, 2, LONG))
    await until(lambda: len(looks.looks) >= 1)  # claimed, but not yet told
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    looks.gate.set()

    async def free() -> bool:
        return await relay.states() == {"QUEUED": 2}

    await until(free)


async def test_after_its_time_a_caller_goes_with_nothing_and_the_clerk_goes_home(
    relay: Relay, desk: Desk[UUID, HeldMessage]
) -> None:
    assert await desk.take(relay.whom["account"], 1, timedelta(milliseconds=50)) == []

    assert desk._waiting == {}
    await until(lambda: desk._clerk is not None and desk._clerk.done())


async def test_without_a_bell_the_floor_is_enough(relay: Relay, hub: Hub, looks: Counting) -> None:
    deaf = Doorbell(hub.db, None)
    desk: Desk[UUID, HeldMessage] = Desk(
        hub.db, deaf, Relay.lane.bell, looks, Relay.lane.release, floor=timedelta(milliseconds=50)
    )
    caller = asyncio.create_task(desk.take(relay.whom["account"], 1, LONG))
    await waiting(desk, 1)
    await until(lambda: len(looks.looks) >= 1)

    [put] = await relay.put()
    [message] = await caller

    assert message.id == put
    assert await relay.settle(message, DONE)
