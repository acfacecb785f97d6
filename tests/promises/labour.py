"""A worker in a process of its own that says what it begins and never ends it: made to be killed."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pabal.core.log import configure_logging
from pabal.events.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.hub import DatabaseUrls, open_hub
from pabal.queue.outcome import DONE, Outcome
from pabal.queue.worker import ScheduledClaim, Worker, WorkerConfig
from pabal.settings import Settings


async def begin(event: ClaimedEvent) -> Outcome:
    sys.stdout.write(f"{event.id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
    return DONE


async def rota() -> list[ScheduledClaim[EventClaimFilter]]:
    return [ScheduledClaim(EventClaimFilter("minu_build"))]


async def main(work: str, direct: str, folder: str) -> None:
    configure_logging("warning", "json")  # to standard error: what it begins is all it says here
    settings = Settings(_env_file=None, data_dir=Path(folder))  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(work, direct)) as hub:
        pace = WorkerConfig(hold=timedelta(minutes=1))
        await Worker("labourer", LANE, hub.db, hub.doorbell, begin, rota, pace).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
