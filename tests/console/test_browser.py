"""The console in a real browser: what a person sees, with keyboard and mouse, in both languages, on a phone."""

import os
import re
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from house import serving
from pabal.db.queries import parse
from pabal.operators import operators
from pabal.wiring import Hub

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.xdist_group("browser")]

CHROMIUM = shutil.which("chromium")
PASSWORD = "correct horse"
QUIET = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
WAITS = r"^{} {}$"
[PUBLISH] = parse("""
-- name: publish
insert into public.services (name) values ('shop') on conflict do nothing
""")


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "no chromium: run `make browser`"
        pytest.skip("*** BROWSER TESTS SKIPPED: no chromium (as root: make browser) ***")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        await browser.close()


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with hub.transaction() as tx:
        await operators.ensure_first(tx, PASSWORD)
    async with serving(hub) as where:
        yield where
