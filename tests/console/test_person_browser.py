"""The page of a person in a real browser: live toasts, preferences, tabs in sync, phone, keyboard."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from pabal.hub import Hub
from pabal.notifications.people.preferences import Preferences, load_preferences
from pabal.notifications.toasts.inbox import ToastAction
from pabal.web.auth import PERSON_COOKIE, PERSON_COOKIE_PATH
from support.browser import (
    NARROW,
    SCHEMES,
    WIDE,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.inbox import HOSTILE_TEXTS, MINA, Inbox
from support.server import serve_hub
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as where:
        yield where


async def preferences_of(hub: Hub, person: str = MINA) -> Preferences:
    async with hub.autocommit() as tx:
        return await load_preferences(tx, person)


async def new_context(chromium: Browser, address: str, **options: Any) -> BrowserContext:
    context_options: dict[str, Any] = {"base_url": address, "locale": "en-GB", "viewport": WIDE} | options
    return await chromium.new_context(**context_options)


@pytest.fixture
async def page(chromium: Browser, address: str) -> AsyncGenerator[Page]:
    context = await new_context(chromium, address)
    async with open_checked_page(context) as window:
        yield window
    await context.close()


async def open_person_page(page: Page, inbox: Inbox) -> None:
    """Open the page with the cookie that a link is exchanged for."""
    cookie = await inbox.cookie()
    await page.context.add_cookies(
        [
            {
                "name": PERSON_COOKIE,
                "value": cookie,
                "domain": "127.0.0.1",
                "path": PERSON_COOKIE_PATH,
                "httpOnly": True,
                "sameSite": "Lax",
            }
        ]
    )
    await open_page(page, "/me")


async def test_the_link_opens_the_page_and_is_removed_from_the_url(page: Page, inbox: Inbox) -> None:
    await inbox.insert_toast(title="Payment received", body="Thank you.")
    await page.goto(f"/me?token={await inbox.token()}")
    await page.locator("button.main").click()
    await page.wait_for_url("**/me")

    assert page.url.endswith("/me")
    await expect(page.get_by_role("heading", level=1)).to_have_text("My notifications")
    await expect(page.get_by_role("article", name="Payment received")).to_contain_text("Thank you.")
    await expect(page).to_have_title("(1) My notifications · Pabal")


async def test_a_new_toast_appears_without_a_reload(page: Page, inbox: Inbox) -> None:
    await open_person_page(page, inbox)
    await expect(page.get_by_text("No notifications yet.")).to_be_visible()
    toast = await inbox.insert_toast(title="It is here", body="while you looked")

    await expect(page.locator("#popups article")).to_contain_text("It is here")
    await expect(page.locator(f"#inbox #toast-{toast}")).to_contain_text("while you looked")
    await expect(page).to_have_title("(1) My notifications · Pabal")
    await wait_until(lambda: seen(inbox))
    await save_screenshot(page, "me-live")


async def seen(inbox: Inbox) -> bool:
    return all(toast.seen_at for toast in await inbox.list_toasts())


async def test_a_toast_read_in_one_tab_is_read_in_all_tabs_and_devices(
    chromium: Browser, address: str, inbox: Inbox
) -> None:
    await inbox.insert_toast(title="Everywhere")
    here, phone = await new_context(chromium, address), await new_context(chromium, address, viewport=NARROW)
    async with open_checked_page(here) as one, open_checked_page(here) as two, open_checked_page(phone) as three:
        await open_person_page(one, inbox)
        await two.goto("/me")
        await open_person_page(three, inbox)
        for tab in (one, two, three):
            await expect(tab).to_have_title("(1) My notifications · Pabal")

        await one.get_by_role("button", name="Mark as read", exact=True).click()

        for tab in (one, two, three):
            await expect(tab).to_have_title("My notifications · Pabal")
            await expect(tab.get_by_role("button", name="Mark as read", exact=True)).to_have_count(0)
        await three.get_by_role("button", name="Archive").click()
        for tab in (one, two, three):
            await expect(tab.get_by_text("No notifications yet.")).to_be_visible()
    await here.close()
    await phone.close()


async def test_toasts_sent_during_an_outage_appear_afterwards(
    chromium: Browser, hub: Hub, inbox: Inbox, address: str
) -> None:
    context = await new_context(chromium, address)
    page = await context.new_page()
    await open_person_page(page, inbox)
    await wait_until(lambda: len(hub.toast_streams) == 1)
    await context.set_offline(True)
    hub.toast_streams.close_all()
    await expect(page.get_by_role("alert")).to_contain_text("Connection lost")
    await save_screenshot(page, "me-away")
    await inbox.insert_toast(title="Meanwhile")
    await context.set_offline(False)

    await expect(page.locator("#inbox").get_by_text("Meanwhile")).to_be_visible(timeout=15_000)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await context.close()


async def test_a_preference_is_saved_when_it_is_switched(page: Page, inbox: Inbox, hub: Hub) -> None:
    await open_person_page(page, inbox)
    await expect(page.get_by_role("button", name="Save")).to_be_hidden()

    await page.get_by_role("switch", name="Payments").uncheck()
    await expect(page.locator("#saved")).to_have_text("Saved.")
    await page.get_by_role("switch", name="Advertising at night").check()
    await wait_until(lambda: load_consent(hub))

    assert not (await preferences_of(hub)).payment_notifications
    await page.reload()
    await expect(page.get_by_role("switch", name="Payments")).not_to_be_checked()
    await expect(page.get_by_role("switch", name="Advertising at night")).to_be_checked()


async def load_consent(hub: Hub) -> bool:
    return (await preferences_of(hub)).night_consent_at is not None


async def test_a_preference_that_could_not_be_saved_switches_back(
    chromium: Browser, address: str, inbox: Inbox
) -> None:
    context = await new_context(chromium, address)
    page = await context.new_page()
    await open_person_page(page, inbox)
    await page.route("**/me/preferences", lambda route: route.abort())

    await page.get_by_role("switch", name="Payments").click()

    await expect(page.locator("#saved")).to_have_text("Could not save. Please try again.")
    await expect(page.get_by_role("switch", name="Payments")).to_be_checked()
    await context.close()


async def test_every_action_works_without_scripts(chromium: Browser, address: str, inbox: Inbox, hub: Hub) -> None:
    await inbox.insert_toast(title="Plain")
    context = await new_context(chromium, address, java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"/me?token={await inbox.token()}")
    await page.locator("button.main").click()
    await page.get_by_role("switch", name="Recovery").uncheck()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("Saved.")).to_be_visible()
    await page.get_by_role("button", name="Mark as read", exact=True).click()
    await expect(page.get_by_text("All caught up.")).to_be_visible()
    await page.get_by_role("button", name="한국어").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("내 알림")
    await page.get_by_role("button", name="이 기기에서 로그아웃").click()
    await expect(page.get_by_role("alert")).to_be_visible()

    assert not (await preferences_of(hub)).recovery_notifications
    await context.close()


async def test_navigation_works_with_the_keyboard_alone(page: Page, inbox: Inbox, hub: Hub) -> None:
    first, second = await inbox.insert_toast(title="First"), await inbox.insert_toast(title="Second")
    await open_person_page(page, inbox)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.locator(f"#read-{second}").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(f"#toast-{second}")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.locator(f"#archive-{second}")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(f"#toast-{first}")).to_be_focused()
    await page.get_by_role("switch", name="Discord direct messages").focus()
    await page.keyboard.press("Space")
    await expect(page.locator("#saved")).to_have_text("Saved.")

    assert not (await preferences_of(hub)).dm_enabled


async def test_a_toast_runs_no_script(page: Page, inbox: Inbox) -> None:
    earlier = [await inbox.insert_toast(title=text, body=text) for text in HOSTILE_TEXTS]
    await open_person_page(page, inbox)
    for toast, text in zip(earlier, HOSTILE_TEXTS, strict=True):
        await expect(page.locator(f"#toast-{toast} .body")).to_have_text(text)
    for text in HOSTILE_TEXTS:
        live = await inbox.insert_toast(title=text, body=text)

        await expect(page.locator("#popups article").last).to_contain_text(text)
        await expect(page.locator(f"#toast-{live} .body")).to_have_text(text)
        assert await page.evaluate("window.hacked") is None, text


@pytest.mark.parametrize("locale", ["en-GB", "ko-KR"])
async def test_the_layout_fits_and_is_readable(chromium: Browser, address: str, inbox: Inbox, locale: str) -> None:
    context = await new_context(chromium, address, locale=locale)
    async with open_checked_page(context) as page:
        await open_person_page(page, inbox)
        await expect(page.locator("html")).to_have_attribute("lang", locale[:2])
        await check_layout(page, f"empty-{locale[:2]}")
        await fill(inbox)
        await expect(page.locator("#inbox article")).to_have_count(6)
        await page.keyboard.press("Escape")
        await expect(page.locator("#popups article")).to_have_count(0)
        await check_layout(page, f"full-{locale[:2]}")
        await open_page(page, "/me?view=archived")
        await check_layout(page, f"archived-{locale[:2]}")
    await context.close()


async def check_layout(page: Page, name: str) -> None:
    """Check that nothing overflows a phone or a desktop, and that all texts are readable, light and dark."""
    for size, viewport in (("phone", NARROW), ("wide", WIDE)):
        await page.set_viewport_size(viewport)
        assert not await find_overflows(page), (name, size)
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            await save_screenshot(page, f"me-{name}-{size}-{scheme}")
            assert await find_low_contrast(page) == [], (name, size, scheme)


async def fill(inbox: Inbox) -> None:
    await inbox.insert_toast(
        title="결제가 완료되었습니다", body="9,900원 · 파발 프로 (월간)\n영수증은 대시보드에서 볼 수 있습니다."
    )
    read = await inbox.insert_toast(
        category="recovery", title="복구가 끝났습니다", body="채널 42개와 역할 17개를 되돌렸습니다."
    )
    await inbox.mark(read, ToastAction.READ)
    away = await inbox.insert_toast(category="system", title="Put away", body="Old news.")
    await inbox.mark(away, ToastAction.ARCHIVE)
    await inbox.insert_toast(category="marketing", title="Spring offer", body="Two months for the price of one.")
    await inbox.insert_toast(category="system", title=None, body="A notice that has no title at all, only this line.")
    await inbox.insert_toast(title="W" * 120, body="https://example.org/" + "very-long-path/" * 12)
    await inbox.insert_toast(
        category="antinuke",
        title="AntiNuke: 14 channels were deleted within 8 seconds",
        body="By bot “helper#0420” in guild Sejong. Its permissions were taken away.",
    )
