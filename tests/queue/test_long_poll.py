"""The long poll on the relay's lane: many accounts wait, one statement claims for all of them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from pabal.core.ids import new_id
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.tx import Tx
from pabal.hub import DatabaseUrls, Hub
from pabal.queue.long_poll import LongPoll
from pabal.queue.outcome import DONE
from pabal.relay.delivery.lane import LANE, ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.stream import RelayStream, StreamFrame
from support.lane_under_test import MINUTE, Relay, Travel
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LONG_TIMEOUT = timedelta(seconds=20)
NO_TIMEOUT = timedelta()


class CountingClaims:
    """Claims messages and records the number of accounts of every claim."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, tx: Tx, free_slots: Mapping[UUID, int]) -> Mapping[UUID, list[ClaimedMessage]]:
        rows_by_account: defaultdict[UUID, list[ClaimedMessage]] = defaultdict(list)
        requests = {MessagePollRequest(account, "tester", MINUTE): limit for account, limit in free_slots.items()}
        for request, messages in (await LANE.claim_for_polls(tx, requests)).items():
            rows_by_account[request.account_id] += messages
        self.sizes.append(len(free_slots))
        await self.gate.wait()
        return rows_by_account


@pytest.fixture
async def relay(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Relay]:
    assert database_urls.direct
    owner = await asyncpg.connect(database_urls.direct)
    lane = Relay(hub, owner, travel)
    await lane.prepare()
    yield lane
    owner.terminate()


@pytest.fixture
def claims() -> CountingClaims:
    return CountingClaims()


@pytest.fixture
def long_poll(hub: Hub, claims: CountingClaims) -> LongPoll[UUID, ClaimedMessage]:
    return LongPoll(
        hub.db, hub.doorbell, Relay.lane.channel, claims, Relay.lane.release, poll_interval=timedelta(hours=1)
    )


async def add_accounts(relay: Relay, count: int) -> list[UUID]:
    rows = await relay.owner.fetch(
        "insert into public.accounts (openclaw_user_id) select 'many-' || i from generate_series(1, $1) i returning id",
        count,
    )
    return [row["id"] for row in rows]


async def wait_for_waiters(long_poll: LongPoll[Any, Any], count: int) -> None:
    await wait_until(lambda: sum(map(len, long_poll._waiters.values())) == count)


async def test_due_rows_are_returned_at_once_and_a_poll_without_timeout_returns_none(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage]
) -> None:
    account = relay.claimer["account"]
    assert await long_poll.poll(account, 5, NO_TIMEOUT) == []
    ids = await relay.put(3)

    assert [message.id for message in await long_poll.poll(account, 2, NO_TIMEOUT)] == ids[:2]
    assert [message.id for message in await long_poll.poll(account, 2, LONG_TIMEOUT)] == ids[2:]


async def test_one_claim_serves_all_waiters_and_none_holds_a_connection(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage], claims: CountingClaims, hub: Hub
) -> None:
    accounts = await add_accounts(relay, 500)
    await wait_until(lambda: hub.doorbell.listening)  # which wakes all waiters once
    polls = [asyncio.create_task(long_poll.poll(account, 10, LONG_TIMEOUT)) for account in accounts]
    await wait_until(lambda: claims.sizes.count(1) >= 500)  # each poll has made its own first claim
    await wait_for_waiters(long_poll, 500)
    await wait_until(lambda: hub.db.connections_in_use() == 0)
    claims.sizes.clear()

    [first] = await relay.put(1, account=accounts[7])
    [second] = await relay.put(1, account=accounts[400])
    hub.doorbell.notify([Relay.lane.channel])

    assert [message.id for message in await polls[7]] == [first]
    assert [message.id for message in await polls[400]] == [second]
    assert len(claims.sizes) <= 2
    assert max(claims.sizes) >= 498
    await long_poll.close()
    assert await asyncio.gather(*polls[8:400]) == [[]] * 392


async def test_two_waiters_of_one_account_share_its_rows_without_duplicates(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage], hub: Hub
) -> None:
    account = relay.claimer["account"]
    first, second = (asyncio.create_task(long_poll.poll(account, 2, LONG_TIMEOUT)) for _ in range(2))
    await wait_for_waiters(long_poll, 2)
    await wait_until(lambda: hub.db.connections_in_use() == 0)

    ids = await relay.put(4)
    hub.doorbell.notify([Relay.lane.channel])
    delivered = [message.id for poll_task in (first, second) for message in await poll_task]

    assert sorted(delivered) == sorted(ids)


async def test_rows_claimed_for_a_cancelled_poll_are_released(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage], claims: CountingClaims
) -> None:
    account = relay.claimer["account"]
    claims.gate.clear()
    await relay.put(2)
    poll_task = asyncio.create_task(long_poll.poll(account, 2, LONG_TIMEOUT))
    await wait_until(lambda: len(claims.sizes) >= 1)  # claimed, but not yet returned
    poll_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll_task
    claims.gate.set()

    async def is_released() -> bool:
        return await relay.states() == {"QUEUED": 2}

    await wait_until(is_released)


async def test_a_poll_times_out_with_no_rows_and_the_idle_serve_task_ends(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage]
) -> None:
    assert await long_poll.poll(relay.claimer["account"], 1, timedelta(milliseconds=50)) == []

    assert long_poll._waiters == {}
    await wait_until(lambda: long_poll._serve_task is not None and long_poll._serve_task.done())


async def test_without_a_listener_polling_is_enough(relay: Relay, hub: Hub, claims: CountingClaims) -> None:
    doorbell = Doorbell(hub.db, None)
    long_poll: LongPoll[UUID, ClaimedMessage] = LongPoll(
        hub.db, doorbell, Relay.lane.channel, claims, Relay.lane.release, poll_interval=timedelta(milliseconds=50)
    )
    poll_task = asyncio.create_task(long_poll.poll(relay.claimer["account"], 1, LONG_TIMEOUT))
    await wait_for_waiters(long_poll, 1)
    await wait_until(lambda: len(claims.sizes) >= 1)

    [message_id] = await relay.put()
    [message] = await poll_task

    assert message.id == message_id
    assert await relay.settle(message, DONE)


async def test_a_stream_that_had_no_room_gets_its_messages_as_soon_as_it_has(
    relay: Relay, long_poll: LongPoll[UUID, ClaimedMessage], claims: CountingClaims, hub: Hub
) -> None:
    account, [other] = relay.claimer["account"], await add_accounts(relay, 1)
    await wait_until(lambda: hub.doorbell.listening)
    stream = RelayStream(new_id(), new_id(), None, account, None)
    stream.on_drained = lambda: long_poll.wake(account)
    stream.enqueue_frame(StreamFrame("unpaired", {}))
    frames = stream.frames(MINUTE)
    await anext(frames)  # the connection takes it later
    long_poll.subscribe(account, stream.waiter)
    waiting = asyncio.create_task(long_poll.poll(other, 1, LONG_TIMEOUT))
    await wait_until(lambda: len(claims.sizes) >= 1)
    [message_id] = await relay.put(1)
    [other_id] = await relay.put(1, account=other)
    hub.doorbell.notify([Relay.lane.channel])
    assert [message.id for message in await waiting] == [other_id]

    async with asyncio.timeout(5):
        frame = await anext(frames)
    assert frame
    assert frame.message
    assert frame.message.id == message_id
    long_poll.unsubscribe(account, stream.waiter, [])
