"""Somebody's program: the handlers of `pabal work --app module:hub`."""

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

from pabal import client
from pabal.client.app import AppHandler as Theirs
from pabal.core.errors import SetupError
from pabal.events.handlers import EventHandler, EventHandlers
from pabal.events.lane import ClaimedEvent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze


def load_handlers(app_path: str, program: str | None = None) -> EventHandlers:
    """Import `module:name` as it is found from the working folder, and take its handlers.

    Programs of one service are told apart by what they are `called`, which is `module:name` if nothing else is said.
    """
    module, colon, name = app_path.partition(":")
    if not (module and colon and name):
        raise SetupError(f"--app is module:name, such as shop.events:hub, not {app_path!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SetupError(f"--app {app_path}: there is no module {error.name}") from None
    found = getattr(there, name, None)
    if found is None:
        raise SetupError(f"--app {app_path}: {module} has no {name}")
    if not isinstance(found, client.App):
        raise SetupError(f"--app {app_path}: {name} is a {type(found).__name__}, not a pabal.client.Hub")
    if not found.handlers:
        raise SetupError(f"--app {app_path}: {name} has no handlers; write some with @{name}.on(…)")
    return EventHandlers(tuple(engine_handler(each) for each in found.handlers), program or app_path)


def engine_handler(handler: Theirs) -> EventHandler:
    return EventHandler(
        handler.event_types,
        handler.service,
        handler_runner(handler.function),
        handler.concurrency,
        timedelta(seconds=handler.timeout),
    )


def handler_runner(function: Callable[[client.Event], Any]) -> Callable[[ClaimedEvent], Awaitable[Outcome]]:
    """A function of theirs as the engine calls it: sync ones in a thread, what they say as an outcome."""
    awaits = inspect.iscoroutinefunction(function)

    async def run(item: ClaimedEvent) -> Outcome:
        event = client_event(item)
        try:
            said = await function(event) if awaits else await call_in_thread(function, event)
            if said is not None and inspect.isawaitable(said):  # an async function behind something else
                said = await said
        except (client.Retry, client.Dead, client.Snooze) as answer:
            said = answer
        return engine_outcome(said)

    return run


async def call_in_thread(function: Callable[[client.Event], Any], event: client.Event) -> Any:
    """Call it in a thread of its own: as many as there are hands, and none that a stopping worker must wait for.

    One that takes too long cannot be stopped: it goes on, and nobody hears what it says.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(said: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((said, error))

    def work() -> None:
        try:
            said, error = function(event), None
        except BaseException as failure:  # noqa: BLE001 whatever it is, it is the handler's answer
            said, error = None, failure
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, said, error)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), name="handler", daemon=True).start()
    said, error = await answer
    if error is not None:
        raise error
    return said


def engine_outcome(result: Any) -> Outcome:
    if result is None:  # what nearly all of them say
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
    return client.Event(
        id=item.id,
        origin_id=item.origin_id,
        event_type=item.event_type,
        source_service=item.source_service,
        target_service=item.target_service,
        payload=item.payload,
        attempt=item.attempt,
        created_at=item.created_at,
        correlation_id=item.correlation_id,
        traceparent=item.traceparent,
    )
