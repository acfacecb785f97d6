"""chancy: claims in batches and writes results once a second."""

import logging
from typing import Any

from chancy import Chancy, Queue, Worker, job

from bench.peers.stage import BATCH, PAYLOAD, Tally, enter, put_all, settings

RUN = settings(concurrency=100, connections=4)

tally = Tally(rows=0, seconds=0)


@job()
async def handle(*, text: str) -> None:
    tally.one()


def chancy_at(url: str) -> Chancy:
    quiet = logging.getLogger("chancy")
    quiet.setLevel(logging.ERROR)
    return Chancy(url, log=quiet, max_connection_pool_size=RUN["connections"])


class Peer:
    async def install(self, url: str) -> None:
        async with chancy_at(url) as chancy:
            await chancy.migrate()
            executor = Chancy.Executor.Async
            await chancy.declare(
                Queue("default", concurrency=RUN["concurrency"], executor=executor, eager_polling=True)
            )

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        async with chancy_at(url) as chancy:

            async def put(count: int) -> Any:
                jobs = [handle.job.with_kwargs(**PAYLOAD)] * count
                return [pushed async for pushed in chancy.push_many(jobs, batch_size=BATCH)]

            return await put_all(put, rows)

    async def drain(self, url: str, own: Tally) -> None:
        global tally  # noqa: PLW0603 chancy finds its handlers by their import path
        tally = own
        async with (
            chancy_at(url) as chancy,
            Worker(chancy, register_signal_handlers=False, shutdown_timeout=5) as worker,
        ):
            own.begin()
            if await own.over():
                await worker.flush()
                own.end()


if __name__ == "__main__":
    enter(Peer())
