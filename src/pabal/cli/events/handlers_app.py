"""Load the event handlers of `pabal work --app module:hub`."""

import asyncio
import contextvars
import importlib
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pabal_client as client
from pabal.core.errors import SetupError
from pabal.events.consume.handlers import EventHandler, EventHandlers
from pabal.events.consume.lane import ClaimedEvent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze
from pabal_client.app import AppHandler


def load_handlers(app_path: str, program: str | None = None) -> EventHandlers:
    """Import `module:name` from the working directory and return its handlers.

    `program` tells apart several programs of one service. Default: `module:name`.
    """
    module, colon, name = app_path.partition(":")
    if not (module and colon and name):
        raise SetupError(f"--app must be module:name, such as shop.events:hub, not {app_path!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SetupError(f"--app {app_path}: no module named {error.name}") from None
    app = getattr(imported, name, None)
    if app is None:
        raise SetupError(f"--app {app_path}: {module} has no {name}")
    if not isinstance(app, client.App):
        raise SetupError(f"--app {app_path}: {name} is a {type(app).__name__}, not a pabal_client.App")
    if not app.handlers:
        raise SetupError(f"--app {app_path}: {name} has no handlers; add some with @{name}.on(…)")
    return EventHandlers(tuple(engine_handler(handler) for handler in app.handlers), program or app_path)


def engine_handler(handler: AppHandler) -> EventHandler:
    return EventHandler(
        handler.event_types,
        handler.service,
        handler_runner(handler.function),
        handler.concurrency,
        timedelta(seconds=handler.timeout),
        handler.retry_schedule,
    )


def handler_runner(function: Callable[[client.Event], Any]) -> Callable[[ClaimedEvent], Awaitable[Outcome]]:
    """Wrap a handler function: a sync one runs in a thread, and its result becomes an outcome."""
    is_async = inspect.iscoroutinefunction(function)

    async def run(item: ClaimedEvent) -> Outcome:
        event = client_event(item)
        try:
            result = await function(event) if is_async else await call_in_thread(function, event)
            if result is not None and inspect.isawaitable(result):  # an async function behind a decorator
                result = await result
        except (client.Retry, client.Dead, client.Snooze) as outcome:
            result = outcome
        return engine_outcome(result)

    return run


async def call_in_thread(function: Callable[[client.Event], Any], event: client.Event) -> Any:
    """Call a sync handler in a daemon thread, so that a worker that stops does not wait for it.

    A thread cannot be cancelled: after a timeout it runs on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((result, error))

    def work() -> None:
        try:
            result, error = function(event), None
        except BaseException as failure:  # noqa: BLE001 every exception is the handler's result
            result, error = None, failure
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), name="handler", daemon=True).start()
    result, error = await future
    if error is not None:
        raise error
    return result


def engine_outcome(result: Any) -> Outcome:
    if result is None:  # the common case
        return DONE
    match result:
        case client.Retry():
            return Retry(result.error, None if result.delay is None else timedelta(seconds=result.delay))
        case client.Dead():
            return Dead(result.error)
        case client.Snooze():
            return Snooze(result.error, timedelta(seconds=result.delay))
        case _:
            return DONE


def client_event(item: ClaimedEvent) -> client.Event:
    return client.Event(  # in the order of its fields: a worker creates tens of thousands per second
        item.id,
        item.origin_id,
        item.event_type,
        item.source_service,
        item.target_service,
        item.payload,
        item.retry_count + 1,
        item.created_at,
        item.correlation_id,
        item.traceparent,
    )
