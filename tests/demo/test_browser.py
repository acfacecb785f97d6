"""The chat page in a real browser: pairing, messages, cards, both languages, phones and the keyboard."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from pabal.demo.bot import EchoBot
from support.browser import (
    NARROW,
    WIDE,
    find_low_contrast,
    find_overflows,
    launch_browser,
    open_checked_page,
    save_screenshot,
)
from support.demo import RunningDemo
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

LONG = "아주 긴 말을 쓰면 어떻게 보일까? " * 8 + "https://example.org/" + "a" * 120
KINDS: list[dict[str, Any]] = [
    {"simpleText": {"text": "<b>plain</b> & honest"}},
    {
        "basicCard": {
            "title": "Basic",
            "description": "With a picture",
            "thumbnail": {"imageUrl": "https://example.org/a.png", "altText": "A rider"},
            "buttons": [
                {"label": "Read", "action": "webLink", "webLinkUrl": "https://example.org/"},
                {"label": "Ring", "action": "phone", "phoneNumber": "02-000-0000"},
                {"label": "Crooked", "action": "webLink", "webLinkUrl": "javascript:alert(1)"},
            ],
        }
    },
    {"listCard": {"header": {"title": "List"}, "items": [{"title": "One", "description": "first"}, {"title": "Two"}]}},
    {"itemCard": {"title": "Items", "itemList": [{"title": "From", "description": "Hanyang"}]}},
    {"commerceCard": {"description": "A horse", "price": 10000, "currency": "won"}},
    {
        "carousel": {
            "type": "textCard",
            "items": [{"title": f"Card {number}", "description": "x " * 30} for number in range(6)],
        }
    },
    {"fromTheFuture": {"text": "?"}},
]


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with launch_browser() as browser:
        yield browser


@asynccontextmanager
async def opened(
    chromium: Browser,
    demo: RunningDemo,
    locale: str = "en-GB",
    viewport: ViewportSize = WIDE,
) -> AsyncGenerator[Page]:
    context = await chromium.new_context(base_url=demo.page, locale=locale, viewport=viewport)
    async with open_checked_page(context) as page:
        await page.goto("/")
        yield page
    await context.close()


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.keyboard.press("Enter")


async def test_pairing_and_talking(chromium: Browser, demo: RunningDemo, bot: EchoBot) -> None:
    async with opened(chromium, demo) as page:
        await expect(page.get_by_role("status")).to_have_text("Connected")
        log = page.get_by_role("log")
        await write(page, "hello?")
        await expect(log).to_contain_text("You are not connected to a bot yet.")
        await page.get_by_role("button", name=re.compile("pair [A-Z2-9]{4}-[A-Z2-9]{4}$")).click()
        await expect(log).to_contain_text("Connected! Your messages now go to the bot.")
        await expect(page.get_by_role("button", name="/pair")).to_be_hidden()

        await write(page, "Are you there?")
        await expect(log).to_contain_text("Echo: Are you there?")
        await expect(page.locator(".typing")).to_have_count(0)
        await page.get_by_role("group", name="Quick replies").get_by_role("button", name="card").click()
        await expect(log.get_by_role("article")).to_contain_text("Riders who handed a message on")
        await log.get_by_role("button", name="Well met").click()
        await expect(log).to_contain_text("Echo: Well met")
        await save_screenshot(page, "talk-light-wide-en")

        await page.reload()
        await expect(log).to_contain_text("Echo: Well met")
        await expect(log.locator(".turn.mine")).to_have_count(5)


async def test_the_page_shows_that_the_bot_is_busy(
    chromium: Browser, demo: RunningDemo, bot: EchoBot, workers: None
) -> None:
    async with opened(chromium, demo) as page:
        await page.get_by_role("button", name="/pair").click()
        await expect(page.get_by_role("log")).to_contain_text("Connected!")
        await write(page, "slowly")
        await expect(page.locator(".typing")).to_contain_text("Hm …")
        await save_screenshot(page, "thinking-light-wide-en")
        await expect(page.get_by_role("log")).to_contain_text("The bot is still working on a reply.")
        await expect(page.locator(".typing")).to_have_count(0)


async def test_the_page_works_with_the_keyboard_alone(chromium: Browser, demo: RunningDemo, bot: EchoBot) -> None:
    async with opened(chromium, demo) as page:
        code = page.get_by_role("button", name="/pair")
        await expect(code).to_be_visible()
        await expect(page.get_by_role("textbox")).to_be_focused()
        await page.keyboard.press("Shift+Tab")
        await expect(code).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("log")).to_contain_text("Connected!")
        await expect(page.get_by_role("textbox")).to_be_focused()

        await page.keyboard.type("one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("two")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("log")).to_contain_text("Echo: one")
        assert "Echo: one\ntwo" in await page.locator(".bubble").all_inner_texts()
        await page.keyboard.press("Shift+Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("log").locator(".mine").last).to_contain_text("slowly")


async def test_the_page_in_korean(chromium: Browser, demo: RunningDemo, bot: EchoBot) -> None:
    async with opened(chromium, demo, "ko-KR") as page:
        await expect(page.locator("html")).to_have_attribute("lang", "ko")
        await expect(page.get_by_role("heading", level=1)).to_have_text("파발 데모 채널")
        await page.get_by_role("button", name="/pair").click()
        await expect(page.get_by_role("log")).to_contain_text("Connected!")  # the hub's own language is a setting
        await write(page, "안녕, 봇아")
        await expect(page.get_by_role("log")).to_contain_text("메아리: 안녕, 봇아")
        await page.get_by_role("button", name="카드").click()
        await expect(page.get_by_role("article")).to_contain_text("조선의 통신")
        await save_screenshot(page, "talk-light-wide-ko")


@pytest.mark.parametrize("locale", ["en-GB", "ko-KR"])
@pytest.mark.parametrize("viewport", [NARROW, WIDE], ids=["phone", "wide"])
async def test_nothing_is_too_wide_or_too_faint(
    chromium: Browser, demo: RunningDemo, bot: EchoBot, locale: str, viewport: ViewportSize
) -> None:
    async with opened(chromium, demo, locale, viewport) as page:
        await expect(page.get_by_role("button", name="/pair")).to_be_visible()
        await save_screenshot(page, f"first-{locale[:2]}-{viewport['width']}")
        me = await page.evaluate("sessionStorage.getItem('me')")
        chat = demo.kakao.chat(me)
        chat.add("mine", text=LONG)
        chat.add("failed", why="refused", status=503)
        chat.add("said", outputs=KINDS[:3], quickReplies=[])
        chat.add("said", outputs=KINDS[3:], quickReplies=[{"label": f"reply {n}"} for n in range(10)])
        chat.add("lapsed", answers=1)
        chat.add("awaited", text=None, answers=2)
        await expect(page.locator(".typing")).to_be_visible()

        for colours in ("light", "dark"):
            await page.emulate_media(color_scheme=colours)
            assert not await find_overflows(page)
            assert not await page.get_by_role("log").evaluate("log => log.scrollWidth > log.clientWidth")
            assert await find_low_contrast(page) == []
            name = f"{locale[:2]}-{colours}-{viewport['width']}"
            await page.get_by_role("log").evaluate("log => log.scrollTop = log.scrollHeight")
            await save_screenshot(page, f"kinds-{name}")
            await page.get_by_role("log").evaluate("log => log.scrollTop = 0")
            await save_screenshot(page, f"kinds-top-{name}")


async def test_cards_are_shown_in_a_plain_form_and_nothing_in_them_runs(chromium: Browser, demo: RunningDemo) -> None:
    async with opened(chromium, demo) as page:
        await expect(page.get_by_role("status")).to_have_text("Connected")
        demo.kakao.chat(await page.evaluate("sessionStorage.getItem('me')")).add("said", outputs=KINDS, quickReplies=[])

        log = page.get_by_role("log")
        await expect(log).to_contain_text("<b>plain</b> & honest")
        await expect(log.get_by_role("link", name="A rider")).to_have_attribute("href", "https://example.org/a.png")
        await expect(log.get_by_role("link", name="Read")).to_have_attribute("href", "https://example.org/")
        await expect(log.get_by_role("link", name="Ring")).to_have_attribute("href", "tel:02-000-0000")
        await expect(log.get_by_role("button", name="Crooked")).to_be_visible()
        await expect(log.get_by_role("listitem")).to_have_text(["One: first", "Two"])
        await expect(log.get_by_role("definition")).to_have_text("Hanyang")
        await expect(log).to_contain_text("10,000 won")
        await expect(log.locator(".row > article")).to_have_count(6)
        await expect(log).to_contain_text('{"fromTheFuture":{"text":"?"}}')


async def test_each_tab_is_a_user(chromium: Browser, demo: RunningDemo, bot: EchoBot) -> None:
    context = await chromium.new_context(base_url=demo.page, locale="en-GB")
    async with open_checked_page(context) as first, open_checked_page(context) as second:
        for page in (first, second):
            await page.goto("/")
            await page.get_by_role("button", name="/pair").click()
            await expect(page.get_by_role("log")).to_contain_text("Connected!")
        await wait_until(lambda: len(demo.paired) == 2)
        await write(first, "only for the first")
        await expect(first.get_by_role("log")).to_contain_text("Echo: only for the first")
        await expect(second.get_by_role("log")).not_to_contain_text("only for the first")
    await context.close()


async def test_the_page_shows_that_the_demo_stopped(chromium: Browser, demo: RunningDemo) -> None:
    context = await chromium.new_context(base_url=demo.page, locale="en-GB")
    page = await context.new_page()
    await page.goto("/")
    await expect(page.get_by_role("status")).to_have_text("Connected")
    await page.route("**/chats/*", lambda route: route.abort())
    await write(page, "hello?")
    await expect(page.get_by_role("status")).to_contain_text("The demo has stopped.")
    await context.close()
