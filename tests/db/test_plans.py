"""Plan refresh: a plan for an empty table is replaced when the table has grown."""

import re
from collections.abc import AsyncGenerator

import pytest

from pabal.core.ids import new_id
from pabal.db.pool import ConnectOptions, Database, PlanRefresher
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls
from pabal.relay.webhook.receive import Q
from support.clusters import Connection
from support.wait import until

pytestmark = pytest.mark.anyio

INSERT_ACCOUNT = "insert into public.accounts (openclaw_user_id) values ('owner') returning id"
INSERT_MESSAGES = """
insert into public.inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id)
select pabal.uuid7(), $1, 'bot:mina', '{}', '{}', i::text from generate_series(1, 3000) i
"""
[FIND_NAME] = parse_queries("-- name: name\nselect name from pg_prepared_statements where statement = :statement")


@pytest.fixture
async def db(database_urls: DatabaseUrls) -> AsyncGenerator[Database]:
    async with Database(ConnectOptions(database_urls.main, pool_size=1)) as database:
        yield database


async def planned_index(db: Database) -> str:
    """The index in the connection's plan for one message. The query itself triggers the check of the table sizes."""
    async with db.autocommit() as tx:
        await tx.run(Q.save_first_response, answer=None, id=new_id(), account_id=new_id())
        name = await tx.value(FIND_NAME, statement=Q.save_first_response.sql)
        [explain] = parse_queries(f"-- name: how\nexplain execute {name}(null, '{new_id()}', '{new_id()}')")
        plan = "\n".join(await tx.column(explain))
    match = re.search(r"using (\w+)", plan)
    assert match, plan
    return match[1]


async def test_a_plan_for_an_empty_table_is_replaced_when_the_table_fills(db: Database, owner: Connection) -> None:
    assert await planned_index(db) == "idx_messages_account_status"

    await owner.execute(INSERT_MESSAGES, await owner.fetchval(INSERT_ACCOUNT))

    async def uses_primary_key() -> bool:
        return await planned_index(db) == "inbound_messages_pkey"

    await until(uses_primary_key)


def test_plans_are_outgrown_by_a_growth_of_four_also_after_a_table_was_emptied() -> None:
    plans = PlanRefresher()

    outgrown = [plans.update_row_counts({1: rows, 2: 7}) for rows in (0, 199, 200, 799, 800, 0, 199, 200)]

    assert outgrown == [False, False, True, False, True, False, False, True]
