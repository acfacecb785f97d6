"""What every test of the console needs: somebody who is signed in, with a browser or without."""

from collections.abc import AsyncGenerator

import httpx2
import pytest
from playwright.async_api import Browser, Page

from pabal.hub import Hub
from pabal.operators.operators import Role, ensure_first_operator
from support.browser import WIDE, a_browser, watched
from support.operator import PASSWORD, Signed, hasty, sign_in


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with a_browser() as browser:
        yield browser


@pytest.fixture
async def address(hub: Hub, web: httpx2.AsyncClient) -> str:
    """Where the hub serves, with an admin who can sign in."""
    with hasty():
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)
    return str(web.base_url).rstrip("/")


@pytest.fixture
async def page(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    """A new window, in English. Whatever the browser complains about, a broken policy included, fails the test."""
    context = await chromium.new_context(base_url=address, locale="en-GB", viewport=WIDE)
    async with watched(context) as window:
        yield window
    await context.close()


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> Signed:
    return await sign_in(hub, web, Role.ADMIN)


@pytest.fixture
async def viewer(hub: Hub, web: httpx2.AsyncClient) -> Signed:
    return await sign_in(hub, web, Role.VIEWER)
