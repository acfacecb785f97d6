"""An HTTP client of the hub, and a server that it calls."""

from collections.abc import AsyncGenerator

import pytest

from outside.fake_network import ALLOWED_ORIGINS
from pabal.outside.http import HttpClient
from support.receiver import Receiver, run_receiver


@pytest.fixture
async def outside() -> AsyncGenerator[HttpClient]:
    async with HttpClient(ALLOWED_ORIGINS) as client:
        yield client


@pytest.fixture
async def remote() -> AsyncGenerator[Receiver]:
    async with run_receiver() as server:
        yield server
