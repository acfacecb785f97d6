"""The relay's room in a real browser: made, watched and ended by hand; on a phone, in the dark, in Korean."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from relay.people import an_owner, pair
from support.browser import BETWEEN, NARROW, WIDE, overflows, picture, too_faint, watched
from support.operator import PASSWORD, enter
from support.relay_log import Talk

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

USER = "x1-plusfriend-9Q4tzK"


async def test_an_account_is_made_gets_a_code_and_is_deleted(page: Page, talk: Talk) -> None:
    await enter(page)
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Relay")
    await picture(page, "relay-empty")
    await page.get_by_label("Name", exact=True).fill("Minu's bot")
    await page.get_by_role("button", name="Create account").click()
    await expect(page.locator(".secret")).to_have_text(re.compile("prt_"))
    await picture(page, "relay-token")
    await page.get_by_role("link", name="I have saved it").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Minu's bot")
    await page.get_by_role("button", name="Create pairing code").click()
    await expect(page.get_by_role("status").first).to_have_text("Pairing code created.")
    left = page.locator("[data-seconds-left]")
    await expect(left).to_have_text(re.compile(r"9:5\d"))
    await picture(page, "relay-account-new")
    await page.get_by_role("button", name="Delete account").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status").first).to_contain_text("Account deleted. Messages deleted: 0.")
    assert await talk.count("accounts") == 0


async def test_messages_come_without_a_reload_and_are_walked_by_keys(hub: Hub, page: Page, talk: Talk) -> None:
    bot = await an_owner(hub, "minu")
    await pair(hub, USER, bot.account)
    await enter(page)
    await page.goto("/console/relay/messages")
    await expect(page.get_by_text("No messages yet.")).to_be_visible()
    await page.evaluate("window.untouched = true")

    message = await talk.written(bot.account, USER, "is anybody there?")
    await expect(page.get_by_text("is anybody there?")).to_be_visible(timeout=15_000)
    await page.keyboard.press("j")
    await expect(page.locator("[data-row]")).to_be_focused()
    assert await page.evaluate("window.untouched")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_contain_text("Message")
    await expect(page.get_by_text("No reply yet.")).to_be_visible()
    await talk.answered(message, "here I am", "refused", "Kakao answered 400")
    await expect(page.locator("blockquote").get_by_text("here I am")).to_be_visible(timeout=15_000)
    await picture(page, "relay-message")


async def test_a_conversation_is_taken_along_and_erased(hub: Hub, page: Page, talk: Talk) -> None:
    bot = await an_owner(hub, "minu")
    await pair(hub, USER, bot.account)
    await talk.answered(await talk.written(bot.account, USER))
    await enter(page)
    await page.goto(f"/console/relay/conversation?key=bot%3A{USER}")
    await picture(page, "relay-conversation")

    async with page.expect_download() as taken:
        await page.get_by_role("button", name="Export (JSON)").click()
    assert (await taken.value).suggested_filename == "conversation.json"
    await page.get_by_role("button", name="Erase everything").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await expect(page.get_by_text("messages: 1, replies: 1")).to_be_visible()
    await picture(page, "relay-erase")
    await page.get_by_role("button", name="Continue").click()

    await expect(page.get_by_role("status").first).to_contain_text("of which messages: 1.")
    assert await talk.count("conversation_mappings") == 0


async def test_on_a_phone_by_night_in_korean(hub: Hub, chromium: Browser, address: str, talk: Talk) -> None:
    bot = await an_owner(hub, "아주아주긴이름의봇" * 6)
    await pair(hub, USER, bot.account)
    message = await talk.written(bot.account, USER, "오늘 날씨 어때요? " * 12)
    await talk.answered(message, "맑고 서늘합니다.", "refused", "Kakao answered 400: " + "no" * 60)
    await talk.written(bot.account, USER, None)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    async with watched(context) as page:
        await page.goto("/console/login")
        await page.locator("input[name=password]").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/console$"))
        for name, path in (
            ("accounts", ""),
            ("account", f"/accounts/{bot.account}"),
            ("conversations", "/conversations"),
            ("conversation", f"/conversation?key=bot%3A{USER}"),
            ("messages", "/messages"),
            ("message", f"/messages/{message}"),
            ("failures", "/failures"),
        ):
            await page.goto(f"/console/relay{path}")
            await picture(page, f"relay-{name}-phone-dark-ko")
            assert not await overflows(page), name
            assert await too_faint(page) == [], name
            await page.emulate_media(color_scheme="light")
            for size in (*BETWEEN, WIDE):
                await page.set_viewport_size(size)
                assert not await overflows(page), (name, size)
            await picture(page, f"relay-{name}-wide-light-ko")
            assert await too_faint(page) == [], name
            await page.set_viewport_size(NARROW)
            await page.emulate_media(color_scheme="dark")
        await page.get_by_role("button", name="English").click()
        await page.goto(f"/console/relay/conversation?key=bot%3A{USER}")
        assert not await overflows(page)  # what a fact is called is longer here
    await context.close()
