from collections.abc import Generator

import pytest

from clusters import Cluster, binaries, running


@pytest.fixture(scope="session", params=["embedded", "pg15"])
def server(request: pytest.FixtureRequest) -> Generator[Cluster]:
    """A server of the newest and of the oldest version Pabal runs on."""
    bin_dir = binaries(request.param)
    if bin_dir is None:
        pytest.skip(f"{request.param} is not installed")
    with running(bin_dir) as cluster:
        yield cluster
