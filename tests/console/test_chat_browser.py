"""The chat page on a phone: open, export and erase."""

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from relay.people import RelayAccount, add_account, pair_user, send_command
from support.browser import NARROW, WIDE, find_low_contrast, find_overflows, open_checked_page, save_screenshot
from support.relay_log import MessageLog

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

MINA = "mina-plusfriend-1"


@pytest.fixture
async def bot(hub: Hub) -> RelayAccount:
    owner = await add_account(hub, "집사")
    await pair_user(hub, MINA, owner.account)
    return owner


@pytest.fixture
async def page(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW)
    async with open_checked_page(context) as window:
        yield window
    await context.close()


async def create_link(hub: Hub) -> str:
    """Return the link that /code replies with."""
    [code] = re.findall(r"(/chat\?code=[\w-]+)", await send_command(hub, MINA, "/code"))
    return code


async def open_chat(page: Page, hub: Hub) -> None:
    """Open the link and press its button."""
    await page.goto(await create_link(hub))
    await save_screenshot(page, "chat-door")
    await expect(page.locator("button.main")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/chat")


async def test_opening_exporting_and_erasing_a_conversation(
    hub: Hub, page: Page, bot: RelayAccount, message_log: MessageLog
) -> None:
    await message_log.insert_reply(
        await message_log.insert_message(bot.account, MINA, "몇 시예요?"), "아홉 시 반이에요."
    )
    await open_chat(page, hub)

    assert page.url.endswith("/chat")
    await expect(page.get_by_role("status")).to_have_text("봇과 연결되어 있어요.")
    await expect(page.locator(".from-bot .bubble")).to_have_text("아홉 시 반이에요.")
    await page.evaluate("window.untouched = true")
    await message_log.insert_message(bot.account, MINA, "고마워요")
    await expect(page.locator(".from-user .bubble").last).to_have_text("고마워요", timeout=15_000)
    assert await page.evaluate("window.untouched")
    async with page.expect_download() as coming:
        await page.get_by_role("link", name="내려받기").click()
    document = json.loads((await (await coming.value).path()).read_text())
    assert len(document["messages"]) == 2
    await page.get_by_role("button", name="모두 지우기").click()
    await expect(page.get_by_text("메시지 2건")).to_be_visible()
    await save_screenshot(page, "chat-sure")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("모두 지웠어요")
    await save_screenshot(page, "chat-gone")
    assert await message_log.count("inbound_messages") == 0


async def test_an_expired_page_says_so(hub: Hub, chromium: Browser, address: str, bot: RelayAccount) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB", viewport=NARROW)
    page = await context.new_page()
    await open_chat(page, hub)
    await expect(page.get_by_role("status")).to_have_text("You are connected to a bot.")
    await create_link(hub)

    await expect(page.get_by_role("alert")).to_contain_text("This page is closed", timeout=15_000)
    await save_screenshot(page, "chat-closed")
    await context.close()


@pytest.mark.parametrize(("scheme", "locale", "size"), [("dark", "ko-KR", NARROW), ("light", "en-GB", WIDE)])
async def test_the_layout_fits_and_is_readable(
    hub: Hub,
    chromium: Browser,
    address: str,
    bot: RelayAccount,
    message_log: MessageLog,
    scheme: Any,
    locale: str,
    size: Any,
) -> None:
    name = f"{'phone' if size is NARROW else 'wide'}-{locale[:2]}-{scheme}"
    context = await chromium.new_context(base_url=address, locale=locale, viewport=size, color_scheme=scheme)
    async with open_checked_page(context) as page:
        await open_chat(page, hub)
        await save_screenshot(page, f"chat-empty-{name}")
        assert not await find_overflows(page)
        await message_log.insert_reply(
            await message_log.insert_message(bot.account, MINA, "긴 이야기를 해 줘 " * 10), "옛날 옛적에\n" * 9
        )
        await message_log.insert_reply(
            await message_log.insert_message(bot.account, MINA, "W" * 160), "no", "refused", "no"
        )
        await message_log.insert_message(bot.account, MINA, None)
        await expect(page.locator(".from-user")).to_have_count(3, timeout=15_000)
        await save_screenshot(page, f"chat-full-{name}")
        assert not await find_overflows(page)
        assert await find_low_contrast(page) == []
    await context.close()
