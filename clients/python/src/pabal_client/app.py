"""An app: handlers for `pabal work --app module:app`, and events and notifications in the transaction of your writes.

app = App("shop")

@app.on("order.*")
async def pay(event): ...

async with pool.acquire() as connection, connection.transaction():
    await connection.execute("insert into orders …")
    await app.publish(connection, "order.placed", {"id": 7}, target="billing")
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, Unpack
from uuid import UUID

import msgspec

from pabal_client.options import PublishOptions, RecipientType, SqlNotifyOptions, check_options
from pabal_client.transaction import (
    NOTIFY_PARAMETERS,
    PUBLISH_PARAMETERS,
    SqlCall,
    build_sql_call,
    fetch_id,
    fetch_id_sync,
)

ASYNC_CONCURRENCY, SYNC_CONCURRENCY = 100, 10
"""Events that a handler handles at once by default."""
MAX_SCHEDULE_STEPS, MAX_SCHEDULE_SECONDS = 20, 86_400

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[["Event"], Any])


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
        the publisher chose a number other than 3. By default an event is tried four times, with a backoff of seconds.
        A failing event keeps its place in its ordering key for the whole schedule; return Dead to let the next one go.
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
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> UUID:
        """Publish an event in the transaction of an asyncpg, psycopg or SQLAlchemy connection; return its id.

        For an SQLAlchemy session, pass `await session.connection()`. `source` is the app's service by default.
        """
        return await fetch_id(connection, self._publish_call(connection, event_type, payload, options))

    def publish_sync(
        self,
        connection: Any,
        event_type: str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> UUID:
        """Publish an event in the transaction of a sync psycopg or SQLAlchemy connection; return its id."""
        return fetch_id_sync(connection, self._publish_call(connection, event_type, payload, options))

    async def notify(
        self,
        connection: Any,
        recipient_type: RecipientType,
        recipient_id: str,
        template_key: str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[SqlNotifyOptions],
    ) -> UUID:
        """Request a notification in the transaction of an asyncpg, psycopg or SQLAlchemy connection; return its id.

        `payload` holds the variables of the template. `source` is the app's service by default.
        """
        call = self._notify_call(connection, recipient_type, recipient_id, template_key, payload, options)
        return await fetch_id(connection, call)

    def notify_sync(
        self,
        connection: Any,
        recipient_type: RecipientType,
        recipient_id: str,
        template_key: str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[SqlNotifyOptions],
    ) -> UUID:
        """Request a notification in the transaction of a sync psycopg or SQLAlchemy connection; return its id."""
        call = self._notify_call(connection, recipient_type, recipient_id, template_key, payload, options)
        return fetch_id_sync(connection, call)

    def _publish_call(
        self, connection: Any, event_type: str, payload: Mapping[str, Any] | None, options: PublishOptions
    ) -> SqlCall:
        check_options("publish", options, PublishOptions)
        values = {**options, "event_type": event_type, "source": self._service_name(options.get("source"))}
        return build_sql_call(connection, "pabal.publish", PUBLISH_PARAMETERS, values, payload)

    def _notify_call(
        self,
        connection: Any,
        recipient_type: str,
        recipient_id: str,
        template_key: str,
        payload: Mapping[str, Any] | None,
        options: SqlNotifyOptions,
    ) -> SqlCall:
        check_options("notify", options, SqlNotifyOptions)
        values = {
            **options,
            "recipient_type": recipient_type,
            "recipient_id": recipient_id,
            "template_key": template_key,
            "source_service": self._service_name(options.get("source")),
        }
        return build_sql_call(connection, "notification.request", NOTIFY_PARAMETERS, values, payload)

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
