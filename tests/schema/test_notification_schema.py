"""The notification tables equal the seed's except for the deviations listed here; and their own rules."""

import re
from uuid import UUID, uuid4

import asyncpg
import pytest

from pabal.db.migrate import apply_migrations, revert_migrations
from pabal.notifications.recipient_forms import LOCALE_PATTERN, LOCALE_RULE, RECIPIENT_ID_RULE, RECIPIENT_PATTERN
from support.catalog import read, snapshot
from support.clusters import Cluster, Connection, open_connection

pytestmark = pytest.mark.anyio

TABLES = ("requests", "preferences")
USER = UUID("0192f0c1-0000-7000-8000-000000000001")

DEVIATIONS = {
    "column": {},
    "constraint": {
        "notification.requests.requests_guild_id_fkey": (
            "FOREIGN KEY (guild_id) REFERENCES guild.guilds(id) ON DELETE SET NULL"
        ),
        "notification.preferences.preferences_user_id_fkey": (
            "FOREIGN KEY (user_id) REFERENCES identity.users(id) ON DELETE CASCADE"
        ),
    },
    "index": {},
}


def of_notifications(kind: str, objects: dict[str, str]) -> dict[str, str]:
    if kind == "index":
        return {
            name: definition
            for name, definition in objects.items()
            if any(f"ON notification.{table} " in definition for table in TABLES)
        }
    return {
        name: definition
        for name, definition in objects.items()
        if name.startswith(tuple(f"notification.{table}." for table in TABLES))
    }


@pytest.mark.parametrize("seeded", ["001"], indirect=True)
@pytest.mark.parametrize("kind", ["column", "constraint", "index"])
async def test_every_object_of_the_seed_exists(kind: str, seeded: Connection, db: Connection) -> None:
    seed_objects = of_notifications(kind, await read(seeded, kind))
    hub_objects = await read(db, kind)

    assert len(seed_objects) >= len(TABLES)
    assert {name: hub_objects.get(name) for name in seed_objects} == seed_objects | DEVIATIONS[kind]


async def insert_template(db: Connection, key: str = "payment.succeeded", criticality: str = "normal") -> None:
    await db.execute(
        """
        insert into notification.templates (key, category, criticality, variables, texts, checksum)
        values ($1, 'payment', $2, '{"amount": "integer", "shop": "text"}', '{}', '')
        """,
        key,
        criticality,
    )


async def request_notification(db: Connection, **overrides: str) -> UUID:
    arguments = {"template": "payment.succeeded", "payload": '{"amount": 1, "shop": "A"}', "key": None, **overrides}
    request_id: UUID = await db.fetchval(
        "select notification.request('user_dm', '100', $1, $2, dedupe_key => $3)",
        arguments["template"],
        arguments["payload"],
        arguments["key"],
    )
    return request_id


async def test_the_sql_function_creates_a_pending_request(db: Connection) -> None:
    await insert_template(db)
    request_id = await request_notification(db)
    row = await db.fetchrow(
        "select state, attempt_count, priority, nonce, requested_by from notification.requests where id = $1",
        request_id,
    )
    assert row is not None
    assert request_id.version == 7
    assert (row["state"], row["attempt_count"], row["priority"]) == ("pending", 0, 5)
    assert row["nonce"] == request_id.hex[:25]
    assert row["requested_by"] == "sql:pabal"


@pytest.mark.parametrize(("criticality", "priority"), [("emergency", 1), ("important", 3), ("normal", 5)])
async def test_criticality_decides_the_priority(db: Connection, criticality: str, priority: int) -> None:
    await insert_template(db, "antinuke.triggered", criticality)
    request_id = await request_notification(db, template="antinuke.triggered")
    assert await db.fetchval("select priority from notification.requests where id = $1", request_id) == priority


@pytest.mark.parametrize("payload", ['{"amount": 1}', '{"amount": 1, "shop": null}', '{"amount": 1, "shop": 2}'])
async def test_a_payload_must_have_the_variables_and_the_error_names_one(db: Connection, payload: str) -> None:
    await insert_template(db)
    with pytest.raises(asyncpg.CheckViolationError, match="shop") as error:
        await request_notification(db, payload=payload)
    assert error.value.column_name == "shop"


@pytest.mark.parametrize(
    ("field", "rule", "pattern", "values"),
    [
        (
            "recipient_id",
            RECIPIENT_ID_RULE,
            RECIPIENT_PATTERN,
            ["1", "9" * 20, "9" * 21, str(USER), str(USER).upper(), f"{USER}0", "somebody", "100\n", "", "\uff11"],
        ),
        (
            "locale",
            LOCALE_RULE,
            LOCALE_PATTERN,
            [None, "ko", "en", "ko-KR", "en-US", "fr", "korean", "en-us", "en\n", "xen", ""],
        ),
    ],
)
async def test_the_sql_function_refuses_the_recipients_and_languages_that_the_api_refuses(
    db: Connection, field: str, rule: str, pattern: re.Pattern[str], values: list[str | None]
) -> None:
    await insert_template(db)
    for value in values:
        fields = {"recipient_id": "100", "locale": None} | {field: value}
        request = db.fetchval(
            "select notification.request('user_dm', $1, 'payment.succeeded', $2, locale => $3)",
            fields["recipient_id"],
            '{"amount": 1, "shop": "A"}',
            fields["locale"],
        )
        if value is None or pattern.fullmatch(value):
            assert await request, value
            continue
        with pytest.raises(asyncpg.CheckViolationError, match=f"^{field}: {rule}$") as error:
            await request
        assert error.value.column_name == field


async def test_stored_notifications_with_an_id_or_a_language_of_before_are_kept(db: Connection) -> None:
    await insert_template(db)
    request_id = await request_notification(db)
    await db.execute(
        "update notification.requests set recipient_id = 'somebody', locale = 'fr' where id = $1", request_id
    )

    stored = await db.fetchrow(
        "select recipient_id, locale, state from notification.requests where id = $1", request_id
    )

    assert stored is not None
    assert (*stored,) == ("somebody", "fr", "pending")


@pytest.mark.parametrize("amount", ["1.5", '"1"', '"many"', "true"])
async def test_an_integer_is_a_whole_number(db: Connection, amount: str) -> None:
    await insert_template(db)
    with pytest.raises(asyncpg.CheckViolationError, match="amount"):
        await request_notification(db, payload=f'{{"amount": {amount}, "shop": "A"}}')


async def test_a_retired_template_is_unknown(db: Connection) -> None:
    await insert_template(db)
    await db.execute("update notification.templates set retired_at = now()")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await request_notification(db)


async def test_a_publisher_may_only_request(db: Connection) -> None:
    await insert_template(db)
    await db.execute("insert into pabal.service_sql_roles values ('minu_find', 'pabal_publisher')")
    async with db.transaction():
        await db.execute("set local role pabal_publisher")
        request_id = await request_notification(db)
    assert await db.fetchval("select count(*) from notification.requests where id = $1", request_id) == 1

    await db.execute("set role pabal_publisher")
    for statement in ("select 1 from notification.requests", "delete from notification.requests"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.execute(statement)
    await db.execute("set role authenticated")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await request_notification(db)


async def test_a_request_created_in_sql_notifies(db: Connection) -> None:
    await insert_template(db)
    payloads: list[object] = []

    def on_notify(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        payloads.append(payload)

    await db.add_listener("pabal", on_notify)
    await request_notification(db)
    await db.fetchval("select 1")  # notifications arrive before the next result
    await db.remove_listener("pabal", on_notify)
    assert payloads == ["notifications"]


async def test_attempts_are_append_only(db: Connection) -> None:
    await insert_template(db)
    request_id = await request_notification(db)
    insert_attempt = """
        insert into notification.attempts (request_id, lease, attempt, started_at, outcome, why)
        values ($1, $2, 1, now(), $3, $4)
    """
    await db.execute("set role service_role")
    await db.execute(insert_attempt, request_id, uuid4(), "unknown", "its lease ended")
    for statement in ("update notification.attempts set why = ''", "delete from notification.attempts"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.execute(statement)
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute(insert_attempt, request_id, uuid4(), "retry", None)
    await db.execute("delete from notification.requests where id = $1", request_id)
    assert await db.fetchval("select count(*) from notification.attempts") == 0


async def test_a_read_toast_is_seen_and_every_change_is_numbered(db: Connection) -> None:
    await insert_template(db)
    await db.execute("set role service_role")
    for _ in range(2):
        await db.execute(
            "insert into notification.toasts (id, recipient_id, category, criticality, locale, body)"
            " values ($1, '100', 'payment', 'normal', 'ko', '')",
            await request_notification(db),
        )
    first, second = [row[0] for row in await db.fetch("select seq from notification.toasts order by seq")]
    await db.execute("update notification.toasts set read_at = now() where seq = $1", first)
    row = await db.fetchrow("select seq, seen_at from notification.toasts where read_at is not null")
    assert row is not None
    assert row["seq"] > second
    assert row["seen_at"] is not None


async def test_tables_of_another_system_are_used_and_unchanged(server: Cluster) -> None:
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute("""
            create schema notification;
            create schema identity; create table identity.users (id uuid primary key, name text);
            create schema guild; create table guild.guilds (id uuid primary key, name text);
        """)
        before = await snapshot(conn)
        await apply_migrations(url)
        await conn.execute("insert into identity.users values (gen_random_uuid(), 'A')")
        await conn.execute("insert into notification.preferences (user_id) select id from identity.users")
        await revert_migrations(url)
        assert await snapshot(conn) == before
        assert await conn.fetchval("select name from identity.users") == "A"
