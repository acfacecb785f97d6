"""Failpoints: stop a hub in the middle of a path, at any suspension that the path really makes.

A victim is a hub whose tasks are all driven by this module. When the path reaches the chosen suspension, no task of the
victim makes another step and its database connections are aborted: for the rest of the world it was killed.
"""

import asyncio
import gc
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from types import coroutine
from typing import Any

from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings

VICTIM: "ContextVar[Victim | None]" = ContextVar("VICTIM", default=None)
IS_PATH: ContextVar[bool] = ContextVar("IS_PATH", default=False)
"""Whether a task belongs to the path. Tasks inherit it from the one that creates them, as a batcher's writer does."""


@dataclass(slots=True, eq=False)
class Victim:
    """A hub that may be stopped. `stop_at` is the number of the suspension, None to run to the end."""

    context: Context
    stop_at: int | None = None
    suspensions: int = 0
    on_stop: Callable[[], None] = lambda: None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    is_frozen: bool = False
    tasks: "set[asyncio.Task[Any]]" = field(default_factory=set["asyncio.Task[Any]"])

    def suspend(self) -> None:
        """Called at each suspension of the path."""
        if self.suspensions == self.stop_at:
            self.is_frozen = True
            self.on_stop()
            self.stopped.set()
        self.suspensions += 1

    async def run(self, path: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run the path until it ends or is stopped."""
        context = self.context.copy()
        context.run(IS_PATH.set, True)
        task = asyncio.create_task(path, context=context)
        stopped = asyncio.create_task(self.stopped.wait())
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return task

    async def clean_up(self) -> None:
        """Let all tasks end, after everything was checked."""
        self.is_frozen, self.stop_at = False, None
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@coroutine
def drive(inner: Coroutine[Any, Any, Any], victim: Victim, *, is_path: bool) -> Generator[Any, Any, Any]:
    """Forward every step of `inner`, unless its victim is frozen."""
    step: Callable[[], Any] = lambda: inner.send(None)  # noqa: E731
    while True:
        if victim.is_frozen:
            yield from wait_for_clean_up(victim)
            if inspect.getcoroutinestate(inner) == inspect.CORO_CREATED:
                inner.send(None)  # a coroutine that never began would not run its `finally`
            step = lambda: inner.throw(asyncio.CancelledError())  # noqa: E731
        try:
            awaited = step()
        except StopIteration as end:
            return end.value
        if is_path:
            victim.suspend()
            if victim.is_frozen:
                continue
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001 forwarded
            step = lambda error=error: inner.throw(error)  # noqa: E731
        else:
            step = lambda: inner.send(None)  # noqa: E731


def wait_for_clean_up(victim: Victim) -> Generator[Any, Any, None]:
    while victim.is_frozen:
        with suppress(asyncio.CancelledError):
            yield from asyncio.get_running_loop().create_future()


async def driven(inner: Coroutine[Any, Any, Any], victim: Victim, *, is_path: bool) -> Any:
    return await drive(inner, victim, is_path=is_path)


def create_driven_task(
    loop: asyncio.AbstractEventLoop, inner: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    """The task factory: tasks of a victim are driven, all others are as usual."""
    inherited = context or copy_context()
    victim = inherited.get(VICTIM)
    if victim is None:
        return asyncio.Task(inner, loop=loop, context=context)
    is_path = bool(inherited.get(IS_PATH, False))
    task = asyncio.Task(driven(inner, victim, is_path=is_path), loop=loop, context=context)
    victim.tasks.add(task)
    task.add_done_callback(victim.tasks.discard)
    return task


@contextmanager
def driving_tasks() -> Generator[None]:
    """Victims need this task factory. What their remains raise when they are cleaned up is of no interest."""
    loop = asyncio.get_running_loop()
    factory, on_exception = loop.get_task_factory(), loop.get_exception_handler()
    loop.set_task_factory(create_driven_task)  # pyright: ignore[reportArgumentType]
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        yield
        gc.collect()  # reports the futures that are still unread
    finally:
        loop.set_task_factory(factory)
        loop.set_exception_handler(on_exception)


@asynccontextmanager
async def open_victim(settings: Settings, urls: DatabaseUrls) -> AsyncGenerator[tuple[Victim, Hub]]:
    """Open a hub that can be stopped. It is cleaned up when the block ends."""
    context = copy_context()
    victim = Victim(context)
    context.run(VICTIM.set, victim)
    opened: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def live() -> None:
        async with open_hub(settings, urls) as hub:
            async with hub.db.autocommit():
                pass  # a connection is open before the path begins
            opened.set_result(hub)
            await closing.wait()

    task = asyncio.create_task(live(), context=context)
    await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    hub = opened.result()
    victim.on_stop = lambda: abort_connections(hub)
    try:
        yield victim, hub
    finally:
        closing.set()
        if victim.stopped.is_set():
            await victim.clean_up()
        else:
            await task


def abort_connections(hub: Hub) -> None:
    """Close the hub's sockets to the database without a farewell, as the kernel does for a killed process."""
    assert hub.db._pool is not None
    hub.db._pool.terminate()
