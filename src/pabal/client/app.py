"""A hub in one's own code: handlers for `pabal work --app module:hub`, and events published with one's own writes.

hub = Hub("shop")

@hub.on("order.*")
async def pay(event): ...

async with pool.acquire() as conn, conn.transaction():
    await conn.execute("insert into orders …")
    await hub.publish(conn, "order.placed", {"id": 7}, target="billing")
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[["Event"], Any])

PUBLISH_ARGUMENTS = (
    ("source", "text"),
    ("event_type", "text"),
    ("payload", "text)::jsonb"),
    ("target", "text"),
    ("priority", "integer"),
    ("max_retries", "integer"),
    ("deliver_at", "timestamptz"),
    ("expires_at", "timestamptz"),
    ("idempotency_key", "text"),
    ("ordering_key", "text"),
    ("correlation_id", "text"),
    ("traceparent", "text"),
)
"""What pabal.publish takes, in its order. The payload goes as text, whatever the connection makes of jsonb."""


class Event(msgspec.Struct, frozen=True):
    """An event in a handler's hands. `origin_id` stays the same however often it is delivered: deduplicate by it."""

    id: UUID
    origin_id: UUID
    event_type: str
    source_service: str
    target_service: str
    payload: dict[str, Any]
    attempt: int
    created_at: datetime
    correlation_id: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class AppHandler:
    """A function and the events it is for."""

    event_types: tuple[str, ...]
    service: str
    function: Callable[[Event], Any]
    concurrency: int
    timeout: float


class App:
    """The handlers of one program, and its way to publish. `service` is who it is, unless a call says otherwise."""

    def __init__(self, service: str | None = None) -> None:
        self.service = service
        self.handlers: list[AppHandler] = []

    def on(
        self, *event_types: str, service: str | None = None, concurrency: int = 10, timeout: float = 60.0
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Handle events of these types (`*` stands for anything) that are for `service`; sync or async.

        Return for done; return or raise Retry, Dead or Snooze for what they say; anything else raised is a retry.
        """
        if not event_types:
            raise TypeError("on() needs at least one event type, such as 'order.*'")

        def keep(function: HandlerFunction) -> HandlerFunction:
            self.handlers.append(AppHandler(event_types, self._service_name(service), function, concurrency, timeout))
            return function

        return keep

    async def publish(
        self,
        connection: Any,
        event_type: str,
        payload: dict[str, Any] | None = None,
        *,
        source: str | None = None,
        **more: Any,
    ) -> UUID:
        """Publish in the transaction of an asyncpg, psycopg or SQLAlchemy connection: with it, or not at all.

        Of an SQLAlchemy session, give `await session.connection()`.

        `more` is what pabal.publish takes besides: target, priority, max_retries, deliver_at, expires_at,
        idempotency_key, ordering_key, correlation_id, traceparent.
        """
        statement, values = self._publish_statement(connection, event_type, payload, source, more)
        if hasattr(connection, "fetchval"):
            return as_uuid(await connection.fetchval(statement, *values))
        if hasattr(connection, "exec_driver_sql"):
            return as_uuid((await connection.exec_driver_sql(statement, values)).fetchone()[0])
        async with connection.cursor(row_factory=tuple_rows) as cursor:
            await cursor.execute(statement, values)
            return as_uuid((await cursor.fetchone())[0])

    def publish_sync(
        self,
        connection: Any,
        event_type: str,
        payload: dict[str, Any] | None = None,
        *,
        source: str | None = None,
        **more: Any,
    ) -> UUID:
        """Publish in the transaction of a connection that does not await: psycopg's or SQLAlchemy's."""
        statement, values = self._publish_statement(connection, event_type, payload, source, more)
        if hasattr(connection, "exec_driver_sql"):
            return as_uuid(connection.exec_driver_sql(statement, values).fetchone()[0])
        with connection.cursor(row_factory=tuple_rows) as cursor:
            cursor.execute(statement, values)
            return as_uuid(cursor.fetchone()[0])

    def _publish_statement(
        self, connection: Any, event_type: str, payload: dict[str, Any] | None, source: str | None, more: dict[str, Any]
    ) -> tuple[str, tuple[Any, ...]]:
        text = msgspec.json.encode(payload or {}).decode()
        given = {"source": self._service_name(source), "event_type": event_type, "payload": text, **more}
        if strange := given.keys() - {name for name, _ in PUBLISH_ARGUMENTS}:
            raise TypeError(f"publish() does not take {', '.join(sorted(strange))}")
        numbered = uses_numbered_parameters(connection)
        said = [(name, kind) for name, kind in PUBLISH_ARGUMENTS if given.get(name) is not None]
        places = (f"${place}" if numbered else "%s" for place in range(1, len(said) + 1))
        called = ", ".join(
            f"{name} => {'(' if ')' in kind else ''}{place}::{kind}"
            for (name, kind), place in zip(said, places, strict=True)
        )
        return f"select pabal.publish({called})", tuple(given[name] for name, _ in said)

    def _service_name(self, service: str | None) -> str:
        chosen = service or self.service
        if chosen is None:
            raise TypeError("say which service: Hub('shop'), or service=… / source=…")
        return chosen


def tuple_rows(_cursor: Any) -> type[tuple[Any, ...]]:
    """Rows as psycopg makes them by itself, whatever the connection was told to make of them."""
    return tuple


def uses_numbered_parameters(connection: Any) -> bool:
    """Whether parameters are written $1; psycopg and most dialects write %s."""
    dialect = getattr(connection, "dialect", None)
    return "dollar" in dialect.paramstyle if dialect else hasattr(connection, "fetchval")


def as_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))
