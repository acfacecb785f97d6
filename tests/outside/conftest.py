"""A way to the outside, and somebody there."""

from collections.abc import AsyncGenerator

import pytest

from outside.elsewhere import HOUSE
from pabal.outside.http import HttpClient
from support.receiver import Receiver, receiver


@pytest.fixture
async def outside() -> AsyncGenerator[HttpClient]:
    async with HttpClient(HOUSE) as opened:
        yield opened


@pytest.fixture
async def r() -> AsyncGenerator[Receiver]:
    async with receiver() as there:
        yield there
