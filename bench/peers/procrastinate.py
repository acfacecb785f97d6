"""procrastinate: every job is fetched and finished by a statement of its own."""

import asyncio

from procrastinate import App, PsycopgConnector

from bench.peers.stage import PAYLOAD, Tally, enter, put_all, settings

RUN = settings(hands=20)


def app_at(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=RUN["hands"]))


class Procrastinate:
    async def install(self, url: str) -> None:
        async with app_at(url).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def fill(self, url: str, rows: int) -> float:
        async with app_at(url).open_async() as app:
            job = app.configure_task("job")
            return await put_all(lambda count: job.batch_defer_async(*[PAYLOAD] * count), rows)

    async def drain(self, url: str, tally: Tally) -> None:
        async with app_at(url).open_async() as app:

            @app.task(name="job")
            async def job(text: str) -> None:
                tally.one()

            tally.begin()
            running = asyncio.create_task(
                app.run_worker_async(concurrency=RUN["hands"], wait=False, install_signal_handlers=False)
            )
            await tally.over()
            running.cancel()  # gracefully: what it began it finishes
            await asyncio.gather(running, return_exceptions=True)
            tally.end()


if __name__ == "__main__":
    enter(Procrastinate())
