"""Services that call the notification endpoints."""

from collections.abc import Generator

import httpx2
import pytest

from pabal.hub import Hub
from support.notification_api import ApiService as Service
from support.notification_api import register_service
from support.operator import fast_password_hashing


@pytest.fixture(scope="module", autouse=True)
def _fast_passwords() -> Generator[None]:
    with fast_password_hashing():
        yield


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await register_service(hub, web, "shop", "write")


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await register_service(hub, web, "admin", "write", "hub:admin")
