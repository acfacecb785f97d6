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
from pabal.client.hub import Handler as Theirs
from pabal.core.errors import Failed
from pabal.events.handle import Handler, Handlers
from pabal.events.lane import HeldEvent
from pabal.queue.outcome import DONE, Dead, Outcome, Retry, Snooze


def load(where: str, called: str | None = None) -> Handlers:
    """Import `module:name` as it is found from the working folder, and take its handlers.

    Programs of one service are told apart by what they are `called`, which is `module:name` if nothing else is said.
    """
    module, colon, name = where.partition(":")
    if not (module and colon and name):
        raise Failed(f"--app is module:name, such as shop.events:hub, not {where!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Failed(f"--app {where}: there is no module {error.name}") from None
    found = getattr(there, name, None)
    if found is None:
        raise Failed(f"--app {where}: {module} has no {name}")
    if not isinstance(found, client.Hub):
        raise Failed(f"--app {where}: {name} is a {type(found).__name__}, not a pabal.client.Hub")
    if not found.handlers:
        raise Failed(f"--app {where}: {name} has no handlers; write some with @{name}.on(…)")
    return Handlers(tuple(handler_of(each) for each in found.handlers), called or where)


def handler_of(theirs: Theirs) -> Handler:
    return Handler(
        theirs.event_types,
        theirs.service,
        runner(theirs.function),
        theirs.concurrency,
        timedelta(seconds=theirs.timeout),
    )


def runner(function: Callable[[client.Event], Any]) -> Callable[[HeldEvent], Awaitable[Outcome]]:
    """A function of theirs as the engine calls it: sync ones in a thread, what they say as an outcome."""
    awaits = inspect.iscoroutinefunction(function)

    async def run(item: HeldEvent) -> Outcome:
        event = event_of(item)
        try:
            said = await function(event) if awaits else await in_thread(function, event)
            if said is not None and inspect.isawaitable(said):  # an async function behind something else
                said = await said
        except (client.Retry, client.Dead, client.Snooze) as answer:
            said = answer
        return outcome_of(said)

    return run


async def in_thread(function: Callable[[client.Event], Any], event: client.Event) -> Any:
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


def outcome_of(said: Any) -> Outcome:
    if said is None:  # what nearly all of them say
        return DONE
    match said:
        case client.Retry():
            return Retry(said.why, None if said.after is None else timedelta(seconds=said.after))
        case client.Dead():
            return Dead(said.why)
        case client.Snooze():
            return Snooze(said.why, timedelta(seconds=said.after))
        case _:
            return DONE


def event_of(item: HeldEvent) -> client.Event:
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
