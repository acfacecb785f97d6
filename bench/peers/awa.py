"""awa: an engine in Rust with handlers in Python; it appends ready and finished jobs to tables that it drops whole."""

from dataclasses import dataclass

import awa

from bench.peers.stage import PAYLOAD, Tally, enter, put_all, settings

RUN = settings(concurrency=10_000, loops=2, batch_size=1000, connections=16, poll=10)
QUEUE = {
    "name": "default",
    "max_workers": RUN["concurrency"],
    "claimers": RUN["loops"],
    "claim_batch_size": RUN["batch_size"],
}


@dataclass
class Job:
    text: str


class Awa:
    async def install(self, url: str) -> None:
        async with awa.AsyncClient(url) as client:
            await client.migrate()
            await client.install_queue_storage()

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        async with awa.AsyncClient(url) as client:
            return await put_all(lambda count: client.enqueue_many_copy([Job(**PAYLOAD)] * count), rows)

    async def drain(self, url: str, tally: Tally) -> None:
        client = awa.AsyncClient(url, max_connections=RUN["connections"])

        @client.task(Job)
        async def handle(_job: object) -> None:
            tally.one()

        tally.begin()
        await client.start([QUEUE], poll_interval_ms=RUN["poll"])
        await tally.over()
        tally.end()  # later writes of its engine are not measured: they are not visible from outside
        await client.shutdown()


if __name__ == "__main__":
    enter(Awa())
