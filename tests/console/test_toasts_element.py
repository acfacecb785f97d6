"""The element <pabal-toasts> in a page of another origin, in a real browser."""

import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pabal.demo.run import listener_url, serve_demo_app
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.notifications.people.tokens import PERSON_LINK_LIFETIME
from pabal.notifications.toasts.inbox import ToastAction
from pabal.settings import Settings
from support.browser import NARROW, SCHEMES, WIDE, open_checked_page, save_screenshot
from support.inbox import HOSTILE_TEXTS, MINA, Inbox, open_inbox
from support.server import serve_hub
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

Travel = Callable[[timedelta], Awaitable[None]]
DESKTOP = ViewportSize(width=1440, height=900)
PAGE = """<!doctype html>
<html lang="{lang}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>A shop</title><link rel="icon" href="data:,">
<script type="module" src="{hub}/static/toasts.js"></script></head>
<body><nav><pabal-toasts token-url="/token"></pabal-toasts></nav>
<main><h1>A shop</h1><p>A page of another origin.</p><button>Buy</button></main></body>
</html>"""
POLICY = "default-src 'none'; script-src {hub}; connect-src 'self' {hub}; img-src data:; base-uri 'none'"
"""A strict policy: no inline script, no inline style."""


@dataclass
class ShopPage:
    """A site of its own, which shows the toasts of one person."""

    hub: Hub
    inbox: Inbox
    hub_url: str
    url: str = ""
    lang: str = "en"
    tokens: list[str] = field(default_factory=list[str])
    """The tokens that the page has fetched."""

    async def show_page(self, _request: Request) -> Response:
        html = PAGE.format(hub=self.hub_url, lang=self.lang)
        return HTMLResponse(html, headers={"content-security-policy": POLICY.format(hub=self.hub_url)})

    async def issue_token(self, _request: Request) -> Response:
        self.tokens.append(await self.inbox.token(MINA))
        return JSONResponse({"token": self.tokens[-1]})


@pytest.fixture
async def shop(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[ShopPage]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        allowed = settings.model_copy(update={"allowed_origins": [listener_url(listener)]})
        async with (
            open_hub(allowed, database_urls) as hub,
            serve_hub(hub) as hub_url,
            open_inbox(hub, database_urls) as inbox,
        ):
            page = ShopPage(hub, inbox, hub_url, listener_url(listener))
            routes = [Route("/", page.show_page), Route("/token", page.issue_token, methods=["POST"])]
            async with serve_demo_app(Starlette(routes=routes), listener):
                yield page


@asynccontextmanager
async def opened(chromium: Browser, shop: ShopPage, **options: Any) -> AsyncGenerator[Page]:
    context = await chromium.new_context(base_url=shop.url, viewport=options.pop("viewport", WIDE), **options)
    async with open_checked_page(context) as page:
        await page.goto("/")
        await wait_until(lambda: len(shop.hub.toast_streams) == 1)
        yield page
    await context.close()


async def test_a_toast_appears_in_a_page_of_another_origin(chromium: Browser, shop: ShopPage) -> None:
    earlier = await shop.inbox.insert_toast(title="Earlier", body="before the page")
    async with opened(chromium, shop) as page:
        bell = page.get_by_role("button", name="Notifications, 1 unread")
        await expect(bell).to_be_visible()
        await expect(page.locator(".popup")).to_have_count(0)
        toast = await shop.inbox.insert_toast(title="It is here", body="while you looked")

        await expect(page.locator(".popup")).to_contain_text("while you looked")
        await expect(page.get_by_role("status").filter(has_text="It is here")).to_have_text(
            "It is here. while you looked"
        )
        await expect(page.get_by_role("button", name="Notifications, 2 unread")).to_be_visible()
        await wait_until(lambda: is_seen(shop.inbox, toast))
        assert not await is_seen(shop.inbox, earlier), "it was not shown yet"
        await page.get_by_role("button", name="Notifications, 2 unread").click()
        await expect(page.get_by_role("listitem")).to_have_count(2)
        await wait_until(lambda: is_seen(shop.inbox, earlier))
        assert shop.url.split(":")[-1] != shop.hub_url.split(":")[-1]
        assert len(shop.tokens) == 1


async def is_seen(inbox: Inbox, toast_id: object) -> bool:
    return any(toast.id == toast_id and toast.seen_at for toast in await inbox.list_toasts())


async def test_the_list_marks_toasts_and_follows_other_devices(chromium: Browser, shop: ShopPage) -> None:
    for number in range(3):
        await shop.inbox.insert_toast(title=f"Toast {number}")
    async with opened(chromium, shop) as page:
        await page.get_by_role("button", name="Notifications, 3 unread").click()
        items = page.get_by_role("listitem")
        await items.filter(has_text="Toast 2").get_by_role("button", name="Mark as read").click()
        await expect(page.get_by_role("button", name="Notifications, 2 unread")).to_be_visible()
        await expect(items.filter(has_text="Toast 2").get_by_role("button", name="Archive")).to_be_focused()
        await items.filter(has_text="Toast 1").get_by_role("button", name="Archive").click()
        await expect(items).to_have_count(2)
        [oldest] = [toast for toast in await shop.inbox.list_toasts() if toast.title == "Toast 0"]
        await shop.inbox.mark(oldest.id, ToastAction.READ)
        await expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
        await shop.inbox.insert_toast(title="Toast 3")
        await page.get_by_role("button", name="Mark all as read").click()
        await expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
        assert await shop.inbox.unread() == 0


async def test_older_toasts_are_loaded_and_all_are_marked_as_read_at_once(chromium: Browser, shop: ShopPage) -> None:
    for number in range(50):
        await shop.inbox.insert_toast(title=f"Toast {number}.")
    async with opened(chromium, shop) as page:
        await page.get_by_role("button", name="Notifications, 50 unread").click()
        items, more = page.get_by_role("listitem"), page.get_by_role("button", name="Show more")
        await expect(items).to_have_count(20)
        await more.click()
        await expect(items).to_have_count(40)
        await expect(items.nth(20).get_by_role("button", name="Mark as read")).to_be_focused()
        await page.get_by_role("button", name="Mark all as read").click()
        await expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
        assert await shop.inbox.unread() == 0
        if await more.is_visible():  # the stream tells of the other ten as well
            await more.click()
        await expect(items).to_have_count(50)
        await expect(more).to_be_hidden()
        await expect(page.locator("[data-unread=true]")).to_have_count(0)


async def test_an_inbox_that_dropped_old_toasts_loads_them_again(chromium: Browser, shop: ShopPage) -> None:
    for number in range(19):
        await shop.inbox.insert_toast(title=f"Old {number}.")
    async with opened(chromium, shop, viewport=DESKTOP) as page:
        await page.get_by_role("button", name="Notifications, 19 unread").click()
        items, more = page.get_by_role("listitem"), page.get_by_role("button", name="Show more")
        await expect(items).to_have_count(19)
        await expect(more).to_be_hidden()
        for number in range(90):
            await shop.inbox.insert_toast(title=f"New {number}.")
        await expect(items.first).to_contain_text("New 89.")
        await expect(items).to_have_count(100)
        await expect(items.last).to_contain_text("Old 9.")
        await more.click()

        await expect(items).to_have_count(109)
        await expect(items.last).to_contain_text("Old 0.")


async def test_the_element_works_with_the_keyboard_alone(chromium: Browser, shop: ShopPage) -> None:
    await shop.inbox.insert_toast(title="One")
    async with opened(chromium, shop) as page:
        bell = page.get_by_role("button", name=re.compile("^Notifications"))
        await page.keyboard.press("Tab")
        await expect(bell).to_be_focused()
        await expect(bell).to_have_attribute("aria-expanded", "false")
        await page.keyboard.press("Enter")
        await expect(bell).to_have_attribute("aria-expanded", "true")
        await expect(page.get_by_role("dialog", name="Notifications")).to_be_focused()
        for name in ("Mark all as read", "Mark as read", "Archive"):
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("button", name=name, exact=True)).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No notifications yet.")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await expect(bell).to_be_focused()


async def test_toasts_sent_while_the_hub_was_away_appear_afterwards(chromium: Browser, shop: ShopPage) -> None:
    context = await chromium.new_context(base_url=shop.url, viewport=WIDE)
    page = await context.new_page()
    await page.goto("/")
    await wait_until(lambda: len(shop.hub.toast_streams) == 1)
    await context.set_offline(True)
    shop.hub.toast_streams.close_all()
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_text("Connection lost.")).to_be_visible()
    await shop.inbox.insert_toast(title="Meanwhile")
    await context.set_offline(False)

    await expect(page.get_by_role("listitem")).to_contain_text("Meanwhile")
    await expect(page.get_by_text("Connection lost.")).to_be_hidden()
    await context.close()


async def test_a_stream_that_ends_is_replaced_by_one_that_continues_after_the_last_change(
    chromium: Browser, shop: ShopPage
) -> None:
    context = await chromium.new_context(base_url=shop.url, viewport=WIDE)
    await context.add_init_script(RECORD_STREAMS)
    async with open_checked_page(context) as page:
        await page.goto("/")
        await wait_until(lambda: len(shop.hub.toast_streams) == 1)
        await shop.inbox.insert_toast(title="One")
        await expect(page.locator(".popup")).to_contain_text("One")
        await wait_until(lambda: are_all_seen(shop.inbox))
        [seen] = await shop.inbox.changes()
        await expect(page.locator(".bell")).to_have_attribute("aria-label", "Notifications, 1 unread")
        await wait_until(lambda: page.evaluate("last => streams[0].last === last", str(seen.seq)))
        shop.hub.toast_streams.close_all()
        await wait_until(lambda: page.evaluate("streams[1]?.source.readyState === EventSource.OPEN"))

        assert await page.evaluate("streams[0].source.readyState") == 2, "it does not connect again by itself"
        after = await page.evaluate("streams.map(({ source }) => new URL(source.url).searchParams.get('after'))")
        assert after == ["0", str(seen.seq)]
        tickets = await page.evaluate("streams.map(({ source }) => new URL(source.url).searchParams.get('ticket'))")
        assert len({*tickets}) == 2
    await context.close()


async def are_all_seen(inbox: Inbox) -> bool:
    return all(toast.seen_at for toast in await inbox.list_toasts())


RECORD_STREAMS = """
window.streams = [];
window.EventSource = class extends EventSource {
  constructor(url) {
    super(url);
    const record = { source: this, last: "" };
    streams.push(record);
    this.addEventListener("toast", (event) => { record.last = event.lastEventId; });
  }
};
"""


async def test_an_expired_token_is_replaced(chromium: Browser, shop: ShopPage, travel: Travel) -> None:
    context = await chromium.new_context(base_url=shop.url, viewport=WIDE)
    page = await context.new_page()
    await page.goto("/")
    await wait_until(lambda: len(shop.hub.toast_streams) == 1)
    await travel(PERSON_LINK_LIFETIME)
    await wait_until(lambda: len(shop.tokens) == 2)
    await wait_until(lambda: len(shop.hub.toast_streams) == 1)
    await shop.inbox.insert_toast(title="Later")

    await expect(page.locator(".popup")).to_contain_text("Later")
    await context.close()


async def test_nothing_in_a_toast_runs(chromium: Browser, shop: ShopPage) -> None:
    async with opened(chromium, shop) as page:
        for text in HOSTILE_TEXTS:
            await shop.inbox.insert_toast(title=text, body=text)
        await page.get_by_role("button", name="Notifications").click()

        await expect(page.get_by_role("listitem")).to_have_count(len(HOSTILE_TEXTS))
        for text in HOSTILE_TEXTS:
            await expect(page.get_by_role("listitem").filter(has_text=text)).to_have_count(1)
        assert await page.evaluate("window.hacked") is None


async def test_a_page_that_is_not_allowed_shows_nothing(chromium: Browser, shop: ShopPage) -> None:
    await shop.inbox.insert_toast(title="Secret")
    context = await chromium.new_context(base_url=shop.url.replace("127.0.0.1", "localhost"), viewport=WIDE)
    page = await context.new_page()
    await page.goto("/")
    await page.get_by_role("button", name="Notifications").click()

    await expect(page.get_by_text("Connection lost.")).to_be_visible()
    await expect(page.get_by_role("listitem")).to_have_count(0)
    assert len(shop.hub.toast_streams) == 0
    await context.close()


async def test_a_hidden_page_closes_its_stream_and_continues_where_it_was(chromium: Browser, shop: ShopPage) -> None:
    async with opened(chromium, shop) as page:
        await page.evaluate(SET_HIDDEN, True)
        await wait_until(lambda: len(shop.hub.toast_streams) == 0)
        await shop.inbox.insert_toast(title="Meanwhile")
        await page.evaluate(SET_HIDDEN, False)
        await expect(page.locator(".popup")).to_contain_text("Meanwhile")

        await page.evaluate("document.querySelector('pabal-toasts').remove()")
        await wait_until(lambda: len(shop.hub.toast_streams) == 0)


SET_HIDDEN = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.parametrize("lang", ["en", "ko"])
async def test_nothing_is_too_wide_or_too_faint(chromium: Browser, shop: ShopPage, lang: str) -> None:
    shop.lang = lang
    korean = lang == "ko"
    await shop.inbox.insert_toast(
        title="결제가 완료됐어요" if korean else "Payment received",
        body="제주 감귤 3kg, 18,900원" if korean else "Ceramic mug, 24,000 KRW",
        locale=lang,
    )
    await shop.inbox.insert_toast(title=None, body="https://example.org/" + "a" * 200, locale=lang)
    async with opened(chromium, shop) as page:
        for viewport, colours in product((NARROW, DESKTOP), SCHEMES):
            name = f"{lang}-{colours}-{viewport['width']}"
            await page.set_viewport_size(viewport)
            await page.emulate_media(color_scheme=colours)
            await shop.inbox.insert_toast(title="서버 공격" if korean else "Raid", body="!", category="antinuke")
            await expect(page.locator(".popup")).to_be_visible()
            assert await find_faults(page) == [], name
            await save_screenshot(page, f"toasts-popup-{name}")
            await page.locator(".popup button").click()
            await page.locator(".bell").click()
            assert await find_faults(page) == [], name
            await save_screenshot(page, f"toasts-list-{name}")
            await page.keyboard.press("Escape")


async def find_faults(page: Page) -> list[str]:
    """Texts inside the element that are too faint or cut off, and the page if it scrolls sideways."""
    return await page.evaluate(FAULTS_SCRIPT)


FAULTS_SCRIPT = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3)
    .map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)";
  };
  const screen = document.documentElement;
  const faults = screen.scrollWidth > screen.clientWidth ? [`the page: ${screen.scrollWidth}`] : [];
  for (const e of document.querySelector("pabal-toasts").shadowRoot.querySelectorAll("*")) {
    if (!e.checkVisibility() || e.closest(".hidden")) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const box = e.getBoundingClientRect();
    const isCut = box.left < 0 || box.right > screen.clientWidth || e.scrollWidth > e.clientWidth + 1;
    if (isCut) faults.push(`wide: ${e.textContent}`);
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faults.push(`faint: ${e.textContent}`);
  }
  return faults;
}"""
