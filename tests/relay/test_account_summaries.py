"""Account summaries: capped counts, exact deletion impact, failed callbacks by index."""

import asyncio
import json
from pathlib import Path

import pytest

from pabal.core.errors import NotFound
from pabal.core.ids import new_id
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.relay import accounts, messages
from pabal.relay.accounts import DeletionImpact, find_account_summary, list_account_summaries, measure_deletion_impact
from pabal.relay.messages import list_failed_callbacks
from relay.people import add_account, conversation_state_of, create_code, insert_message, pair_user
from support.clusters import Connection
from support.wait import COUNT_LOCK_WAITS, wait_until

pytestmark = pytest.mark.anyio

FILL_TABLES = """
insert into public.conversation_mappings
  (conversation_key, kakao_channel_id, plusfriend_user_key, account_id, state, paired_at)
select 'bot:' || n, 'bot', n, $1, 'PAIRED', pabal.now() from generate_series(1, $2::integer) n
"""
INSERT_REPLIES = """
with message as (
  insert into public.inbound_messages (account_id, conversation_key, kakao_payload, normalized, source_event_id)
  select $1, 'bot:user', '{}', '{}', n::text from generate_series(1, 20000) n returning id, seq
)
insert into public.relay_replies
  (message_id, account_id, conversation_key, spent_by, outcome, response, fence, spent_at, settled_at, answered_at)
select id, $1, 'bot:user', 'agent', case when seq % 100 = 0 then 'refused' else 'sent' end, '{}', gen_random_uuid(),
       pabal.now(), pabal.now() + make_interval(secs => seq), pabal.now()
from message
"""
MAX_PAGES = 60


async def test_counts_are_capped_lower_in_lists_than_for_one_account(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await owner.execute(FILL_TABLES, bot.account, accounts.MAX_COUNT_IN_LIST + 1)

    async with hub.autocommit() as tx:
        [listed] = await list_account_summaries(tx)
        summary = await find_account_summary(tx, bot.account)
        with pytest.raises(NotFound):
            await find_account_summary(tx, new_id())

    assert (listed.paired, summary.paired) == (accounts.MAX_COUNT_IN_LIST, accounts.MAX_COUNT_IN_LIST + 1)


async def test_concurrent_changes_wait_so_that_the_deletion_impact_stays_true(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await pair_user(hub, "mina", bot.account)
    await insert_message(owner, bot.account, "mina")
    code = await create_code(hub, bot.account)
    async with hub.transaction() as tx:
        impact = await measure_deletion_impact(tx, bot.account)
        pairing = asyncio.create_task(pair_user(hub, "jun", bot.account))
        await wait_until(lambda: is_blocked(owner))
        assert not pairing.done()
    await pairing

    assert impact == DeletionImpact(open_messages=1, codes=1, sessions=0, messages=1, conversations=1)
    assert code
    assert await conversation_state_of(owner, "jun") == ("PAIRED", bot.account)


async def is_blocked(owner: Connection) -> bool:
    return await owner.fetchval(COUNT_LOCK_WAITS) == 1


async def test_failed_callbacks_are_listed_by_their_index(hub: Hub, owner: Connection) -> None:
    bot = await add_account(hub)
    await owner.execute(INSERT_REPLIES, bot.account)
    await owner.execute("vacuum analyze public.relay_replies")
    async with hub.autocommit() as tx:
        first = await list_failed_callbacks(tx, limit=5)
        second = await list_failed_callbacks(tx, before=(first[-1].settled_at, first[-1].id), limit=5)
    [query] = [
        candidate
        for candidate in parse_queries(Path(messages.__file__).with_suffix(".sql").read_text(), "messages")
        if candidate.name == "list_failed_callbacks"
    ]

    arguments = query.bind({"before": None, "before_id": None, "limit": 50})
    plan = json.loads(await owner.fetchval(f"explain (analyze, buffers, format json) {query.sql}", *arguments))
    top = plan[0]["Plan"]

    times = [callback.settled_at for callback in (*first, *second)]
    assert times == sorted(times, reverse=True)
    assert len({*times}) == 10
    assert top["Actual Rows"] == 50
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < MAX_PAGES
