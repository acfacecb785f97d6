"""awa: an engine in Rust with handlers in Python; ready jobs and what ended go to tables that are turned over whole."""

from dataclasses import dataclass

import awa

from bench.peers.stage import PAYLOAD, Tally, enter, put_all

HANDS = 2000
QUEUE = {"name": "default", "max_workers": HANDS, "claimers": 4, "claim_batch_size": 500}


@dataclass
class Job:
    text: str


class Awa:
    async def install(self, url: str) -> None:
        async with awa.AsyncClient(url) as client:
            await client.migrate()
            await client.install_queue_storage()

    async def fill(self, url: str, rows: int) -> float:
        async with awa.AsyncClient(url) as client:
            return await put_all(lambda count: client.enqueue_many_copy([Job(**PAYLOAD)] * count), rows)

    async def drain(self, url: str, tally: Tally) -> None:
        client = awa.AsyncClient(url, max_connections=16)

        @client.task(Job)
        async def handle(_job: object) -> None:
            tally.one()

        tally.begin()
        await client.start([QUEUE], poll_interval_ms=10)
        await tally.over()
        tally.end()  # what its engine still writes down is not counted against it: nobody outside sees when it has
        await client.shutdown()


if __name__ == "__main__":
    enter(Awa())
