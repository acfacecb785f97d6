"""Faults of the relay seed: each is shown on the seed's tables, and its absence on the hub's tables."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

on_the_seed = pytest.mark.parametrize("seeded", ["002"], indirect=True)

SEED_POLL = """
    select id from inbound_messages where account_id = $1 and status = 'QUEUED'
    order by created_at asc limit 10 for update skip locked
"""
SEED_MARK = "update inbound_messages set status = 'DELIVERED', delivered_at = now() where id = any($1)"
SEED_EXPIRE = """
    update inbound_messages set status = 'EXPIRED'
    where status in ('QUEUED', 'DELIVERED') and callback_expires_at < now()
"""

CLAIM = """
    update inbound_messages
    set status = 'DELIVERED', lease = $2, leased_until = pabal.now() + interval '1 minute', delivered_at = pabal.now(),
        delivery_count = delivery_count + 1
    where id = any(array(
      select id from inbound_messages
      where account_id = $1 and (status = 'QUEUED' or (status = 'DELIVERED' and leased_until <= pabal.now()))
      order by seq limit 10 for update skip locked
    ))
    returning id
"""
SETTLE = """
    update inbound_messages
    set status = 'ACKED', acked_at = pabal.now(), ended_at = pabal.now(), reason = 'acked',
        lease = null, leased_until = null
    where id = $1 and lease = $2 returning id
"""
EXPIRE = """
    update inbound_messages
    set status = 'EXPIRED', ended_at = pabal.now(), reason = 'queue_life', lease = null, leased_until = null
    where ended_at is null and expires_at <= pabal.now() and (lease is null or leased_until <= pabal.now())
    returning id
"""


async def insert_account(db: Connection, name: str) -> UUID:
    account_id: UUID = await db.fetchval(
        "insert into accounts (openclaw_user_id, relay_token_hash) values ($1, $2) returning id",
        name,
        f"{uuid4().hex}{uuid4().hex}",
    )
    return account_id


async def receive(
    db: Connection, owner: UUID, channel: str, event: str | None, callback: str = "1 minute"
) -> UUID | None:
    """Store a webhook as the seed does; None if it was considered a repeat."""
    message_id: UUID | None = await db.fetchval(
        """
        insert into inbound_messages
          (account_id, conversation_key, kakao_payload, normalized, callback_url, callback_expires_at, source_event_id)
        values ($1, $2 || ':user', '{}', '{}', 'https://callback', now() + $4::text::interval, $3)
        on conflict do nothing returning id
        """,
        owner,
        channel,
        event,
        callback,
    )
    return message_id


async def travel(db: Connection, interval: str) -> None:
    await db.execute(
        "create or replace function pabal.now() returns timestamptz language sql stable parallel safe"
        f" as $$ select pg_catalog.now() + interval '{interval}' $$"
    )


@on_the_seed
async def test_the_seed_drops_a_message_with_the_event_id_of_another_tenant(seeded: Connection) -> None:
    first, second = await insert_account(seeded, "one"), await insert_account(seeded, "other")
    assert await receive(seeded, first, "channel-1", "42") is not None
    assert await receive(seeded, second, "channel-2", "42") is None  # lost
    assert await receive(seeded, first, "channel-1", None) is not None
    assert await receive(seeded, first, "channel-1", None) is not None  # a repeat, stored twice


async def test_an_event_id_is_required_and_unique_within_its_channel(db: Connection) -> None:
    first, second = await insert_account(db, "one"), await insert_account(db, "other")
    assert await receive(db, first, "channel-1", "42") is not None
    assert await receive(db, second, "channel-2", "42") is not None
    assert await receive(db, second, "channel-2", "42") is None
    with pytest.raises(asyncpg.NotNullViolationError):
        await receive(db, first, "channel-1", None)


@on_the_seed
async def test_the_seed_gives_two_pollers_the_same_message(server: Cluster, seeded: Connection) -> None:
    owner = await insert_account(seeded, "one")
    message_id = await receive(seeded, owner, "channel", "1")
    async with open_connection(server.url(await seeded.fetchval("select current_database()"))) as other:
        # Two statements in two transactions: the lock of the first poller ends before the row is marked.
        first = [row["id"] for row in await seeded.fetch(SEED_POLL, owner)]
        second = [row["id"] for row in await other.fetch(SEED_POLL, owner)]
        assert await seeded.execute(SEED_MARK, first) == "UPDATE 1"
        assert await other.execute(SEED_MARK, second) == "UPDATE 1"

    assert first == second == [message_id]


async def test_one_statement_claims_for_one_holder(migrated: str, db: Connection) -> None:
    owner = await insert_account(db, "one")
    message_id = await receive(db, owner, "channel", "1")
    async with open_connection(migrated) as other:
        holder, other_holder = uuid4(), uuid4()
        async with db.transaction():
            assert await db.fetchval(CLAIM, owner, holder) == message_id
            assert await other.fetchval(CLAIM, owner, other_holder) is None
        assert await other.fetchval(CLAIM, owner, other_holder) is None
        assert await other.fetchval(SETTLE, message_id, other_holder) is None
        assert await db.fetchval(SETTLE, message_id, holder) == message_id


async def test_the_message_of_a_crashed_holder_is_due_again(db: Connection) -> None:
    owner = await insert_account(db, "one")
    message_id = await receive(db, owner, "channel", "1")
    crashed, successor = uuid4(), uuid4()
    await db.fetchval(CLAIM, owner, crashed)

    await travel(db, "61 seconds")

    assert await db.fetchval(CLAIM, owner, successor) == message_id
    assert await db.fetchval(SETTLE, message_id, crashed) is None
    assert await db.fetchval("select delivery_count from inbound_messages") == 2


@on_the_seed
async def test_the_seed_expires_a_held_message_with_its_callback(seeded: Connection) -> None:
    owner = await insert_account(seeded, "one")
    held = await receive(seeded, owner, "channel", "1", callback="-1 second")
    await receive(seeded, owner, "channel", "2", callback="-1 second")
    await seeded.execute(SEED_MARK, [held])

    await seeded.execute(SEED_EXPIRE)

    # One is held by a poller, the other has fourteen minutes of queue life left.
    assert await seeded.fetchval("select array_agg(status) from inbound_messages") == ["EXPIRED", "EXPIRED"]


async def test_a_message_outlives_its_callback_and_does_not_expire_while_held(db: Connection) -> None:
    owner = await insert_account(db, "one")
    held = await receive(db, owner, "channel", "1", callback="-1 second")
    await db.fetchval(CLAIM, owner, uuid4())
    queued = await receive(db, owner, "channel", "2", callback="-1 second")

    assert await db.fetch(EXPIRE) == []  # both callbacks have expired; neither queue life is over
    await travel(db, "15 minutes")
    await db.execute(
        "update inbound_messages set leased_until = pabal.now() + interval '30 seconds' where id = $1", held
    )
    assert [row["id"] for row in await db.fetch(EXPIRE)] == [queued]
    await travel(db, "16 minutes")
    assert [row["id"] for row in await db.fetch(EXPIRE)] == [held]


async def test_a_message_may_have_no_callback_but_then_no_deadline_either(db: Connection) -> None:
    owner = await insert_account(db, "one")
    await receive(db, owner, "channel", "1")
    await db.execute("update inbound_messages set callback_url = null, callback_expires_at = null")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update inbound_messages set callback_expires_at = now()")


@on_the_seed
async def test_the_seed_allows_shared_tokens_and_any_status_and_cannot_delete_accounts(seeded: Connection) -> None:
    owner = await insert_account(seeded, "one")
    await insert_account(seeded, "two")
    await seeded.execute("update accounts set relay_token_hash = 'same'")
    await receive(seeded, owner, "channel", "1")
    await seeded.execute("update inbound_messages set status = 'UNKNOWN'")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await seeded.execute("delete from accounts where id = $1", owner)


async def test_tokens_are_unique_accounts_can_be_deleted_and_statuses_are_checked(db: Connection) -> None:
    owner = await insert_account(db, "one")
    await insert_account(db, "two")
    with pytest.raises(asyncpg.UniqueViolationError):
        await db.execute("update accounts set relay_token_hash = repeat('a', 64)")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update accounts set relay_token_hash = 'the token itself'")
    await receive(db, owner, "channel", "1")
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("update inbound_messages set status = 'UNKNOWN'")
    await db.execute("delete from accounts where id = $1", owner)
    assert await db.fetchval("select count(*) from inbound_messages") == 0


async def test_only_ended_messages_are_purged(db: Connection) -> None:
    owner = await insert_account(db, "one")
    await receive(db, owner, "channel", "1")
    ended = await receive(db, owner, "channel", "2")
    await db.execute("update inbound_messages set created_at = now() - interval '8 days'")
    await db.execute(
        "update inbound_messages set status = 'ACKED', ended_at = now() - interval '8 days' where id = $1", ended
    )
    purge_query = "delete from inbound_messages where ended_at < pabal.now() - interval '7 days' returning id"
    assert [row["id"] for row in await db.fetch(purge_query)] == [ended]
