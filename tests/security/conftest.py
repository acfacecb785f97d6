"""A hub in its own thread, with every kind of credential."""

from collections.abc import Generator

import pytest

from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from security.visitors import Visitors, create_visitors
from support.loop_thread import LoopThread, loop_thread
from support.operator import fast_password_hashing


@pytest.fixture(scope="module", autouse=True)
def _fast_passwords() -> Generator[None]:
    with fast_password_hashing():
        yield


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"trusted_proxies": ["127.0.0.0/8"], "notifications_per_service": 0})


@pytest.fixture
def served(settings: Settings, database_urls: DatabaseUrls) -> Generator[LoopThread]:
    with loop_thread(settings, database_urls) as thread:
        yield thread


@pytest.fixture
def visitors(served: LoopThread) -> Visitors:
    return served.run(create_visitors(served.hub, served.origin))
