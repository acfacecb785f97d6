"""A Discord on loopback, and a hub that sends to it."""

from collections.abc import AsyncGenerator

import pytest

from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from support.dispatch import AUDIT, Office, office
from support.fake_discord import Discord, discord
from support.lane_under_test import Travel


@pytest.fixture
async def there() -> AsyncGenerator[Discord]:
    async with discord(AUDIT) as opened:
        yield opened


@pytest.fixture
async def desk(
    settings: Settings, database_urls: DatabaseUrls, there: Discord, travel: Travel
) -> AsyncGenerator[Office]:
    async with office(settings, database_urls, there, travel) as opened:
        yield opened
