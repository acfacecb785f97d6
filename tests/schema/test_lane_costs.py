"""Cost of the hot statements of relay and notifications: pages read and indexes written."""

import json
from uuid import uuid4

import pytest

from support.clusters import Connection

pytestmark = pytest.mark.anyio

MAX_PAGES = 40
"""One or two index descents and ten rows; all rows together are on thousands of pages."""


async def pages(db: Connection, query: str, *arguments: object) -> int:
    [plan] = json.loads(await db.fetchval(f"explain (analyze, buffers, format json) {query}", *arguments))
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def hot_updates(db: Connection, table: str, statement: str, *arguments: object) -> tuple[int, int]:
    """Rows that a statement updates, and how many of the updates are HOT."""
    count_query = """
        select pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid)
        from pg_class where oid = $1::text::regclass
    """
    async with db.transaction():
        before = await db.fetchrow(count_query, table)
        await db.execute(statement, *arguments)
        after = await db.fetchrow(count_query, table)
    assert before is not None
    assert after is not None
    return after[0] - before[0], after[1] - before[1]


async def insert_messages(db: Connection) -> object:
    """An account with two thousand due messages behind ten thousand finished and two thousand held ones."""
    owner = await db.fetchval("insert into accounts (openclaw_user_id) values ('owner') returning id")
    fill = """
        insert into inbound_messages (account_id, conversation_key, kakao_payload, normalized, status, source_event_id)
        select $1, 'bot:user', '{}', '{}', $2, $2 || number from generate_series(1, $3) as number
    """
    for status, number in (("ACKED", 10_000), ("DELIVERED", 2_000), ("QUEUED", 2_000)):
        await db.execute(fill, owner, status, number)
    await db.execute("vacuum analyze inbound_messages")
    return owner


async def test_a_claim_reads_due_messages_only(db: Connection) -> None:
    owner = await insert_messages(db)
    due_query = """
        select id from inbound_messages where account_id = $1 and status = 'QUEUED'
        order by seq limit 10 for update skip locked
    """
    assert len(await db.fetch(due_query, owner)) == 10
    assert await pages(db, due_query, owner) < MAX_PAGES


async def test_expiry_and_purge_read_only_ended_rows(db: Connection) -> None:
    await insert_messages(db)
    expired_query = "select id from inbound_messages where ended_at is null and expires_at <= pabal.now() limit 100"
    purge_query = "select id from inbound_messages where ended_at <= pabal.now() - interval '7 days' limit 100"
    assert await pages(db, expired_query) < MAX_PAGES
    assert await pages(db, purge_query) < MAX_PAGES


async def test_extending_leases_writes_no_index(db: Connection) -> None:
    await insert_messages(db)
    extend = (
        "update inbound_messages set leased_until = pabal.now() + interval '30 seconds'"
        " where id = any(array(select id from inbound_messages where status = 'DELIVERED' limit 5))"
    )
    assert await hot_updates(db, "inbound_messages", extend) == (5, 5)


async def test_a_webhook_writes_no_index_of_its_conversation(db: Connection) -> None:
    await db.execute("""
        insert into conversation_mappings (conversation_key, kakao_channel_id, plusfriend_user_key)
        values ('bot:user', 'bot', 'user')
    """)
    update_query = """
        update conversation_mappings
        set last_seen_at = pabal.now(), last_callback_url = 'https://c', last_callback_url_expires_at = pabal.now()
    """
    assert await hot_updates(db, "conversation_mappings", update_query) == (1, 1)


DUE = """
    select due.id, due.priority from unnest('{1,3,5}'::smallint[]) as level, lateral (
      select id, priority from notification.requests
      where state = 'pending' and recipient_type = 'user_dm' and priority = level and scheduled_at <= pabal.now()
        and (lease is null or leased_until <= pabal.now())
      order by scheduled_at limit 10 for update skip locked
    ) as due limit 10
"""


async def test_a_claim_reads_the_due_emergencies_only_and_writes_no_index(db: Connection) -> None:
    await db.execute("""
        insert into notification.templates (key, category, texts, checksum) values ('a', 'system', '{}', '')
    """)
    fill = """
        insert into notification.requests
          (id, recipient_type, recipient_id, template_key, payload, state, sent_at, scheduled_at, priority)
        select pabal.uuid7(), 'user_dm', '1', 'a', '{}', $1,
               case $1 when 'sent' then now() end, now() + $2::text::interval, $3
        from generate_series(1, $4)
    """
    other_rows = [("sent", "0 s", 1, 5_000), ("pending", "1 day", 1, 5_000), ("pending", "-1 h", 5, 5_000)]
    for arguments in (*other_rows, ("pending", "0 s", 1, 10)):
        await db.execute(fill, *arguments)
    await db.execute("vacuum analyze notification.requests")

    priorities = [row["priority"] for row in await db.fetch(DUE)]
    assert priorities == [1] * 10
    assert await pages(db, DUE) < MAX_PAGES
    claim_query = f"""
        with due as ({DUE})
        update notification.requests set lease = $1, leased_until = now(), attempt_count = 1
        where id in (select id from due)
    """
    assert await hot_updates(db, "notification.requests", claim_query, uuid4()) == (10, 10)
