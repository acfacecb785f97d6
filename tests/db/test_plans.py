"""Cached plans are replaced when a table has grown."""

import re
from collections.abc import AsyncGenerator

import pytest

from pabal.core.ids import new_id
from pabal.db.plans import PlanRefresher
from pabal.db.pool import ConnectOptions, Database
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls
from pabal.relay.webhook.receive import Q
from support.clusters import Connection
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ACCOUNT = "insert into public.accounts (openclaw_user_id) values ('owner') returning id"
FILL = """
insert into public.inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id)
select pabal.uuid7(), $1, 'bot:mina', '{}', '{}', i::text from generate_series(1, 3000) i
"""
[NAME] = parse_queries("-- name: name\nselect name from pg_prepared_statements where statement = :statement")


@pytest.fixture
async def db(database_urls: DatabaseUrls) -> AsyncGenerator[Database]:
    async with Database(ConnectOptions(database_urls.main, pool_size=1)) as database:
        yield database


async def index_in_plan(db: Database) -> str:
    """The index that the connection's cached plan uses to find one message."""
    async with db.autocommit() as tx:
        await tx.run(Q.save_first_response, answer=None, id=new_id(), account_id=new_id())
        name = await tx.value(NAME, statement=Q.save_first_response.sql)
        [explain] = parse_queries(f"-- name: explain\nexplain execute {name}(null, '{new_id()}', '{new_id()}')")
        plan = "\n".join(await tx.column(explain))
    index = re.search(r"using (\w+)", plan)
    assert index, plan
    return index[1]


async def test_a_plan_created_on_an_empty_table_is_replaced_when_it_fills(db: Database, owner: Connection) -> None:
    assert await index_in_plan(db) == "idx_messages_account_status"

    await owner.execute(FILL, await owner.fetchval(ACCOUNT))

    async def uses_primary_key() -> bool:
        return await index_in_plan(db) == "inbound_messages_pkey"

    await wait_until(uses_primary_key)


def test_plans_are_replaced_when_a_table_grows_fourfold_also_after_it_was_emptied() -> None:
    refresher = PlanRefresher()

    replaced = [refresher.update_row_counts({1: rows, 2: 7}) for rows in (0, 199, 200, 799, 800, 0, 199, 200)]

    assert replaced == [False, False, True, False, True, False, False, True]
