"""Fixtures: the relay with a fake Kakao on loopback."""

from collections.abc import AsyncGenerator

import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, run_fake_kakao
from support.relay_rows import Bot, Chat


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def fake_kakao() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as server:
        yield server


@pytest.fixture
async def chat(database_urls: DatabaseUrls) -> AsyncGenerator[Chat]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        yield Chat(db)


@pytest.fixture
async def bot(hub: Hub, chat: Chat, fake_kakao: FakeKakao) -> Bot:
    return await Bot.of(hub, chat, fake_kakao)
