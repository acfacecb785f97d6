"""The consumer of the sync client: the async one, on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

STOP_CHECK_INTERVAL = 0.1
"""Seconds between two looks at `stop` and at the end of the consumer."""


def run_until_stopped_in_thread(
    consume: Callable[[asyncio.Event], Coroutine[Any, Any, None]], stop: threading.Event | None
) -> None:
    """Run `consume` until it ends. Its event is set when `stop` is set or the caller is interrupted."""
    stop = stop or threading.Event()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    ended: Future[None] = Future()

    async def consume_until_stopped() -> None:
        stopping = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stopping))
        await consume(stopping)

    def work() -> None:
        consuming = consume_until_stopped()
        try:
            asyncio.run(consuming)
        except BaseException as error:  # noqa: BLE001 the caller gets every error
            ended.set_exception(error)
            if not started.done():  # there is no event loop
                consuming.close()
                started.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=work, name="pabal consumer", daemon=True).start()
    loop, stopping = started.result()
    try:
        while not ended.done() and not stop.wait(STOP_CHECK_INTERVAL):
            pass
    finally:  # also after Ctrl-C
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(stopping.set)
        wait([ended])
    ended.result()
