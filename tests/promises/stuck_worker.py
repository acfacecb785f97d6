"""A worker process that prints each event it starts and never finishes, for tests that kill it."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pabal.core.log import configure_logging
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.hub import DatabaseUrls, open_hub
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import ScheduledClaim, Worker, WorkerConfig
from pabal.settings import Settings


async def start_and_wait(event: ClaimedEvent) -> Outcome:
    sys.stdout.write(f"{event.id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
    return DONE


async def schedule() -> list[ScheduledClaim[EventClaimFilter]]:
    return [ScheduledClaim(EventClaimFilter("minu_build"))]


async def main(main_url: str, direct_url: str, folder: str) -> None:
    configure_logging("warning", "json")  # to standard error: standard output has only the events
    settings = Settings(_env_file=None, data_dir=Path(folder))  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(main_url, direct_url)) as hub:
        config = WorkerConfig(hold=timedelta(minutes=1))
        await Worker("stuck", LANE, hub.db, hub.doorbell, start_and_wait, schedule, config).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
