"""An app: handlers for `pabal work --app module:app`, and events published in the transaction of your own writes.

app = App("shop")

@app.on("order.*")
async def pay(event): ...

async with pool.acquire() as connection, connection.transaction():
    await connection.execute("insert into orders …")
    await app.publish(connection, "order.placed", {"id": 7}, target="billing")
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

ASYNC_CONCURRENCY, SYNC_CONCURRENCY = 100, 10
"""Events that a handler handles at once by default."""
MAX_SCHEDULE_STEPS, MAX_SCHEDULE_SECONDS = 20, 86_400

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
"""The parameters of pabal.publish. The payload is sent as text: drivers differ in how they encode jsonb."""


class Event(msgspec.Struct, frozen=True):
    """An event for a handler. Deduplicate by `origin_id`, which is the same for every delivery of the event."""

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
    """A function and the events it handles."""

    event_types: tuple[str, ...]
    service: str
    function: Callable[[Event], Any]
    concurrency: int
    timeout: float
    retry_schedule: tuple[int, ...] | None = None


class App:
    """The handlers of a program, and its way to publish. `service` is the default for both."""

    def __init__(self, service: str | None = None) -> None:
        self.service = service
        self.handlers: list[AppHandler] = []

    def on(
        self,
        *event_types: str,
        service: str | None = None,
        concurrency: int | None = None,
        timeout: float = 60.0,
        retry_schedule: Sequence[int] | None = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register a function, sync or async, for events of these types (`*` matches anything) to `service`.

        It handles up to `concurrency` events at once: by default 100 if it is async, and 10 in threads if it is sync.

        The event is done when the function returns. Return or raise Retry, Dead or Snooze for another outcome; any
        other exception is a retry.

        `retry_schedule` are the seconds before each retry, such as [5, 30, 120, 600]: as many retries as it has, unless
        the publisher chose a number. By default an event is tried four times, with a backoff of seconds.
        """
        if not event_types:
            raise TypeError("on() needs at least one event type, such as 'order.*'")
        schedule = check_schedule(retry_schedule)

        def register(function: HandlerFunction) -> HandlerFunction:
            slots = default_concurrency(function) if concurrency is None else concurrency
            self.handlers.append(
                AppHandler(event_types, self._service_name(service), function, slots, timeout, schedule)
            )
            return function

        return register

    async def publish(
        self,
        connection: Any,
        event_type: str,
        payload: dict[str, Any] | None = None,
        *,
        source: str | None = None,
        **options: Any,
    ) -> UUID:
        """Publish an event in the transaction of an asyncpg, psycopg or SQLAlchemy connection.

        For an SQLAlchemy session, pass `await session.connection()`.

        Options: target, priority, max_retries, deliver_at, expires_at, idempotency_key, ordering_key, correlation_id,
        traceparent.
        """
        statement, values = self._publish_statement(connection, event_type, payload, source, options)
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
        **options: Any,
    ) -> UUID:
        """Publish an event in the transaction of a sync psycopg or SQLAlchemy connection. Options as for `publish`."""
        statement, values = self._publish_statement(connection, event_type, payload, source, options)
        if hasattr(connection, "exec_driver_sql"):
            return as_uuid(connection.exec_driver_sql(statement, values).fetchone()[0])
        with connection.cursor(row_factory=tuple_rows) as cursor:
            cursor.execute(statement, values)
            return as_uuid(cursor.fetchone()[0])

    def _publish_statement(
        self,
        connection: Any,
        event_type: str,
        payload: dict[str, Any] | None,
        source: str | None,
        options: dict[str, Any],
    ) -> tuple[str, tuple[Any, ...]]:
        text = msgspec.json.encode(payload or {}).decode()
        values = {"source": self._service_name(source), "event_type": event_type, "payload": text, **options}
        if unknown := values.keys() - {name for name, _ in PUBLISH_ARGUMENTS}:
            raise TypeError(f"publish() got unexpected arguments: {', '.join(sorted(unknown))}")
        is_numbered = uses_numbered_parameters(connection)
        parameters = [(name, kind) for name, kind in PUBLISH_ARGUMENTS if values.get(name) is not None]
        placeholders = (f"${number}" if is_numbered else "%s" for number in range(1, len(parameters) + 1))
        arguments = ", ".join(
            f"{name} => {'(' if ')' in kind else ''}{placeholder}::{kind}"
            for (name, kind), placeholder in zip(parameters, placeholders, strict=True)
        )
        return f"select pabal.publish({arguments})", tuple(values[name] for name, _ in parameters)

    def _service_name(self, service: str | None) -> str:
        name = service or self.service
        if name is None:
            raise TypeError("no service: use App('shop'), or pass service= or source=")
        return name


def default_concurrency(function: Callable[..., Any]) -> int:
    """A waiting coroutine costs little; a sync handler has a thread for each event."""
    return ASYNC_CONCURRENCY if inspect.iscoroutinefunction(function) else SYNC_CONCURRENCY


def check_schedule(schedule: Sequence[int] | None) -> tuple[int, ...] | None:
    """The schedule as subscriptions have it: 1 to 20 delays of 1 to 86400 seconds."""
    if schedule is None:
        return None
    if not 1 <= len(schedule) <= MAX_SCHEDULE_STEPS or not all(0 < step <= MAX_SCHEDULE_SECONDS for step in schedule):
        raise ValueError("retry_schedule: must be 1 to 20 delays of 1 to 86400 seconds")
    return tuple(schedule)


def tuple_rows(_cursor: Any) -> type[tuple[Any, ...]]:
    """A row factory for psycopg: tuples, independent of the connection's row factory."""
    return tuple


def uses_numbered_parameters(connection: Any) -> bool:
    """Whether parameters are written $1 (asyncpg); psycopg and most dialects use %s."""
    dialect = getattr(connection, "dialect", None)
    return "dollar" in dialect.paramstyle if dialect else hasattr(connection, "fetchval")


def as_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))
