"""A Discord on loopback, and a hub that sends to it."""

from collections.abc import AsyncGenerator

import pytest

from discord import Discord, discord
from dispatching import AUDIT, Office, office
from lane_under_test import Travel
from pabal.hub import DatabaseUrls
from pabal.settings import Settings


@pytest.fixture
async def there() -> AsyncGenerator[Discord]:
    async with discord(AUDIT) as opened:
        yield opened


@pytest.fixture
async def desk(settings: Settings, roads: DatabaseUrls, there: Discord, travel: Travel) -> AsyncGenerator[Office]:
    async with office(settings, roads, there, travel) as opened:
        yield opened
