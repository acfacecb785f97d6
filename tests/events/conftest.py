"""What the tests of dead letters stand on."""

from collections.abc import AsyncGenerator

import pytest

from deaths import Deaths, deaths_of
from pabal.wiring import Hub, Roads


@pytest.fixture
async def deaths(hub: Hub, roads: Roads) -> AsyncGenerator[Deaths]:
    async with deaths_of(hub, roads) as there:
        yield there
