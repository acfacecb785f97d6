"""Faults of the notification seed: each is shown on the seed's tables, and its absence on the hub's tables."""

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from support.clusters import Connection, open_connection

pytestmark = pytest.mark.anyio

on_the_seed = pytest.mark.parametrize("seeded", ["001"], indirect=True)


async def insert_request(
    db: Connection, state: str = "pending", *, template: str = "payment.succeeded", **overrides: object
) -> UUID:
    """Insert a request as the seed does, with further columns."""
    columns: dict[str, object] = {
        "id": uuid4(),
        "recipient_type": "user_dm",
        "recipient_id": "100",
        "template_key": template,
        "payload": "{}",
        "state": state,
        **overrides,
    }
    placeholders = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    request_id: UUID = await db.fetchval(
        f"insert into notification.requests ({', '.join(columns)}) values ({placeholders}) returning id",
        *columns.values(),
    )
    return request_id


@pytest.fixture
async def hub_db(db: Connection) -> Connection:
    await db.execute("""
        insert into notification.templates (key, category, texts, checksum)
        values ('payment.succeeded', 'payment', '{}', '')
    """)
    return db


@on_the_seed
async def test_the_seed_does_not_enforce_its_invariants(seeded: Connection) -> None:
    await insert_request(seeded, "sent", attempt_count=99, template="no.such.template")
    row = await seeded.fetchrow("select state, attempt_count, sent_at, template_key from notification.requests")
    assert row is not None
    assert tuple(row) == ("sent", 99, None, "no.such.template")


@pytest.mark.parametrize(
    ("state", "overrides", "constraint"),
    [
        ("sent", {}, "request_sent_has_time"),
        ("pending", {"attempt_count": 99}, "request_attempts"),
        ("pending", {"attempt_count": 4}, "request_attempts"),
        ("pending", {"template": "no.such.template"}, "requests_template_key_fkey"),
        ("failed", {}, "request_failed_has_error"),
        ("suppressed", {}, "request_ended_has_reason"),
        ("suppressed", {"reason": "because"}, "request_ended_has_reason"),
        ("pending", {"reason": "storm"}, "request_ended_has_reason"),
        ("pending", {"lease": uuid4()}, "request_lease_has_end"),
        ("pending", {"payload": "[]"}, "request_payload_object"),
        ("pending", {"idempotency_key": "k"}, "request_key_has_source"),
        ("pending", {"source_service": "nosuch"}, "requests_source_service_fkey"),
    ],
)
async def test_constraints_enforce_the_invariants(
    hub_db: Connection, state: str, overrides: dict[str, object], constraint: str
) -> None:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError) as error:
        await insert_request(hub_db, state, **overrides)  # pyright: ignore[reportArgumentType]
    assert error.value.constraint_name == constraint


async def test_the_seeds_own_statements_still_settle(hub_db: Connection) -> None:
    await hub_db.execute("set role service_role")
    sent, failed, pending = await insert_request(hub_db), await insert_request(hub_db), await insert_request(hub_db)
    await hub_db.execute("update notification.requests set state = 'sent', sent_at = now() where id = $1", sent)
    await hub_db.execute(
        "update notification.requests set state = 'failed', last_error = 'refused' where id = $1", failed
    )
    await hub_db.execute("update notification.requests set attempt_count = attempt_count + 1 where id = $1", pending)

    rows = await hub_db.fetch(
        "select state, reason, ended_at is not null as ended from notification.requests order by state"
    )
    assert [tuple(row) for row in rows] == [
        ("failed", "exhausted", True),
        ("pending", None, False),
        ("sent", None, True),
    ]


@on_the_seed
async def test_the_seed_can_delete_neither_guild_nor_user(seeded: Connection) -> None:
    await seeded.execute("insert into guild.guilds select gen_random_uuid()")
    await seeded.execute("insert into identity.users select gen_random_uuid()")
    await insert_request(seeded, guild_id=await seeded.fetchval("select id from guild.guilds"))
    await seeded.execute("insert into notification.preferences (user_id) select id from identity.users")
    for table in ("guild.guilds", "identity.users"):
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await seeded.execute(f"delete from {table}")


async def test_deleting_a_guild_keeps_its_requests_and_deleting_a_user_deletes_the_preferences(
    hub_db: Connection,
) -> None:
    guild = await hub_db.fetchval("insert into guild.guilds default values returning id")
    user = await hub_db.fetchval("insert into identity.users default values returning id")
    await insert_request(hub_db, guild_id=guild)
    await hub_db.execute("insert into notification.preferences (user_id) values ($1)", user)
    await hub_db.execute("insert into notification.people (discord_id, user_id) values ('100', $1)", user)

    await hub_db.execute("delete from guild.guilds")
    await hub_db.execute("delete from identity.users")

    assert await hub_db.fetchval("select count(*) from notification.requests where guild_id is null") == 1
    assert await hub_db.fetchval("select count(*) from notification.preferences") == 0
    assert await hub_db.fetchval("select count(*) from notification.people where user_id is null") == 1


async def test_an_expired_lease_settles_nothing(hub_db: Connection) -> None:
    request_id, expired, current = await insert_request(hub_db), uuid4(), uuid4()
    for lease in (expired, current):
        await hub_db.execute("update notification.requests set lease = $1, leased_until = now()", lease)
    settle_query = (
        "update notification.requests set state = 'sent', sent_at = now() where id = $1 and lease = $2 returning lease"
    )
    assert await hub_db.fetch(settle_query, request_id, expired) == []
    assert [row["lease"] for row in await hub_db.fetch(settle_query, request_id, current)] == [None]


@on_the_seed
async def test_the_seed_creates_two_requests_for_one_event(seeded: Connection) -> None:
    for _ in range(2):
        await insert_request(seeded, payload='{"event": 1}')
    assert await seeded.fetchval("select count(*) from notification.requests") == 2


async def test_a_dedupe_key_creates_one_request(migrated: str, hub_db: Connection) -> None:
    request_query = (
        "select notification.request('user_dm', '100', 'payment.succeeded', dedupe_key => 'event rule 100 user_dm')"
    )
    count_blocked = "select count(*) from pg_stat_activity where $1 = any(pg_blocking_pids(pid))"
    async with open_connection(migrated) as other:
        async with asyncio.timeout(10):
            async with hub_db.transaction():
                first = await hub_db.fetchval(request_query)
                second = asyncio.create_task(other.fetchval(request_query))
                while not await hub_db.fetchval(count_blocked, hub_db.get_server_pid()):
                    pass
            assert await second == first
        assert await other.fetchval(request_query) == first
        assert await hub_db.fetchval("select count(*) from notification.requests") == 1
        with pytest.raises(asyncpg.UniqueViolationError):
            await insert_request(hub_db, dedupe_key="event rule 100 user_dm")


async def test_an_idempotency_key_is_unique_within_its_service(hub_db: Connection) -> None:
    await insert_request(hub_db, source_service="minu_find", idempotency_key="k")
    await insert_request(hub_db, source_service="minu_build", idempotency_key="k")
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert_request(hub_db, source_service="minu_find", idempotency_key="k")


async def test_adding_a_user_creates_no_preferences(db: Connection) -> None:
    await db.execute("insert into identity.users default values")
    assert await db.fetchval("select count(*) from notification.preferences") == 0


async def test_only_ended_requests_are_purged(hub_db: Connection) -> None:
    await insert_request(hub_db)
    ended = await insert_request(hub_db, "sent", sent_at=await hub_db.fetchval("select now() - interval '91 days'"))
    await hub_db.execute("update notification.requests set created_at = now() - interval '91 days'")
    purge_query = "delete from notification.requests where ended_at < pabal.now() - interval '90 days' returning id"
    assert [row["id"] for row in await hub_db.fetch(purge_query)] == [ended]
