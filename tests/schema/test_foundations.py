"""Services, their secrets, ids and time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import asyncpg
import pytest

from support.clusters import Connection, open_connection

pytestmark = pytest.mark.anyio

INSERT_SECRET = "insert into public.service_secrets (service_name, secret_hash) values ($1, $2) returning id"


def fake_hash(number: int) -> str:
    return f"{number:064x}"


async def test_the_seeds_services_are_registered(db: Connection) -> None:
    rows = await db.fetch("select name, permissions from public.services where is_active order by name")
    assert {row["name"]: row["permissions"] for row in rows} == {
        "hub": '["write", "tokens:introspect", "tokens:admin", "hub:admin"]',
        **dict.fromkeys(("minu_find", "minu_frame", "minu_build", "minu_keep"), '["write"]'),
    }


@pytest.mark.parametrize("name", ["Find", "1st", "a", "a-b", "a" * 64, ""])
async def test_a_service_has_a_plain_name(db: Connection, name: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="service_name_form"):
        await db.execute("insert into public.services (name) values ($1)", name)


async def test_a_disabled_service_has_a_time(db: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="service_disabled_has_time"):
        await db.execute("update public.services set is_active = false where name = 'minu_find'")
    result = await db.execute(
        "update public.services set is_active = false, disabled_at = now() where name = 'minu_find'"
    )
    assert result == "UPDATE 1"


async def test_a_service_has_at_most_two_live_secrets(db: Connection) -> None:
    first = await db.fetchval(INSERT_SECRET, "minu_find", fake_hash(1))
    await db.execute(INSERT_SECRET, "minu_find", fake_hash(2))
    await db.execute(INSERT_SECRET, "minu_frame", fake_hash(3))
    with pytest.raises(asyncpg.CheckViolationError, match="minu_find already has two live secrets"):
        await db.execute(INSERT_SECRET, "minu_find", fake_hash(4))

    await db.execute("update public.service_secrets set revoked_at = now() where id = $1", first)
    await db.execute(INSERT_SECRET, "minu_find", fake_hash(4))

    with pytest.raises(asyncpg.UniqueViolationError, match="idx_service_secrets_live"):
        await db.execute("update public.service_secrets set revoked_at = null where id = $1", first)


async def test_an_expired_secret_frees_its_slot(db: Connection) -> None:
    for number in (1, 2):
        await db.execute(INSERT_SECRET, "minu_find", fake_hash(number))
    await db.execute(
        "update public.service_secrets set created_at = now() - interval '2 h', expires_at = now() - interval '1 h'"
        " where secret_hash = $1",
        fake_hash(1),
    )

    await db.execute(INSERT_SECRET, "minu_find", fake_hash(3))

    rows = await db.fetch("select secret_hash, revoked_at is null as live from public.service_secrets order by 1")
    assert [row["live"] for row in rows] == [False, True, True]


async def insert_concurrently(url: str, isolation: Literal["read_committed", "repeatable_read"]) -> list[object]:
    """Twelve concurrent inserts, each with a snapshot from before the others."""

    async def add(number: int) -> None:
        async with open_connection(url) as conn, conn.transaction(isolation=isolation):
            await conn.fetchval("select count(*) from public.service_secrets")
            await conn.execute(INSERT_SECRET, "minu_find", fake_hash(number))

    return [
        type(error)
        for error in await asyncio.gather(*(add(number) for number in range(12)), return_exceptions=True)
        if error is not None
    ]


async def test_ten_of_twelve_concurrent_inserts_fail_with_the_reason(migrated: str, db: Connection) -> None:
    assert await insert_concurrently(migrated, "read_committed") == [asyncpg.CheckViolationError] * 10
    assert await db.fetchval("select count(*) from public.service_secrets where revoked_at is null") == 2


async def test_an_old_snapshot_cannot_insert_a_third_secret(migrated: str, db: Connection) -> None:
    errors = await insert_concurrently(migrated, "repeatable_read")
    live_count = await db.fetchval("select count(*) from public.service_secrets where revoked_at is null")
    assert live_count == 12 - len(errors)
    assert 1 <= live_count <= 2


async def test_a_secret_is_kept_as_a_hash_only(db: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="secret_hash_form"):
        await db.execute(INSERT_SECRET, "minu_find", "the secret itself")


async def test_uuid7_sorts_by_time(db: Connection) -> None:
    ids = [UUID(str(row["id"])) for row in await db.fetch("select pabal.uuid7() as id from generate_series(1, 500)")]
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, "specified in RFC 4122")}
    assert len(set(ids)) == 500
    timestamps = [id_.int >> 80 for id_ in ids]
    assert timestamps == sorted(timestamps)
    first_time = datetime.fromtimestamp(timestamps[0] / 1000, UTC)
    assert abs(first_time - datetime.now(UTC)) < timedelta(minutes=1)


async def test_pabal_now_can_be_replaced_to_move_time(db: Connection) -> None:
    assert await db.fetchval("select pabal.now() = now()")
    await db.execute(
        "create or replace function pabal.now() returns timestamptz language sql stable parallel safe"
        " as $$ select timestamptz '2030-01-01Z' $$"
    )
    insert_event = "insert into public.event_queue (event_type, source_service, status) values ('a', 'hub', 'failed')"
    row = await db.fetchrow(f"{insert_event} returning created_at, updated_at, processed_at")
    assert row is not None
    assert {timestamp.year for timestamp in row} == {2030}
    assert (await db.fetchval("select failed_at from public.dead_letter_queue")).year == 2030


@pytest.mark.parametrize(
    ("code", "message", "signature"),
    [
        (None, "answered 503 after 30.5 s", "answered <n> after <n> s"),
        ("E1", "no 0x1FE, deadbeef01, 01933000-0000-7000-8000-00000000000A\nstack", "E1 no <hex>, <hex>, <id>"),
        ("", "a decade   of feedface", "a decade of feedface"),
        (None, "x" * 500, "x" * 200),
        (None, None, ""),
    ],
)
async def test_errors_of_one_cause_share_a_signature(
    db: Connection, code: str | None, message: str | None, signature: str
) -> None:
    assert await db.fetchval("select pabal.error_signature($1, $2)", code, message) == signature
