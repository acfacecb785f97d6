"""A hub in its own thread, with every kind of credential."""

from collections.abc import Generator
from typing import Any

import pytest

from conftest import base_settings
from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from security.visitors import Visitors, create_visitors
from support.databases import DatabasePool
from support.loop_thread import LoopThread, loop_thread
from support.operator import fast_password_hashing


@pytest.fixture(scope="module", autouse=True)
def _fast_passwords() -> Generator[None]:
    with fast_password_hashing():
        yield


SETTINGS: dict[str, Any] = {"trusted_proxies": ["127.0.0.0/8"], "notifications_per_service": 0}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update=SETTINGS)


@pytest.fixture
def served(settings: Settings, database_urls: DatabaseUrls) -> Generator[LoopThread]:
    with loop_thread(settings, database_urls) as thread:
        yield thread


@pytest.fixture
def visitors(served: LoopThread) -> Visitors:
    return served.run(create_visitors(served.hub, served.origin))


@pytest.fixture(scope="module")
def shared_hub(database_pool: DatabasePool, tmp_path_factory: pytest.TempPathFactory) -> Generator[LoopThread]:
    """One hub for the tests of a module that only send requests to it: starting one costs more than they do."""
    name = database_pool.acquire()
    settings = base_settings().model_copy(update=SETTINGS | {"data_dir": tmp_path_factory.mktemp("shared")})
    with loop_thread(settings, database_pool.urls(name)) as thread:
        yield thread
    database_pool.release(name)


@pytest.fixture(scope="module")
def shared_visitors(shared_hub: LoopThread) -> Visitors:
    return shared_hub.run(create_visitors(shared_hub.hub, shared_hub.origin))
