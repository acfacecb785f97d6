"""Fixtures of the console tests: signed-in operators, with and without a browser."""

from collections.abc import AsyncGenerator, Generator
from datetime import timedelta

import httpx2
import pytest
from playwright.async_api import Browser, Page

from pabal.console import live
from pabal.console.chat import CHAT_GUARD
from pabal.console.portal.login import PORTAL_GUARD
from pabal.hub import Hub
from pabal.operators.operators import Role, ensure_first_operator
from support.browser import WIDE, launch_browser, open_checked_page
from support.operator import PASSWORD, SignedInOperator, fast_password_hashing, sign_in


@pytest.fixture(scope="module", autouse=True)
def _fast_passwords() -> Generator[None]:
    with fast_password_hashing():
        yield


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with launch_browser() as browser:
        yield browser


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Refresh open pages more often than in production, so that a test does not wait for seconds."""
    monkeypatch.setattr(live, "MIN_INTERVAL", timedelta(milliseconds=100))
    monkeypatch.setattr(live, "MAX_INTERVAL", timedelta(milliseconds=500))
    intervals = {guard: guard.refresh_interval for guard in (CHAT_GUARD, PORTAL_GUARD)}
    for guard in intervals:
        object.__setattr__(guard, "refresh_interval", timedelta(milliseconds=500))  # frozen, for everyone but tests
    yield
    for guard, interval in intervals.items():
        object.__setattr__(guard, "refresh_interval", interval)


@pytest.fixture
async def address(hub: Hub, web: httpx2.AsyncClient, short_intervals: None) -> str:
    """The URL of the hub, with an admin who can sign in."""
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
async def admin(hub: Hub, web: httpx2.AsyncClient) -> SignedInOperator:
    return await sign_in(hub, web, Role.ADMIN)


@pytest.fixture
async def viewer(hub: Hub, web: httpx2.AsyncClient) -> SignedInOperator:
    return await sign_in(hub, web, Role.VIEWER)
