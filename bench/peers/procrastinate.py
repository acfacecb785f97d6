"""procrastinate: every job is fetched and finished by a statement of its own."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import psycopg
from procrastinate import App, PsycopgConnector

from bench.peers.stage import (
    INSERT_ORDER,
    PAYLOAD,
    Tally,
    commit_repeatedly,
    enter,
    put_all,
    put_on_demand,
    report_age,
    settings,
    timed_payload,
)

RUN = settings(concurrency=20)
DEFER_JOB = """
select unnest(procrastinate_defer_jobs_v1(
  array[row('default', 'job', 0, null, null, %s::jsonb, null)::procrastinate_job_to_defer_v1]
))
"""
"""Its own function, on the caller's connection."""


def app_at(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=RUN["concurrency"]))


class Procrastinate:
    async def install(self, url: str) -> None:
        async with app_at(url).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def fill(self, url: str, rows: int) -> dict[str, float]:
        async with app_at(url).open_async() as app:
            job = app.configure_task("job")
            return await put_all(lambda count: job.batch_defer_async(*[PAYLOAD] * count), rows)

    async def transact(self, url: str, connections: int, seconds: float) -> dict[str, float]:
        async def connect() -> Callable[[], Awaitable[object]]:
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)

            async def commit() -> None:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER)
                    await connection.execute(DEFER_JOB, [json.dumps(PAYLOAD)])

            return commit

        return await commit_repeatedly([await connect() for _ in range(connections)], seconds)

    async def publish(self, url: str) -> None:
        async with app_at(url).open_async() as app:
            job = app.configure_task("job")
            await put_on_demand(lambda: job.defer_async(**timed_payload()))

    async def consume(self, url: str) -> None:
        async with app_at(url).open_async() as app:

            @app.task(name="job")
            async def job(**payload: float) -> None:
                report_age(payload)

            await app.run_worker_async(concurrency=RUN["concurrency"])

    async def drain(self, url: str, tally: Tally) -> None:
        async with app_at(url).open_async() as app:

            @app.task(name="job")
            async def job(text: str) -> None:
                tally.one()

            app.job_manager.fetch_job = tally.begin_with(app.job_manager.fetch_job)
            running = asyncio.create_task(
                app.run_worker_async(concurrency=RUN["concurrency"], wait=False, install_signal_handlers=False)
            )
            await tally.over()
            running.cancel()  # it finishes the jobs that it has started
            await asyncio.gather(running, return_exceptions=True)
            tally.end()


if __name__ == "__main__":
    enter(Procrastinate())
