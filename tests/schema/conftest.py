from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest

from support.adopted import create_hub_database
from support.clusters import Cluster, Connection, cluster_starter, open_connection, postgres_bin_dir

FOLDER = Path(__file__).parent


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


@pytest.fixture
async def migrated(server: Cluster) -> AsyncGenerator[str]:
    url = await server.prepared_database("migrated", create_hub_database)
    yield url
    await server.drop(url)


@pytest.fixture
async def db(migrated: str) -> AsyncGenerator[Connection]:
    """A superuser's connection to a migrated database for this test alone."""
    async with open_connection(migrated) as conn:
        yield conn


async def run_files(url: str, *names: str) -> None:
    """Run the specification's statements."""
    async with open_connection(url) as conn:
        for name in names:
            await conn.execute((FOLDER / f"{name}.sql").read_text("utf-8"))


@pytest.fixture
async def seeded(server: Cluster, request: pytest.FixtureRequest) -> AsyncGenerator[Connection]:
    """A database created by the statements of a seed; `@pytest.mark.parametrize("seeded", ["000"], indirect=True)`."""
    files = ("seeds/before", f"seeds/{request.param}")
    url = await server.prepared_database(f"seed {request.param}", lambda url: run_files(url, *files))
    async with open_connection(url) as conn:
        yield conn
    await server.drop(url)


@pytest.fixture
async def existing(server: Cluster) -> AsyncGenerator[str]:
    """A database made by the specification's own statements, with rows in every table."""
    files = ("seeds/before", "seeds/000", "seeds/001", "seeds/002", "existing/rows")
    url = await server.prepared_database("existing", lambda url: run_files(url, *files))
    yield url
    await server.drop(url)
