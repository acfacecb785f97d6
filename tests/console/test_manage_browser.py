"""The first page of a hub, subscriptions and operators in a real browser."""

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from pabal.hub import Hub
from pabal.operators.operators import Role, add_operator, disable_operator
from pabal.operators.password import hash_password
from support.browser import (
    NARROW,
    SCHEMES,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.clusters import Connection
from support.operator import PASSWORD, add_operator_cookie, fast_password_hashing, open_console
from support.subscriptions import TESTER, publish_test_event, subscribe
from tokens.token_operations import add_shop

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

BROKEN_OPTIONS = """() => {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const broken = [];
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    for (const option of text.data.matchAll(/--[a-z-]+/g)) {
      const range = document.createRange();
      range.setStart(text, option.index);
      range.setEnd(text, option.index + option[0].length);
      if (range.getClientRects().length > 1) broken.push(option[0]);
    }
  }
  return broken;
}"""
"""The options of commands that continue on another line."""
URL = "https://hooks.example.org/services/T0000000/B0000000/abcdefghijklmnopqrstuvwxyz"


async def test_a_tick_appears_when_the_event_is_published(hub: Hub, page: Page, owner: Connection) -> None:
    await owner.execute("update public.services set is_active = false, disabled_at = now() where name <> 'hub'")
    await open_console(page, hub)
    await page.get_by_role("link", name="This hub is new").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Get started")
    await expect(page.locator(".first-steps .done")).to_have_count(0)
    await save_screenshot(page, "start-new")

    await owner.execute("update public.services set is_active = true, disabled_at = null where name = 'minu_find'")
    await publish_test_event(hub, "order.paid", "minu_build")

    await expect(page.locator(".first-steps .done")).to_have_count(2)
    done = page.locator(".first-steps .done", has_text="Publish an event.")
    await expect(done.get_by_role("img", name="Done")).to_be_visible()


async def test_a_command_breaks_between_its_words_and_is_selected_at_once(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await page.goto("/console/start")

    for width in (320, 375, 480, 768, 1440):
        await page.set_viewport_size(ViewportSize(width=width, height=900))
        assert await page.evaluate(BROKEN_OPTIONS) == [], f"at {width} px"
    command = page.locator(".command", has_text="pabal service add")
    await command.click()
    assert await page.evaluate("getSelection().toString()") == "pabal service add shop --permission write"


@pytest.mark.parametrize("locale", ["en-GB", "ko-KR"])
async def test_the_pages_fit_every_screen(hub: Hub, chromium: Browser, address: str, locale: str) -> None:
    await add_shop(hub)
    subscription, _ = await subscribe(hub, "shop", "order.*", "refund.made", url=URL)
    await publish_test_event(hub, "order.paid", "minu_build")
    with fast_password_hashing():
        async with hub.transaction() as tx:
            await add_operator(tx, "a.quite.long.name@operators.example.org", await hash_password(PASSWORD), Role.ADMIN)
            await add_operator(tx, "지은", await hash_password(PASSWORD), Role.VIEWER)
            await disable_operator(tx, "지은", TESTER)
    pages = {
        "start": "/console/start",
        "operators": "/console/operators",
        "subscription": f"/console/services/shop/subscriptions/{subscription.id}",
        "service": "/console/services/shop",
        "services": "/console/services",
    }
    context = await chromium.new_context(base_url=address, locale=locale)
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as window:
        for name, path in pages.items():
            await open_page(window, path)
            await expect(window.locator("html")).to_have_attribute("lang", locale[:2])
            for details in await window.locator("main details").all():
                await details.evaluate("e => e.open = true")
            for width, viewport in (("wide", ViewportSize(width=1440, height=900)), ("narrow", NARROW)):
                await window.set_viewport_size(viewport)
                for scheme in SCHEMES:
                    await window.emulate_media(color_scheme=scheme)
                    await save_screenshot(window, f"{name}-{width}-{scheme}-{locale[:2]}")
                    assert await find_low_contrast(window) == [], f"{name} {width} {scheme}"
                assert await find_overflows(window) == [], f"{name} {width}"
    await context.close()
