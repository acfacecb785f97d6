"""What the relay shows of itself, and what it clears away."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from chat import Bot
from pabal.core.ids import new_id
from pabal.queue.census import Census, Count
from pabal.relay.lane import LANE
from pabal.relay.poll import ack
from pabal.upkeep import chores
from pabal.wiring import Hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE = timedelta(minutes=1)


async def counted(hub: Hub) -> Count:
    """The present count, and none from a moment ago."""
    return await Census(hub.db).take()


async def relay(hub: Hub) -> tuple[int, int, int]:
    """What waits, for how many minutes the oldest has, and what is in flight."""
    count = (await counted(hub)).lane("relay")
    return count.waiting, count.oldest_due // MINUTE, count.in_flight


async def test_what_waits_is_what_nobody_holds_and_its_age_is_since_it_came(bot: Bot, hub: Hub, travel: Travel) -> None:
    assert await relay(hub) == (0, 0, 0)
    first = await bot.hears("first")
    await travel(2 * MINUTE)
    await bot.hears("second")
    assert await relay(hub) == (2, 2, 0)

    async with hub.autocommit() as tx:
        await LANE.claim(tx, 1, MINUTE, "poll:tester", account=bot.owner.id)
    assert await relay(hub) == (1, 0, 1)
    await travel(MINUTE)
    assert await relay(hub) == (2, 3, 0), "its lease has ended: it waits again"
    async with hub.transaction() as tx:
        await ack(tx, bot.owner.id, [first])
    assert await relay(hub) == (1, 1, 0)
    await travel(15 * MINUTE)
    async with hub.transaction() as tx:
        await LANE.expire(tx, 10)
    assert await relay(hub) == (0, 0, 0)


async def test_an_account_that_is_disabled_is_not_active(bot: Bot, hub: Hub) -> None:
    await bot.chat.owner()
    assert (await counted(hub)).active_accounts == 2

    await bot.chat.db.execute("update accounts set disabled_at = pabal.now() where id = $1", bot.owner.id)

    assert (await counted(hub)).active_accounts == 1


async def test_streams_whose_process_went_without_a_word_are_forgotten(bot: Bot, hub: Hub, travel: Travel) -> None:
    alive, gone = new_id(), new_id()
    for stream, life in ((alive, 5 * MINUTE), (gone, MINUTE)):
        await bot.chat.db.execute(
            "insert into relay_streams (id, account_id, token_id, alive_until) values ($1, $2, $2, pabal.now() + $3)",
            stream,
            bot.owner.id,
            life,
        )
    [chore] = [each for each in chores(hub.settings, hub.keys, hub.relay.figures) if each.name == "sweep streams"]

    await travel(3 * MINUTE)
    async with hub.transaction() as tx:
        assert await chore.do(tx, 100) == 1

    assert [row["id"] for row in await bot.chat.db.fetch("select id from relay_streams")] == [alive]
