"""The portal in a real browser: pairing, codes with a countdown, approving and blocking users, phone."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from relay.people import add_account, conversation_state_of, new_session, pair_user, send_command
from support.browser import NARROW, WIDE, find_low_contrast, find_overflows, open_checked_page, save_screenshot
from support.relay_log import MessageLog

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

MINA = "mina-plusfriend-1"


async def sign_in_to_portal(page: Page, token: str) -> None:
    await page.goto("/portal")
    await expect(page.locator("input[name=token]")).to_be_focused()
    await page.keyboard.type(token)
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("/portal$"))


async def test_an_unpaired_session_continues_when_it_is_paired(hub: Hub, page: Page) -> None:
    session = await new_session(hub)
    await sign_in_to_portal(page, session.token)
    await expect(page.locator(".pairing-command")).to_have_text(f"/pair {session.code}")
    await save_screenshot(page, "portal-waiting")

    await send_command(hub, MINA, f"/pair {session.code}")

    await expect(page.get_by_role("heading", name="Users")).to_be_visible(timeout=15_000)
    await expect(page.locator("#users")).to_contain_text("Connected")


async def test_pairing_a_user_with_a_code_and_blocking_them(hub: Hub, page: Page, message_log: MessageLog) -> None:
    bot = await add_account(hub, "Minu's bot")
    await sign_in_to_portal(page, bot.token)
    await page.get_by_role("button", name="Create pairing code").click()
    typed = await page.locator(".pairing-command").inner_text()
    await expect(page.locator("[data-seconds-left]")).to_have_text(re.compile(r"9:5\d"))
    await page.evaluate("window.untouched = true")

    await send_command(hub, MINA, typed)
    await expect(page.locator("#users tbody tr")).to_have_count(1, timeout=15_000)
    await page.get_by_role("button", name="Block", exact=True).focus()
    await pair_user(hub, "jun-plusfriend-22", bot.account)
    await expect(page.locator("#users tbody tr")).to_have_count(2, timeout=15_000)
    await expect(page.get_by_role("button", name="Block", exact=True).last).to_be_focused()
    assert await page.evaluate("window.untouched")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("bot:mina…nd-1 will be blocked")).to_be_visible()
    await page.get_by_role("button", name="Continue").click()

    await expect(page.get_by_role("status").first).to_have_text("Blocked.")
    assert (await conversation_state_of(message_log.db, MINA))[0] == "BLOCKED"
    await page.get_by_role("button", name="Rotate token").click()
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".secret")).to_have_text(re.compile("prt_"))
    await page.get_by_role("link", name="I have saved it").click()
    await page.get_by_role("button", name="Sign out on this device").click()
    await expect(page.locator("input[name=token]")).to_be_visible()


@pytest.mark.parametrize(("scheme", "locale", "size"), [("dark", "ko-KR", NARROW), ("light", "en-GB", WIDE)])
async def test_the_layout_fits_and_is_readable(
    hub: Hub, chromium: Browser, address: str, message_log: MessageLog, scheme: Any, locale: str, size: Any
) -> None:
    name = f"{'phone' if size is NARROW else 'wide'}-{locale[:2]}-{scheme}"
    bot = await add_account(hub, "아주아주긴이름의봇" * 6)
    context = await chromium.new_context(base_url=address, locale=locale, viewport=size, color_scheme=scheme)
    async with open_checked_page(context) as page:
        await page.goto("/portal/login")
        await save_screenshot(page, f"portal-login-{name}")
        assert not await find_overflows(page)
        await sign_in_to_portal(page, bot.token)
        await save_screenshot(page, f"portal-empty-{name}")
        for user in ("mina-plusfriend-1", "jun-plusfriend-22", "sora-plusfriend-333"):
            await pair_user(hub, user, bot.account)
        await message_log.db.execute(
            "update conversation_mappings set state = 'PENDING' where conversation_key like '%jun%'"
        )
        await message_log.db.execute(
            "update conversation_mappings set state = 'BLOCKED' where conversation_key like '%sora%'"
        )
        message = await message_log.insert_message(bot.account, MINA, "긴 이야기를 해 줘 " * 10)
        await message_log.insert_reply(message, "옛날 옛적에\n" * 9, "refused", "Kakao answered 400")
        await page.locator("form[action='/portal/code'] button").click()
        for path in ("", "/messages", f"/messages/{message}"):
            await page.goto(f"/portal{path}")
            await save_screenshot(
                page, f"portal-{'home' if not path else 'messages' if len(path) < 10 else 'message'}-{name}"
            )
            assert not await find_overflows(page), path
            assert await find_low_contrast(page) == [], path
    await context.close()
