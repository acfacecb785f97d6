"""Services that call the notification endpoints."""

import httpx2
import pytest

from pabal.hub import Hub
from support.notification_api import ApiService as Service
from support.notification_api import register_service


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await register_service(hub, web, "shop", "write")


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await register_service(hub, web, "admin", "write", "hub:admin")
