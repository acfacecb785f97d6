"""A fake Discord on loopback, and a hub that sends to it."""

from collections.abc import AsyncGenerator

import pytest

from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from support.dispatch import AUDIT, NotificationHub, open_notification_hub
from support.fake_discord import FakeDiscord, run_fake_discord
from support.lane_under_test import Travel


@pytest.fixture
async def discord() -> AsyncGenerator[FakeDiscord]:
    async with run_fake_discord(AUDIT) as opened:
        yield opened


@pytest.fixture
async def notifier(
    settings: Settings, database_urls: DatabaseUrls, discord: FakeDiscord, travel: Travel
) -> AsyncGenerator[NotificationHub]:
    async with open_notification_hub(settings, database_urls, discord, travel) as opened:
        yield opened
