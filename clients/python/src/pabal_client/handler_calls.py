"""Calls a handler: a coroutine on the event loop, a plain function in a thread."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

ArgumentT = TypeVar("ArgumentT")


async def call_handler(function: Callable[[ArgumentT], Any], argument: ArgumentT, threads: Executor) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    result = await loop.run_in_executor(threads, lambda: context.run(call_plainly, function, argument))
    return await result if inspect.isawaitable(result) else result


def call_plainly(function: Callable[[ArgumentT], Any], argument: ArgumentT) -> Any:
    """Call a function in a thread. A future cannot carry StopIteration: its task would wait for ever."""
    try:
        return function(argument)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
