"""Publish and notify in the caller's own transaction: one call of an SQL function of the hub.

Works with asyncpg, psycopg and SQLAlchemy without importing any of them.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

SqlCall = tuple[str, tuple[Any, ...]]
"""A statement and its parameters."""

JSON_TEXT = "text)::jsonb"
"""The payload is sent as text: drivers differ in how they encode jsonb."""

PUBLISH_PARAMETERS = {
    "source": "text",
    "event_type": "text",
    "payload": JSON_TEXT,
    "target": "text",
    "priority": "integer",
    "max_retries": "integer",
    "deliver_at": "timestamptz",
    "expires_at": "timestamptz",
    "idempotency_key": "text",
    "ordering_key": "text",
    "correlation_id": "text",
    "traceparent": "text",
}
"""The parameters of pabal.publish and their types."""

NOTIFY_PARAMETERS = {
    "recipient_type": "text",
    "recipient_id": "text",
    "template_key": "text",
    "payload": JSON_TEXT,
    "guild_id": "uuid",
    "scheduled_at": "timestamptz",
    "expires_at": "timestamptz",
    "dedupe_key": "text",
    "locale": "text",
    "incident": "text",
    "event_id": "uuid",
    "source_service": "text",
}
"""The parameters of notification.request and their types."""


def build_sql_call(
    connection: Any, function: str, parameters: Mapping[str, str], values: Mapping[str, Any], payload: Any
) -> SqlCall:
    """Build `select function(name => $1::type, …)` for the values that are not None."""
    values = {**values, "payload": msgspec.json.encode(payload or {}).decode()}
    given = [(name, kind) for name, kind in parameters.items() if values.get(name) is not None]
    is_numbered = uses_numbered_parameters(connection)
    placeholders = (f"${number}" if is_numbered else "%s" for number in range(1, len(given) + 1))
    arguments = ", ".join(
        f"{name} => {'(' if ')' in kind else ''}{placeholder}::{kind}"
        for (name, kind), placeholder in zip(given, placeholders, strict=True)
    )
    return f"select {function}({arguments})", tuple(values[name] for name, _ in given)


async def fetch_id(connection: Any, call: SqlCall) -> UUID:
    """Run the call on an asyncpg, async psycopg or async SQLAlchemy connection; return the id."""
    statement, values = call
    if hasattr(connection, "fetchval"):
        return as_uuid(await connection.fetchval(statement, *values))
    if hasattr(connection, "exec_driver_sql"):
        return as_uuid((await connection.exec_driver_sql(statement, values)).fetchone()[0])
    check_connection(connection)
    async with connection.cursor(row_factory=tuple_rows) as cursor:
        await cursor.execute(statement, values)
        return as_uuid((await cursor.fetchone())[0])


def fetch_id_sync(connection: Any, call: SqlCall) -> UUID:
    """Run the call on a sync psycopg or SQLAlchemy connection; return the id."""
    statement, values = call
    if hasattr(connection, "exec_driver_sql"):
        return as_uuid(connection.exec_driver_sql(statement, values).fetchone()[0])
    check_connection(connection)
    with connection.cursor(row_factory=tuple_rows) as cursor:
        cursor.execute(statement, values)
        return as_uuid(cursor.fetchone()[0])


def check_connection(connection: Any) -> None:
    if not hasattr(connection, "cursor"):
        name = type(connection).__name__
        raise TypeError(
            f"{name} is no connection of asyncpg, psycopg or SQLAlchemy; if it is a session of SQLAlchemy, pass "
            "session.connection(), with await for an AsyncSession"
        )


def tuple_rows(_cursor: Any) -> type[tuple[Any, ...]]:
    """A row factory for psycopg: tuples, independent of the connection's row factory."""
    return tuple


def uses_numbered_parameters(connection: Any) -> bool:
    """Whether parameters are written $1 (asyncpg); psycopg and most dialects use %s."""
    dialect = getattr(connection, "dialect", None)
    return "dollar" in dialect.paramstyle if dialect else hasattr(connection, "fetchval")


def as_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))
