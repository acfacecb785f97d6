"""Fixtures of the console tests: signed-in operators, with and without a browser."""

from collections.abc import AsyncGenerator

import httpx2
import pytest
from playwright.async_api import Browser, Page

from pabal.hub import Hub
from pabal.operators.operators import Role, ensure_first_operator
from support.browser import WIDE, launch_browser, open_checked_page
from support.operator import PASSWORD, Signed, fast_password_hashing, sign_in


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with launch_browser() as browser:
        yield browser


@pytest.fixture
async def address(hub: Hub, web: httpx2.AsyncClient) -> str:
    """The URL of the hub, with an admin who can sign in."""
    with fast_password_hashing():
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)
    return str(web.base_url).rstrip("/")


@pytest.fixture
async def page(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    """A new page in English. Browser errors, CSP violations included, fail the test."""
    context = await chromium.new_context(base_url=address, locale="en-GB", viewport=WIDE)
    async with open_checked_page(context) as window:
        yield window
    await context.close()


@pytest.fixture
async def admin(hub: Hub, web: httpx2.AsyncClient) -> Signed:
    return await sign_in(hub, web, Role.ADMIN)


@pytest.fixture
async def viewer(hub: Hub, web: httpx2.AsyncClient) -> Signed:
    return await sign_in(hub, web, Role.VIEWER)
