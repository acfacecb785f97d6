"""The desk, on the relay's lane: many accounts wait, one statement serves them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from pabal.db.doorbell import Doorbell
from pabal.db.tx import Tx
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.long_poll import LongPoll
from pabal.queue.outcome import DONE
from pabal.relay.delivery.lane import LANE, ClaimedMessage, MessagePollRequest
from support.lane_under_test import MINUTE, Relay, Travel
from support.wait import until

pytestmark = pytest.mark.anyio

LONG = timedelta(seconds=20)
NOW = timedelta()


class Counting:
    """Claims for the desk and counts its looks."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, tx: Tx, places: Mapping[UUID, int]) -> Mapping[UUID, list[ClaimedMessage]]:
        found: defaultdict[UUID, list[ClaimedMessage]] = defaultdict(list)
        wanted = {MessagePollRequest(account, "desk", MINUTE): limit for account, limit in places.items()}
        for who, messages in (await LANE.claim_for_polls(tx, wanted)).items():
            found[who.account_id] += messages
        self.looks.append(len(places))
        await self.gate.wait()
        return found


@pytest.fixture
async def relay(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Relay]:
    assert database_urls.direct
    owner = await asyncpg.connect(database_urls.direct)
    under_test = Relay(hub, owner, travel)
    await under_test.prepare()
    yield under_test
    owner.terminate()


@pytest.fixture
def looks() -> Counting:
    return Counting()


@pytest.fixture
def desk(hub: Hub, looks: Counting) -> LongPoll[UUID, ClaimedMessage]:
    return LongPoll(
        hub.db, hub.doorbell, Relay.lane.channel, looks, Relay.lane.release, poll_interval=timedelta(hours=1)
    )


async def accounts(relay: Relay, count: int) -> list[UUID]:
    rows = await relay.owner.fetch(
        "insert into public.accounts (openclaw_user_id) select 'many-' || i from generate_series(1, $1) i returning id",
        count,
    )
    return [row["id"] for row in rows]


async def waiting(desk: LongPoll[Any, Any], count: int) -> None:
    await until(lambda: sum(map(len, desk._waiters.values())) == count)


async def test_what_is_due_is_given_at_once_and_without_waiting_nothing_is(
    relay: Relay, desk: LongPoll[UUID, ClaimedMessage]
) -> None:
    account = relay.whom["account"]
    assert await desk.poll(account, 5, NOW) == []
    ids = await relay.put(3)

    assert [message.id for message in await desk.poll(account, 2, NOW)] == ids[:2]
    assert [message.id for message in await desk.poll(account, 2, LONG)] == ids[2:]


async def test_one_look_serves_everybody_who_waits_and_none_holds_a_connection(
    relay: Relay, desk: LongPoll[UUID, ClaimedMessage], looks: Counting, hub: Hub
) -> None:
    many = await accounts(relay, 500)
    await until(lambda: hub.doorbell.listening)  # which wakes everybody once
    callers = [asyncio.create_task(desk.poll(account, 10, LONG)) for account in many]
    await until(lambda: looks.looks.count(1) >= 500)  # each has looked for itself
    await waiting(desk, 500)
    await until(lambda: hub.db.connections_in_use() == 0)
    looks.looks.clear()

    [first] = await relay.put(1, account=many[7])
    [second] = await relay.put(1, account=many[400])
    hub.doorbell.notify([Relay.lane.channel])

    assert [message.id for message in await callers[7]] == [first]
    assert [message.id for message in await callers[400]] == [second]
    assert len(looks.looks) <= 2
    assert max(looks.looks) >= 498
    await desk.close()
    assert await asyncio.gather(*callers[8:400]) == [[]] * 392


async def test_two_who_wait_for_one_account_share_and_neither_gets_the_others(
    relay: Relay, desk: LongPoll[UUID, ClaimedMessage], hub: Hub
) -> None:
    account = relay.whom["account"]
    first, second = (asyncio.create_task(desk.poll(account, 2, LONG)) for _ in range(2))
    await waiting(desk, 2)
    await until(lambda: hub.db.connections_in_use() == 0)

    ids = await relay.put(4)
    hub.doorbell.notify([Relay.lane.channel])
    got = [message.id for caller in (first, second) for message in await caller]

    assert sorted(got) == sorted(ids)


async def test_what_was_claimed_for_somebody_who_left_is_free_again(
    relay: Relay, desk: LongPoll[UUID, ClaimedMessage], looks: Counting
) -> None:
    account = relay.whom["account"]
    looks.gate.clear()
    await relay.put(2)
    leaving = asyncio.create_task(desk.poll(account, 2, LONG))
    await until(lambda: len(looks.looks) >= 1)  # claimed, but not yet told
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    looks.gate.set()

    async def free() -> bool:
        return await relay.states() == {"QUEUED": 2}

    await until(free)


async def test_after_its_time_a_caller_goes_with_nothing_and_the_clerk_goes_home(
    relay: Relay, desk: LongPoll[UUID, ClaimedMessage]
) -> None:
    assert await desk.poll(relay.whom["account"], 1, timedelta(milliseconds=50)) == []

    assert desk._waiters == {}
    await until(lambda: desk._serve_task is not None and desk._serve_task.done())


async def test_without_a_bell_the_floor_is_enough(relay: Relay, hub: Hub, looks: Counting) -> None:
    deaf = Doorbell(hub.db, None)
    desk: LongPoll[UUID, ClaimedMessage] = LongPoll(
        hub.db, deaf, Relay.lane.channel, looks, Relay.lane.release, poll_interval=timedelta(milliseconds=50)
    )
    caller = asyncio.create_task(desk.poll(relay.whom["account"], 1, LONG))
    await waiting(desk, 1)
    await until(lambda: len(looks.looks) >= 1)

    [put] = await relay.put()
    [message] = await caller

    assert message.id == put
    assert await relay.settle(message, DONE)
