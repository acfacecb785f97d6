import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from functools import cache
from pathlib import Path

import pytest

from support.adopted import create_hub_database
from support.clusters import Cluster, Connection, cluster_starter, open_connection, postgres_bin_dir

SEEDS = Path(__file__).with_name("seeds")
EXISTING_ROWS = Path(__file__).with_name("existing") / "rows.sql"


@pytest.fixture(scope="session")
def servers() -> Generator[Callable[[Path], Cluster]]:
    with cluster_starter() as start_server:
        yield start_server


@pytest.fixture(scope="session", params=["embedded", "pg15"])
def server(request: pytest.FixtureRequest, servers: Callable[[Path], Cluster]) -> Cluster:
    """A server of the newest and of the oldest version Pabal runs on."""
    bin_dir = postgres_bin_dir(request.param)
    if bin_dir is None:
        pytest.skip(f"{request.param} is not installed")
    return servers(bin_dir)


@pytest.fixture(scope="session")
def template(server: Cluster) -> str:
    return migrated_template(server)


@cache
def migrated_template(server: Cluster) -> str:
    """A migrated database to copy: copying takes a tenth of the time of migrating."""

    async def migrate() -> str:
        url = await server.fresh_database()
        await create_hub_database(url)
        return url.rpartition("/")[2]

    return asyncio.run(migrate())


@pytest.fixture
async def migrated(server: Cluster, template: str) -> AsyncGenerator[str]:
    url = await server.fresh_database(template)
    yield url
    await server.drop(url)


@pytest.fixture
async def db(migrated: str) -> AsyncGenerator[Connection]:
    """A superuser's connection to a migrated database for this test alone."""
    async with open_connection(migrated) as conn:
        yield conn


@pytest.fixture
async def seeded(server: Cluster, request: pytest.FixtureRequest) -> AsyncGenerator[Connection]:
    """A database created by the statements of a seed; `@pytest.mark.parametrize("seeded", ["000"], indirect=True)`."""
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        await conn.execute((SEEDS / "before.sql").read_text("utf-8"))
        await conn.execute((SEEDS / f"{request.param}.sql").read_text("utf-8"))
        yield conn
    await server.drop(url)


@pytest.fixture
async def existing(server: Cluster) -> AsyncGenerator[str]:
    """A database made by the specification's own statements, with rows in every table."""
    url = await server.fresh_database()
    async with open_connection(url) as conn:
        for name in ("before", "000", "001", "002"):
            await conn.execute((SEEDS / f"{name}.sql").read_text("utf-8"))
        await conn.execute(EXISTING_ROWS.read_text("utf-8"))
    yield url
    await server.drop(url)
