"""Faults of seed 000: each is shown on the seed's tables, and its absence on the hub's tables."""

import json

import asyncpg
import pytest

from support.clusters import Connection

pytestmark = pytest.mark.anyio

seed = pytest.mark.parametrize("seeded", ["000"], indirect=True)

INSERT_EVENT = """
    insert into public.event_queue (event_type, source_service, target_service, status, retry_count, last_error)
    values ('token.issued', 'hub', 'minu_find', $1, $2, 'boom') returning id
"""
COUNT_DEAD_LETTERS = "select count(*) from public.dead_letter_queue"
INSERT_TOKEN = """
    insert into public.service_tokens (service_name, access_token, token_hash, permissions, expires_at)
    values ($1, 'sealed', $2, $3, now() + interval '1 hour') returning id
"""
INSERT_REFRESH_TOKEN = """
    insert into public.refresh_tokens (service_token_id, refresh_token, token_hash, expires_at)
    values ($1, 'sealed', $2, now() + interval '7 days') returning id
"""


# A1: a dead event could not be deleted


async def fail_event(conn: Connection) -> object:
    event = await conn.fetchval(INSERT_EVENT, "pending", 3)
    await conn.execute("update public.event_queue set status = 'failed' where id = $1", event)
    return event


@seed
async def test_the_seed_cannot_delete_a_dead_event(seeded: Connection) -> None:
    event = await fail_event(seeded)
    with pytest.raises(asyncpg.NotNullViolationError):
        await seeded.execute("delete from public.event_queue where id = $1", event)


async def test_a_dead_letter_outlives_its_event(db: Connection) -> None:
    event = await fail_event(db)
    await db.execute("delete from public.event_queue where id = $1", event)

    [dead_letter] = await db.fetch("select event_id, original_event_id, origin_id from public.dead_letter_queue")
    assert tuple(dead_letter) == (None, event, event)


# A2: every later update of a failed event created another dead letter


async def update_twice(conn: Connection, event: object) -> None:
    for error in ("one", "two"):
        await conn.execute("update public.event_queue set last_error = $2 where id = $1", event, error)


@seed
async def test_the_seed_creates_a_dead_letter_at_every_update_of_a_failed_event(seeded: Connection) -> None:
    await update_twice(seeded, await fail_event(seeded))
    assert await seeded.fetchval(COUNT_DEAD_LETTERS) == 3


async def test_a_failure_creates_one_dead_letter_for_any_number_of_updates(db: Connection) -> None:
    event = await fail_event(db)
    await update_twice(db, event)
    await db.execute("update public.event_queue set status = 'failed' where id = $1", event)
    assert await db.fetchval(COUNT_DEAD_LETTERS) == 1


async def test_failing_again_after_a_replay_creates_another_dead_letter(db: Connection) -> None:
    event = await fail_event(db)
    await db.execute("update public.event_queue set status = 'pending' where id = $1", event)
    assert await db.fetchval("select processed_at from public.event_queue where id = $1", event) is None
    await db.execute("update public.event_queue set status = 'failed', last_error = 'bang' where id = $1", event)

    rows = await db.fetch("select death, error_message from public.dead_letter_queue order by death")
    assert [tuple(row) for row in rows] == [(1, "boom"), (2, "bang")]
    with pytest.raises(asyncpg.UniqueViolationError):
        await db.execute(
            """
            insert into public.dead_letter_queue
              (original_event_id, origin_id, death, original_event_type, original_source_service,
               original_payload, error_message)
            values ($1, $1, 2, 'token.issued', 'hub', '{}', 'twice')
            """,
            event,
        )


# A3: failed without a dead letter


@seed
@pytest.mark.parametrize("operation", ["insert", "update"])
async def test_the_seed_loses_an_event_that_failed_with_retries_left(seeded: Connection, operation: str) -> None:
    if operation == "insert":
        await seeded.execute(INSERT_EVENT, "failed", 3)
    else:
        event = await seeded.fetchval(INSERT_EVENT, "pending", 0)
        await seeded.execute("update public.event_queue set status = 'failed' where id = $1", event)
    assert await seeded.fetchval(COUNT_DEAD_LETTERS) == 0


@pytest.mark.parametrize("operation", ["insert", "update"])
async def test_failed_is_final_and_has_a_dead_letter_for_any_number_of_retries(db: Connection, operation: str) -> None:
    if operation == "insert":
        event = await db.fetchval(INSERT_EVENT, "failed", 0)
    else:
        event = await db.fetchval(INSERT_EVENT, "pending", 0)
        await db.execute("update public.event_queue set status = 'failed' where id = $1", event)

    [dead_letter] = await db.fetch("select event_id, error_message, total_retry_count from public.dead_letter_queue")
    assert tuple(dead_letter) == (event, "boom", 0)
    assert await db.fetchval("select processed_at is not null from public.event_queue where id = $1", event)


async def test_a_dead_letter_keeps_what_a_replay_needs(db: Connection) -> None:
    await db.execute(
        """
        insert into public.event_queue
          (event_type, source_service, target_service, payload, status, priority, max_retries, ordering_key,
           correlation_id, last_error, error_code, error_stack, error_history, retry_count)
        values ('a.b', 'hub', 'minu_keep', '{"x": 1}', 'failed', 2, 7, 'k',
                'c', 'line 7 broke', 'E7', 'at x', '[{"n": 1}]', 4)
        """
    )
    [dead_letter] = await db.fetch("select * from public.dead_letter_queue")
    assert dead_letter["original_payload"] == '{"x": 1}'
    assert (
        dead_letter["original_envelope"]
        == '{"priority": 2, "max_retries": 7, "ordering_key": "k", "correlation_id": "c"}'
    )
    assert (dead_letter["error_code"], dead_letter["error_stack"], dead_letter["error_history"]) == (
        "E7",
        "at x",
        '[{"n": 1}]',
    )
    assert (dead_letter["total_retry_count"], dead_letter["signature"]) == (4, "E7 line <n> broke")


# A7: two tokens with one hash


@seed
async def test_the_seed_accepts_one_hash_twice(seeded: Connection) -> None:
    for _ in range(2):
        token = await seeded.fetchval(INSERT_TOKEN, "minu_find", "same", '["read"]')
        await seeded.execute(INSERT_REFRESH_TOKEN, token, "same")
    assert await seeded.fetchval("select count(*) from public.refresh_tokens where token_hash = 'same'") == 2


async def test_a_hash_belongs_to_one_token(db: Connection) -> None:
    token = await db.fetchval(INSERT_TOKEN, "minu_find", "same", '["read"]')
    await db.execute(INSERT_REFRESH_TOKEN, token, "same")
    with pytest.raises(asyncpg.UniqueViolationError, match="idx_service_tokens_token_hash"):
        await db.execute(INSERT_TOKEN, "minu_find", "same", '["read"]')
    with pytest.raises(asyncpg.UniqueViolationError, match="idx_refresh_tokens_token_hash"):
        await db.execute(INSERT_REFRESH_TOKEN, token, "same")


# A8: the hub can hold no token, permissions are unchecked, revoked columns may disagree

INVALID_PERMISSIONS = ['"everything"', '["root"]', '{"read": true}', "[1]", '[["read"]]']


@seed
async def test_the_seed_refuses_the_hub_and_accepts_any_permission(seeded: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="valid_service_name"):
        await seeded.execute(INSERT_TOKEN, "hub", "h", '["read"]')
    for number, permissions in enumerate(INVALID_PERMISSIONS):
        await seeded.execute(INSERT_TOKEN, "minu_find", f"h{number}", permissions)
    await seeded.execute("update public.service_tokens set is_revoked = true")
    assert await seeded.fetchval("select count(*) from public.service_tokens where revoked_at is null") == len(
        INVALID_PERMISSIONS
    )


async def test_every_registered_service_may_hold_a_token(db: Connection) -> None:
    await db.execute(INSERT_TOKEN, "hub", "h", '["read", "events:publish", "hub:admin"]')
    with pytest.raises(asyncpg.ForeignKeyViolationError, match="valid_service_name"):
        await db.execute(INSERT_TOKEN, "new_service", "s", '["read"]')
    await db.execute("insert into public.services (name) values ('new_service')")
    await db.execute(INSERT_TOKEN, "new_service", "s", '["read"]')


@pytest.mark.parametrize("permissions", INVALID_PERMISSIONS)
async def test_permissions_are_a_list_of_known_names(db: Connection, permissions: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="permissions_known"):
        await db.execute(INSERT_TOKEN, "minu_find", "h", permissions)
    with pytest.raises(asyncpg.CheckViolationError, match="service_permissions_known"):
        await db.execute("update public.services set permissions = $1", permissions)


@pytest.mark.parametrize("change", ["is_revoked = true", "revoked_at = now()"])
async def test_is_revoked_and_revoked_at_agree(db: Connection, change: str) -> None:
    await db.execute(INSERT_TOKEN, "minu_find", "h", '["read"]')
    with pytest.raises(asyncpg.CheckViolationError, match="revoked_has_time"):
        await db.execute(f"update public.service_tokens set {change}")
    await db.execute("update public.service_tokens set is_revoked = true, revoked_at = now()")


# A9: a successor cannot be deleted, and refresh tokens never expire


async def rotate(conn: Connection) -> object:
    token = await conn.fetchval(INSERT_TOKEN, "minu_find", "a", '["read"]')
    old = await conn.fetchval(INSERT_REFRESH_TOKEN, token, "old")
    successor = await conn.fetchval(INSERT_REFRESH_TOKEN, token, "new")
    await conn.execute("update public.refresh_tokens set replaced_by = $1 where id = $2", successor, old)
    return successor


REMOVE_EXPIRY = "update public.refresh_tokens set expires_at = null"


@seed
async def test_the_seed_cannot_delete_a_successor_and_lets_refresh_tokens_never_expire(seeded: Connection) -> None:
    successor = await rotate(seeded)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await seeded.execute("delete from public.refresh_tokens where id = $1", successor)
    assert await seeded.execute(REMOVE_EXPIRY) == "UPDATE 2"


async def test_a_successor_can_be_deleted_and_every_refresh_token_expires(db: Connection) -> None:
    successor = await rotate(db)
    await db.execute("delete from public.refresh_tokens where id = $1", successor)
    assert await db.fetchval("select replaced_by from public.refresh_tokens") is None
    with pytest.raises(asyncpg.NotNullViolationError):
        await db.execute(REMOVE_EXPIRY)
    with pytest.raises(asyncpg.CheckViolationError, match="refresh_expires_later"):
        await db.execute("update public.refresh_tokens set expires_at = created_at")


async def test_a_family_owns_its_access_and_refresh_tokens(db: Connection) -> None:
    await rotate(db)
    count_families = "select count(distinct family_id), count(*) from"
    assert tuple(await db.fetchrow(f"{count_families} public.service_tokens") or ()) == (1, 1)
    assert tuple(await db.fetchrow(f"{count_families} public.refresh_tokens") or ()) == (1, 2)
    has_lifetime = "select expires_at - created_at = interval '30 days' from public.token_families"
    assert await db.fetchval(has_lifetime)

    await db.execute("delete from public.token_families")

    assert await db.fetchval("select count(*) from public.service_tokens") == 0
    assert await db.fetchval("select count(*) from public.refresh_tokens") == 0


# A12: polls that read future retries, and ended rows that are never deleted


INSERT_FUTURE_RETRIES = """
insert into public.event_queue (event_type, source_service, target_service, retry_count, next_retry_at)
select 'order.paid', 'minu_find', 'minu_build', 1, now() + interval '1 day' from generate_series(1, 50000)
"""


async def pages_read(conn: Connection, poll: str) -> int:
    await conn.execute("analyze")
    [plan] = json.loads(await conn.fetchval(f"explain (analyze, buffers, format json) {poll}"))
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


@seed
async def test_the_seeds_poll_reads_every_future_retry(seeded: Connection) -> None:
    await seeded.execute(INSERT_FUTURE_RETRIES)
    poll = """
        select id from public.event_queue
        where status = 'pending' and (next_retry_at is null or next_retry_at <= now()) and target_service = 'minu_build'
        order by priority, created_at limit 10
    """
    assert await pages_read(seeded, poll) > 500


async def test_the_hubs_poll_does_not_read_future_retries(db: Connection) -> None:
    await db.execute(INSERT_FUTURE_RETRIES)
    poll = """
        select id from pabal.event_due
        where service = 'minu_build' and priority = 5 and due_at <= pabal.now() order by due_at limit 10
    """
    assert await pages_read(db, poll) < 10


async def insert_old_events(conn: Connection) -> None:
    for status in ("completed", "cancelled", "failed"):
        await conn.execute(INSERT_EVENT, status, 0)
    await conn.execute(INSERT_EVENT, "pending", 0)
    await conn.execute(
        "update public.event_queue set created_at = created_at - interval '31 days',"
        " processed_at = processed_at - interval '31 days'"
    )


@seed
async def test_the_seed_never_deletes_failed_or_cancelled_events(seeded: Connection) -> None:
    await insert_old_events(seeded)
    await seeded.execute(
        "update public.event_queue set processed_at = now() - interval '31 days' where status = 'failed'"
    )
    assert await seeded.fetchval("select public.cleanup_old_events()") == 0
    assert await seeded.fetchval("select count(*) from public.event_queue") == 4


async def test_all_events_that_ended_long_ago_are_deleted(db: Connection) -> None:
    await insert_old_events(db)
    assert await db.fetchval("select public.cleanup_old_events(32)") == 0
    assert await db.fetchval("select public.cleanup_old_events(batch => 2)") == 2
    assert await db.fetchval("select public.cleanup_old_events()") == 1
    assert [row["status"] for row in await db.fetch("select status from public.event_queue")] == ["pending"]
    assert await db.fetchval(COUNT_DEAD_LETTERS) == 1


async def test_the_seeds_call_deletes_by_processed_at_alone(db: Connection) -> None:
    await db.execute(INSERT_EVENT, "completed", 0)
    await db.execute("update public.event_queue set processed_at = processed_at - interval '31 days'")
    assert await db.fetchval("select public.cleanup_old_events(30)") == 1


# Guarantees of the hub's own schema


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_processed_at_is_set_at_the_end_and_cleared_on_reopening(db: Connection, status: str) -> None:
    event = await db.fetchval(INSERT_EVENT, "pending", 0)
    is_ended = "select processed_at is not null from public.event_queue where id = $1"
    await db.execute("update public.event_queue set status = $2 where id = $1", event, status)
    assert await db.fetchval(is_ended, event)
    await db.execute("update public.event_queue set status = 'processing' where id = $1", event)
    assert not await db.fetchval(is_ended, event)


@pytest.mark.parametrize("name", ["Order.Paid", "order..paid", ".order", "order paid", "", "a" * 129])
async def test_an_event_type_is_dotted_lower_case(db: Connection, name: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="event_type_form"):
        await db.execute("insert into public.event_queue (event_type, source_service) values ($1, 'hub')", name)


async def test_a_payload_is_an_object(db: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="event_payload_is_object"):
        await db.execute(
            "insert into public.event_queue (event_type, source_service, payload) values ('a', 'hub', '[1]')"
        )


async def test_a_key_names_one_event_per_source(db: Connection) -> None:
    insert_with_key = (
        "insert into public.event_queue (event_type, source_service, idempotency_key) values ('a', $1, 'k')"
    )
    await db.execute(insert_with_key, "hub")
    await db.execute(insert_with_key, "minu_find")
    with pytest.raises(asyncpg.UniqueViolationError, match="idx_event_queue_idempotency_key"):
        await db.execute(insert_with_key, "hub")


async def test_expired_tokens_are_marked_and_counted(db: Connection) -> None:
    await rotate(db)
    assert await db.fetchval("select public.cleanup_expired_tokens()") == 0
    await db.execute(
        "create or replace function pabal.now() returns timestamptz language sql stable as"
        " $$ select pg_catalog.now() + interval '8 days' $$"
    )

    assert await db.fetchval("select public.cleanup_expired_tokens()") == 1

    reason_query = "select is_revoked, revoked_reason from public.service_tokens"
    assert tuple(await db.fetchrow(reason_query) or ()) == (True, "Token expired")
    assert await db.fetchval("select count(*) from public.refresh_tokens where revoked_reason = 'Token expired'") == 2
    assert await db.fetchval("select public.cleanup_expired_tokens()") == 0


async def test_updated_at_is_set_by_a_trigger_unless_the_statement_sets_it(db: Connection) -> None:
    event = await db.fetchval(INSERT_EVENT, "pending", 0)
    await db.execute("update public.event_queue set updated_at = '2020-01-01Z' where id = $1", event)
    year_query = "select extract(year from updated_at)::int from public.event_queue where id = $1"
    assert await db.fetchval(year_query, event) == 2020
    await db.execute("update public.event_queue set last_error = 'x' where id = $1", event)
    assert await db.fetchval(year_query, event) > 2020
