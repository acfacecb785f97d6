"""A real browser, with checks for errors, overflow and contrast."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

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

CHROMIUM = shutil.which("chromium")
BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
NARROW, WIDE = ViewportSize(width=375, height=740), ViewportSize(width=1280, height=800)
TABLET = (ViewportSize(width=768, height=1024), ViewportSize(width=1024, height=768))
"""A tablet in portrait and landscape, where tables that fit a desktop may overflow."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

expect.set_options(timeout=15_000)  # the default of 5 s is too short on a busy machine


@asynccontextmanager
async def launch_browser() -> AsyncGenerator[Browser]:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "no chromium: run `make browser`"
        pytest.skip("*** BROWSER TESTS SKIPPED: no chromium (as root: make browser) ***")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)
        yield browser
        await browser.close()


@asynccontextmanager
async def open_checked_page(context: BrowserContext) -> AsyncGenerator[Page]:
    """Open a page. Browser errors and warnings, CSP violations included, fail the test."""
    errors: list[str] = []

    def record_message(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            errors.append(message.text)

    def record_failed_request(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # cancelled by a navigation
            errors.append(f"{request.url} failed: {request.failure}")

    window = await context.new_page()
    window.on("console", record_message)
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("requestfailed", record_failed_request)
    yield window
    assert errors == []


async def open_page(page: Page, path: str) -> None:
    """Open a page of the hub. An error page or a redirect, such as to the sign-in form, fails the test."""
    response = await page.goto(path)
    assert response
    assert (response.status, page.url.endswith(path)) == (200, True), (path, response.status, page.url)


async def save_screenshot(page: Page, name: str) -> None:
    """Save a screenshot in the folder that SHOTS names, if set."""
    if folder := os.environ.get("SHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


async def find_overflows(page: Page) -> list[str]:
    """List what overflows: the page its screen, a table the page, or text its cell or card."""
    return await page.evaluate(OVERFLOW_SCRIPT)


async def find_low_contrast(page: Page) -> list[str]:
    """List the texts whose contrast with their background is below WCAG AA."""
    return await page.evaluate(CONTRAST_SCRIPT)


OVERFLOW_SCRIPT = """() => {
  const right = (e) => e.getBoundingClientRect().right;
  const screen = document.documentElement;
  const scrolls = (e) => e && (["auto", "scroll"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const wide = screen.scrollWidth > screen.clientWidth ? [`the page: ${screen.scrollWidth}`] : [];
  for (const e of document.querySelectorAll("main table, main .card")) {
    if (right(e) > right(e.closest("main")) + 1 && !scrolls(e.parentElement)) wide.push(`${e.tagName} ${e.className}`);
  }
  for (const e of document.querySelectorAll("main *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest("thead, select, svg, .visually-hidden") || scrolls(e)) continue; // hidden, or scrollable
    const words = document.createRange();
    words.selectNodeContents(e);
    const box = e.closest("td, .card, main");
    const edge = right(box) - parseFloat(getComputedStyle(box).paddingRight) + 1;
    if ([...words.getClientRects()].some((line) => line.width && line.right > edge)) wide.push(e.textContent.trim());
  }
  return wide;
}"""

CONTRAST_SCRIPT = """() => {
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
