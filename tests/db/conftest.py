from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from support.clusters import Cluster, cluster_starter, postgres_bin_dir


@pytest.fixture(scope="session")
def servers() -> Generator[Callable[[Path], Cluster]]:
    with cluster_starter() as start_server:
        yield start_server


@pytest.fixture(scope="session", params=["embedded", "pg15"])
def server(request: pytest.FixtureRequest, servers: Callable[[Path], Cluster]) -> Cluster:
    """A server of the newest and one of the oldest supported version."""
    bin_dir = postgres_bin_dir(request.param)
    if bin_dir is None:
        pytest.skip(f"{request.param} is not installed")
    return servers(bin_dir)
