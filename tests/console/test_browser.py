"""The console in a real browser: what a person sees, with keyboard and mouse, in both languages, on a phone."""

import os
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    async_playwright,
    expect,
)

from house import serving
from pabal.api import doors
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
NARROW, WIDE = ViewportSize(width=375, height=740), ViewportSize(width=1280, height=800)
[PUBLISH] = parse("""
-- name: publish
with shop as (insert into public.services (name) values ('shop') on conflict do nothing)
insert into public.event_queue (event_type, source_service, target_service)
select 'shop.opened', 'shop', 'shop' from generate_series(1, 3)
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


@pytest.fixture
async def page(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    """A new window. Whatever the browser complains about, a broken policy included, fails the test."""
    context = await chromium.new_context(base_url=address, locale="en-GB", viewport=WIDE)
    async with watched(context) as window:
        yield window
    await context.close()


@asynccontextmanager
async def watched(context: BrowserContext) -> AsyncGenerator[Page]:
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(message.text)

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # what the page itself gave up by going elsewhere
            complaints.append(f"{request.url} failed: {request.failure}")

    window = await context.new_page()
    window.on("console", note)
    window.on("pageerror", lambda error: complaints.append(str(error)))
    window.on("requestfailed", failed)
    yield window
    assert complaints == []


async def enter(page: Page) -> None:
    await page.goto("/")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


async def picture(page: Page, name: str) -> None:
    """Keep a picture for whoever wants to look: SHOTS names the folder."""
    if folder := os.environ.get("SHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


async def overflows(page: Page) -> bool:
    return await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


async def test_signing_in_looking_and_signing_out(page: Page) -> None:
    await enter(page)

    assert page.url.endswith("/console")
    for lane in ("Relay", "Events", "Notifications"):
        await expect(page.get_by_role("region", name=lane)).to_contain_text("Waiting")
    await expect(page.get_by_role("status")).to_have_text("All is well.")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    await page.goto("/console")
    assert page.url.endswith("/console/login")


async def test_a_wrong_password_is_said(chromium: Browser, address: str) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB")
    page = await context.new_page()
    await page.goto("/console/login")
    await page.get_by_label("Password").fill("wrong horse")
    await page.get_by_role("button", name="Sign in").click()

    await expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    await picture(page, "login-wrong")
    await context.close()


async def test_the_numbers_change_without_a_reload(hub: Hub, page: Page) -> None:
    await enter(page)
    await page.evaluate("window.untouched = true")
    events = page.get_by_role("region", name="Events")
    await expect(events.get_by_role("definition").first).to_have_text("0")

    async with hub.transaction() as tx:
        await tx.run(PUBLISH)

    await expect(events.get_by_role("definition").first).to_have_text("3", timeout=15_000)
    assert await page.evaluate("window.untouched")
    await picture(page, "overview-busy")


async def test_a_database_that_goes_away_is_said_and_so_is_its_return(
    hub: Hub, chromium: Browser, address: str
) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB")
    page = await context.new_page()
    await enter(page)

    await hub.db.close()
    await expect(page.get_by_role("alert")).to_contain_text("The database is away", timeout=15_000)
    await picture(page, "overview-away")

    await hub.db.open()
    await expect(page.get_by_role("alert")).to_have_count(0, timeout=15_000)
    await context.close()


async def test_with_the_keyboard_alone(page: Page) -> None:
    await page.goto("/console/login")
    await expect(page.get_by_label("Password")).to_be_focused()
    await page.keyboard.type(PASSWORD)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")

    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    assert await page.get_by_role("link", name="Skip to content").evaluate("e => e.getBoundingClientRect().left >= 0")
    for _ in range(4):
        await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Sign out")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_in_korean_and_back(chromium: Browser, address: str) -> None:
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=WIDE)
    async with watched(context) as page:
        await page.goto("/console/login")
        await expect(page.locator("html")).to_have_attribute("lang", "ko")
        await picture(page, "login-ko")
        await page.get_by_label("비밀번호").fill(PASSWORD)
        await page.get_by_role("button", name="로그인").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("한눈에 보기")
        await expect(page.get_by_role("region", name="중계")).to_contain_text("카카오톡")
        await picture(page, "overview-ko")

        await page.get_by_role("button", name="English").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        await page.get_by_role("button", name="한국어").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("한눈에 보기")
    await context.close()


@pytest.mark.parametrize("locale", ["en-GB", "ko-KR"])
async def test_on_a_phone_nothing_is_wider_than_the_screen(chromium: Browser, address: str, locale: str) -> None:
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme="dark")
    async with watched(context) as page:
        await page.goto("/console/login")
        assert not await overflows(page)
        await picture(page, f"login-phone-dark-{locale[:2]}")
        await page.locator("input[name=password]").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/console$"))
        assert not await overflows(page)
        await picture(page, f"overview-phone-dark-{locale[:2]}")
        await page.goto("/docs")
        assert not await overflows(page)
        await picture(page, f"docs-phone-dark-{locale[:2]}")
    await context.close()


async def test_by_day_and_by_night(page: Page) -> None:
    await enter(page)
    await picture(page, "overview-light")
    day = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    await page.emulate_media(color_scheme="dark")
    await picture(page, "overview-dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != day
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        faint = await page.evaluate(FAINT)
        assert faint == []


async def test_the_api_page_shows_every_door(page: Page) -> None:
    await enter(page)
    await page.get_by_role("link", name="API").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("API")
    await expect(page.locator("article")).to_have_count(len(doors.HUB))
    await picture(page, "docs-light")


FAINT = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3)
    .map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(e.textContent.trim());
  }
  return faint;
}"""
"""Every text whose contrast with its ground is below what WCAG asks for."""
