"""Plans: what was planned for an empty table is not what a full one is read by."""

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

OWNED = "insert into public.accounts (openclaw_user_id) values ('owner') returning id"
FILL = """
insert into public.inbound_messages (id, account_id, conversation_key, kakao_payload, normalized, source_event_id)
select pabal.uuid7(), $1, 'bot:mina', '{}', '{}', i::text from generate_series(1, 3000) i
"""
[NAME] = parse_queries("-- name: name\nselect name from pg_prepared_statements where statement = :statement")


@pytest.fixture
async def db(database_urls: DatabaseUrls) -> AsyncGenerator[Database]:
    async with Database(ConnectOptions(database_urls.main, pool_size=1)) as opened:
        yield opened


async def index_of(db: Database) -> str:
    """What one message is found by, as its connection has planned it; asking is work like any other."""
    async with db.autocommit() as tx:
        await tx.run(Q.save_first_response, answer=None, id=new_id(), account_id=new_id())
        name = await tx.value(NAME, statement=Q.save_first_response.sql)
        [how] = parse_queries(f"-- name: how\nexplain execute {name}(null, '{new_id()}', '{new_id()}')")
        told = "\n".join(await tx.column(how))
    found = re.search(r"using (\w+)", told)
    assert found, told
    return found[1]


async def test_what_was_planned_while_a_table_was_empty_is_planned_anew_when_it_fills(
    db: Database, owner: Connection
) -> None:
    assert await index_of(db) == "idx_messages_account_status"

    await owner.execute(FILL, await owner.fetchval(OWNED))

    async def is_by_id() -> bool:
        return await index_of(db) == "inbound_messages_pkey"

    await until(is_by_id)


def test_plans_are_outgrown_by_four_times_as_much_also_once_a_table_was_emptied() -> None:
    plans = PlanRefresher()

    seen = [plans.update_row_counts({1: rows, 2: 7}) for rows in (0, 199, 200, 799, 800, 0, 199, 200)]

    assert seen == [False, False, True, False, True, False, False, True]
