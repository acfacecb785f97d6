"""Relay pages in a real browser: actions, live updates, and the Korean dark layout on a phone."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from relay.people import add_account, pair_user
from support.browser import (
    NARROW,
    TABLET,
    WIDE,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.operator import add_operator_cookie, open_console
from support.relay_log import MessageLog

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

USER = "x1-plusfriend-9Q4tzK"


async def test_creating_an_account_with_a_code_and_deleting_it(page: Page, hub: Hub, message_log: MessageLog) -> None:
    await open_console(page, hub)
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Relay")
    await save_screenshot(page, "relay-empty")
    await page.get_by_label("Name", exact=True).fill("Minu's bot")
    await page.get_by_role("button", name="Create account").click()
    await expect(page.locator(".secret")).to_have_text(re.compile("prt_"))
    await save_screenshot(page, "relay-token")
    await page.get_by_role("link", name="I have saved it").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Minu's bot")
    await page.get_by_role("button", name="Create pairing code").click()
    await expect(page.get_by_role("status").first).to_have_text("Pairing code created.")
    countdown = page.locator("[data-seconds-left]")
    await expect(countdown).to_have_text(re.compile(r"9:5\d"))
    await save_screenshot(page, "relay-account-new")
    await page.get_by_role("button", name="Delete account").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status").first).to_contain_text("Account deleted, with 0 messages.")
    assert await message_log.count("accounts") == 0


async def test_messages_appear_without_a_reload_and_are_navigated_by_keyboard(
    hub: Hub, page: Page, message_log: MessageLog
) -> None:
    bot = await add_account(hub, "minu")
    await pair_user(hub, USER, bot.account)
    await open_console(page, hub, "/console/relay/messages")
    await expect(page.get_by_text("No messages yet.")).to_be_visible()
    await page.evaluate("window.untouched = true")

    message = await message_log.insert_message(bot.account, USER, "is anybody there?")
    await expect(page.get_by_text("is anybody there?")).to_be_visible(timeout=15_000)
    await page.keyboard.press("j")
    await expect(page.locator("[data-row]")).to_be_focused()
    assert await page.evaluate("window.untouched")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_contain_text("Message")
    await expect(page.get_by_text("No reply yet.")).to_be_visible()
    await message_log.insert_reply(message, "here I am", "refused", "Kakao answered 400")
    await expect(page.locator("blockquote").get_by_text("here I am")).to_be_visible(timeout=15_000)
    await save_screenshot(page, "relay-message")


async def test_exporting_and_erasing_a_conversation(hub: Hub, page: Page, message_log: MessageLog) -> None:
    bot = await add_account(hub, "minu")
    await pair_user(hub, USER, bot.account)
    await message_log.insert_reply(await message_log.insert_message(bot.account, USER))
    await open_console(page, hub, f"/console/relay/conversation?key=bot%3A{USER}")
    await save_screenshot(page, "relay-conversation")

    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export (JSON)").click()
    assert (await download.value).suggested_filename == "conversation.json"
    await page.get_by_role("button", name="Erase everything").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await expect(page.get_by_text("messages: 1, replies: 1")).to_be_visible()
    await save_screenshot(page, "relay-erase")
    await page.get_by_role("button", name="Continue").click()

    await expect(page.get_by_role("status").first).to_contain_text("Erased 7 rows (messages: 1).")
    assert await message_log.count("conversation_mappings") == 0


async def test_the_korean_dark_layout_fits_a_phone(
    hub: Hub, chromium: Browser, address: str, message_log: MessageLog
) -> None:
    bot = await add_account(hub, "아주아주긴이름의봇" * 6)
    await pair_user(hub, USER, bot.account)
    message = await message_log.insert_message(bot.account, USER, "오늘 날씨 어때요? " * 12)
    await message_log.insert_reply(message, "맑고 서늘합니다.", "refused", "Kakao answered 400: " + "no" * 60)
    await message_log.insert_message(bot.account, USER, None)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        for name, path in (
            ("accounts", ""),
            ("account", f"/accounts/{bot.account}"),
            ("conversations", "/conversations"),
            ("conversation", f"/conversation?key=bot%3A{USER}"),
            ("messages", "/messages"),
            ("message", f"/messages/{message}"),
            ("failures", "/failures"),
        ):
            await open_page(page, f"/console/relay{path}")
            await save_screenshot(page, f"relay-{name}-phone-dark-ko")
            assert not await find_overflows(page), name
            assert await find_low_contrast(page) == [], name
            await page.emulate_media(color_scheme="light")
            for size in (*TABLET, WIDE):
                await page.set_viewport_size(size)
                assert not await find_overflows(page), (name, size)
            await save_screenshot(page, f"relay-{name}-wide-light-ko")
            assert await find_low_contrast(page) == [], name
            await page.set_viewport_size(NARROW)
            await page.emulate_media(color_scheme="dark")
        await page.get_by_role("button", name="English").click()
        await open_page(page, f"/console/relay/conversation?key=bot%3A{USER}")
        assert not await find_overflows(page)  # the labels are longer here
    await context.close()
