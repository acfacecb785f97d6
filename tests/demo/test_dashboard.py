"""The shop's dashboard of the demo: a page of another origin with a customer's toasts."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, ViewportSize, expect

from support.browser import (
    NARROW,
    WIDE,
    find_low_contrast,
    find_overflows,
    launch_browser,
    open_checked_page,
    save_screenshot,
)
from support.demo_process import run_demo
from support.pabal_process import fresh_folder

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
async def chromium() -> AsyncGenerator[Browser]:
    async with launch_browser() as browser:
        yield browser


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


async def test_the_dashboard_shows_the_customers_toasts(chromium: Browser, folder: Path) -> None:
    looks: list[tuple[Literal["light", "dark"], ViewportSize]] = [("light", WIDE), ("dark", NARROW)]
    with run_demo(folder, "--no-bot") as demo:
        assert demo.shop.startswith("http://127.0.0.1:")
        assert demo.console not in demo.shop, "another origin"
        context = await chromium.new_context(locale="ko-KR", viewport=WIDE)
        async with open_checked_page(context) as page:
            await page.goto(demo.shop)
            await expect(page.locator(".popup").first).to_be_visible(timeout=30_000)
            for colours, viewport in looks:
                await page.emulate_media(color_scheme=colours)
                await page.set_viewport_size(viewport)
                assert await find_overflows(page) == []
                assert await find_low_contrast(page) == []
                await save_screenshot(page, f"dashboard-{colours}-{viewport['width']}")
            await page.locator(".bell").click()
            await expect(page.get_by_role("listitem").first).to_be_visible()
            await save_screenshot(page, "dashboard-list")
        await context.close()
        demo.end()
    assert demo.log.read_text() == ""
