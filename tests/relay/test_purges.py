"""The relay's stats, and what its chores purge."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal import limits
from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.limits import RateLimit
from pabal.maintenance import build_chores
from pabal.relay.accounts import rotate_relay_token
from pabal.relay.conversations import block_conversation
from pabal.relay.delivery.lane import LANE
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.pairing.pair import MAX_WRONG_CODES, WRONG_CODE_LOCKOUT
from pabal.stats import HubStats, StatsReader
from relay.people import (
    TESTER,
    add_account,
    create_code,
    insert_message,
    key_of_user,
    new_session,
    pair_user,
    send_command,
)
from support.clusters import Connection, open_connection
from support.relay_rows import Bot

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
CONCURRENT_USES = {
    "purge wrong codes": (
        "pairing_failures",
        "conversation_key, since",
        f"('{key_of_user('min')}', pabal.now() - interval '1 hour')",
        "since = pabal.now()",
    ),
    "purge streams": (
        "relay_streams",
        "id, token_id, alive_until",
        "(gen_random_uuid(), gen_random_uuid(), pabal.now() - interval '2 minutes')",
        "alive_until = pabal.now() + interval '1 minute'",
    ),
}
"""What a chore would purge: its table, a row, and a concurrent change of it."""


async def current_stats(hub: Hub) -> HubStats:
    """The current stats, not cached ones."""
    return await StatsReader(hub.db).read()


async def relay_stats(hub: Hub) -> tuple[int, int, int]:
    """Backlog, age of the oldest message in minutes, and messages in flight."""
    count = (await current_stats(hub)).lane("relay")
    return count.waiting, count.oldest_due // MINUTE, count.in_flight


async def test_the_backlog_is_what_is_not_held_and_its_age_counts_from_arrival(
    bot: Bot, hub: Hub, travel: Travel
) -> None:
    assert await relay_stats(hub) == (0, 0, 0)
    first = await bot.insert_message("first")
    await travel(2 * MINUTE)
    await bot.insert_message("second")
    assert await relay_stats(hub) == (2, 2, 0)

    async with hub.autocommit() as tx:
        await LANE.claim(tx, 1, MINUTE, "poll:tester", bot.owner.id)
    assert await relay_stats(hub) == (1, 0, 1)
    await travel(MINUTE)
    assert await relay_stats(hub) == (2, 3, 0), "its lease has ended, so it is due again"
    async with hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [first])
    assert await relay_stats(hub) == (1, 1, 0)
    await travel(15 * MINUTE)
    async with hub.transaction() as tx:
        await LANE.expire(tx, 10)
    assert await relay_stats(hub) == (0, 0, 0)


async def test_a_disabled_account_is_not_active(bot: Bot, hub: Hub) -> None:
    await bot.chat.owner()
    assert (await current_stats(hub)).active_accounts == 2

    await bot.chat.db.execute("update accounts set disabled_at = pabal.now() where id = $1", bot.owner.id)

    assert (await current_stats(hub)).active_accounts == 1


async def test_streams_of_dead_processes_are_purged(bot: Bot, hub: Hub, travel: Travel) -> None:
    alive, dead = new_id(), new_id()
    for stream, lifetime in ((alive, 5 * MINUTE), (dead, MINUTE)):
        await bot.chat.db.execute(
            "insert into relay_streams (id, account_id, token_id, alive_until) values ($1, $2, $2, pabal.now() + $3)",
            stream,
            bot.owner.id,
            lifetime,
        )
    [chore] = [
        candidate for candidate in build_chores(hub.settings, hub.relay.metrics) if candidate.name == "purge streams"
    ]

    await travel(3 * MINUTE)
    async with hub.transaction() as tx:
        assert await chore.run(tx, 100) == 1

    assert [row["id"] for row in await bot.chat.db.fetch("select id from relay_streams")] == [alive]


class TestPurges:
    """Accounts that sessions created, and unpaired conversations, are purged when unused."""

    @staticmethod
    async def run_chore(hub: Hub, name: str) -> int:
        [chore] = [candidate for candidate in build_chores(hub.settings, hub.relay.metrics) if candidate.name == name]
        async with hub.transaction() as tx:
            return await chore.run(tx, 100)

    @staticmethod
    async def remaining(owner: Connection) -> list[str]:
        return [
            row["openclaw_user_id"] for row in await owner.fetch("select openclaw_user_id from accounts order by 1")
        ]

    async def test_a_sessions_account_is_purged_a_month_after_its_last_use(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        await add_account(hub)
        session = await new_session(hub)
        await send_command(hub, "min", f"/pair {session.code}")
        await travel(40 * DAY)
        assert await self.run_chore(hub, "purge accounts") == 0, "a user is connected"
        await send_command(hub, "min", "/unpair")
        await travel(29 * DAY)
        assert await self.run_chore(hub, "purge accounts") == 0
        await travel(DAY)
        assert await self.run_chore(hub, "purge accounts") == 1
        assert await self.remaining(owner) == ["owner"]
        assert await owner.fetchval("select count(*) from relay_sessions") == 0
        assert await owner.fetchval("select actor from pabal.audit_log where action = 'account.deleted'") == "hub"

    @pytest.mark.parametrize("use", ["client", "stream", "message", "token", "code", "poll", "disabled"])
    async def test_a_sessions_account_in_use_is_kept(
        self, hub: Hub, owner: Connection, travel: Travel, use: str
    ) -> None:
        session = await new_session(hub)
        await send_command(hub, "min", f"/pair {session.code}")
        account = await owner.fetchval("select id from accounts")
        await send_command(hub, "min", "/unpair")
        await travel(31 * DAY)
        match use:
            case "client":
                await owner.execute("update relay_sessions set last_seen_at = pabal.now()")
            case "stream":
                await owner.execute(
                    "insert into relay_streams (id, account_id, token_id, alive_until)"
                    " values (gen_random_uuid(), $1, $1, pabal.now() + interval '1 minute')",
                    account,
                )
            case "message":
                await insert_message(owner, account, "min")
            case "token":
                async with hub.transaction() as tx:
                    await rotate_relay_token(tx, account, TESTER)
            case "code":
                await create_code(hub, account)
            case "poll":
                async with hub.autocommit() as tx:
                    await limits.consume_rate_limit(tx, RateLimit("relay requests", 60, MINUTE), str(account))
            case _:
                await owner.execute("update accounts set disabled_at = pabal.now()")

        assert await self.run_chore(hub, "purge accounts") == 0
        assert len(await self.remaining(owner)) == 1

    async def test_an_account_that_was_never_approved_is_purged_after_an_hour(self, hub: Hub, travel: Travel) -> None:
        session = await new_session(hub)
        with_approval = hub.settings.model_copy(update={"pairing_approval": True})
        await send_command(hub, "min", f"/pair {session.code}", settings=with_approval)
        await travel(10 * DAY)
        assert await self.run_chore(hub, "purge accounts") == 0, "a user waits for approval"
        assert await self.run_chore(hub, "expire approvals") == 1
        assert await self.run_chore(hub, "purge accounts") == 0
        await travel(timedelta(hours=1))
        assert await self.run_chore(hub, "purge accounts") == 1

    @pytest.mark.parametrize("chore", CONCURRENT_USES)
    async def test_an_account_in_concurrent_use_is_kept(
        self, hub: Hub, owner: Connection, database_urls: DatabaseUrls, chore: str
    ) -> None:
        table, columns, row, change = CONCURRENT_USES[chore]
        await send_command(hub, "min", "/help")
        await owner.execute(f"insert into {table} ({columns}) values {row}")

        async with open_connection(database_urls.main) as other, other.transaction():
            await other.execute(f"update {table} set {change}")
            async with asyncio.timeout(15):
                assert await self.run_chore(hub, chore) == 0

        assert await owner.fetchval(f"select count(*) from {table}") == 1

    async def test_a_conversation_is_kept_for_an_hour_after_it_was_unpaired(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        bot = await add_account(hub)
        for user in ("unpaired", "without account"):
            await send_command(hub, user, "/help")
            await pair_user(hub, user, bot.account)
        await travel(timedelta(days=1))
        await send_command(hub, "unpaired", "/unpair")
        await owner.execute(
            "update conversation_mappings set account_id = null where conversation_key = $1",
            key_of_user("without account"),
        )
        assert await owner.fetchval("select count(*) from conversation_mappings where state = 'UNPAIRED'") == 2

        await travel(timedelta(minutes=59))
        assert await self.run_chore(hub, "purge conversations") == 0
        await travel(2 * MINUTE)
        assert await self.run_chore(hub, "purge conversations") == 2

    async def test_an_unpaired_conversation_is_purged_after_an_hour(
        self, hub: Hub, owner: Connection, travel: Travel
    ) -> None:
        """Also if the user keeps writing; else made-up users could keep their rows."""
        bot = await add_account(hub)
        with_approval = hub.settings.model_copy(update={"pairing_approval": True})
        for user in ("unused", "writing", "paired", "blocked", "with messages", "pending", "locked out"):
            await send_command(hub, user, "/help")
        await pair_user(hub, "paired", bot.account)
        await send_command(hub, "pending", f"/pair {await create_code(hub, bot.account)}", settings=with_approval)
        async with hub.transaction() as tx:
            await block_conversation(tx, key_of_user("blocked"), TESTER)
        await insert_message(owner, bot.account, "with messages")
        await travel(timedelta(minutes=59))
        assert await self.run_chore(hub, "purge conversations") == 0
        for _ in range(MAX_WRONG_CODES):
            await send_command(hub, "locked out", "/pair ABCD-2345")
        await owner.execute(
            "update conversation_mappings set last_seen_at = pabal.now() where conversation_key = $1",
            key_of_user("writing"),
        )

        await travel(2 * MINUTE)

        assert await self.run_chore(hub, "purge conversations") == 2
        rows = await owner.fetch("select plusfriend_user_key as user_key from conversation_mappings order by 1")
        assert [row["user_key"] for row in rows] == ["blocked", "locked out", "paired", "pending", "with messages"]
        await travel(WRONG_CODE_LOCKOUT)
        assert await self.run_chore(hub, "purge conversations") == 1, "the lockout is over"
