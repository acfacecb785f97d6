"""A consumer for a steady rate of events: `pabal work` with a handler that records how old each event is.

python -m bench.steady URL EVENTS SECONDS
"""

import asyncio
import gc
import json
import os
import signal
import sys
import time

import uvloop

from bench.shop import SERVICE
from pabal.cli import GC_THRESHOLDS
from pabal.cli.events.handlers_app import engine_handler
from pabal.cli.hub.run import run_until_stopped
from pabal.core.log import configure_logging
from pabal.events.consume.handlers import EventHandlers
from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal_client import App, Event


async def consume(url: str, events: int, seconds: float) -> dict[str, float]:
    app = App(SERVICE)
    ages: list[float] = []
    finished = asyncio.Event()

    @app.on("steady.*")
    async def handle(event: Event) -> None:
        ages.append(time.time() - event.payload["at"])
        if len(ages) >= events:
            finished.set()

    async def stop_when_finished() -> None:
        try:
            async with asyncio.timeout(seconds):
                await finished.wait()
        except TimeoutError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    settings = Settings(_env_file=None, log_level="error")  # pyright: ignore[reportCallIssue]
    configure_logging(settings.log_level, settings.log_format)
    handlers = EventHandlers(tuple(engine_handler(handler) for handler in app.handlers), "bench.steady")
    async with open_hub(settings, DatabaseUrls(url, None)) as hub:
        async with hub.transaction() as tx:
            await handlers.subscribe_services(tx)
        print("ready", flush=True)
        used = time.process_time()
        stopping = asyncio.create_task(stop_when_finished())
        await run_until_stopped(hub, None, run_workers=True, handlers=handlers)
        await stopping
        used = time.process_time() - used
    ages.sort()
    return {
        "events": len(ages),
        "p50": ages[len(ages) // 2] if ages else 0.0,
        "p99": ages[int(len(ages) * 0.99)] if ages else 0.0,
        "used": used,
    }


def main() -> None:
    url, events, seconds = sys.argv[1:]
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as the command does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(consume(url, int(events), float(seconds)))))


if __name__ == "__main__":
    main()
