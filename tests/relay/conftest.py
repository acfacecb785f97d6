"""The relay with Kakao on loopback."""

from collections.abc import AsyncGenerator

import pytest

from chat import Bot, Chat
from clusters import connected
from kakao import Kakao, kakao
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def there() -> AsyncGenerator[Kakao]:
    async with kakao() as opened:
        yield opened


@pytest.fixture
async def chat(roads: DatabaseUrls) -> AsyncGenerator[Chat]:
    assert roads.direct
    async with connected(roads.direct) as db:
        yield Chat(db)


@pytest.fixture
async def bot(hub: Hub, chat: Chat, there: Kakao) -> Bot:
    return await Bot.of(hub, chat, there)
