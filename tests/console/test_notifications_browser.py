"""Notifications in a real browser: keyboard, live updates, phone."""

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from pabal.notifications.dispatch.addresses import mark_address_unhealthy
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from support.browser import NARROW, find_low_contrast, find_overflows, open_checked_page, open_page, save_screenshot
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.operator import add_operator_cookie, open_console
from support.rules import TESTER, add_test_rule

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

NOTIFICATIONS_PATH = "/console/notifications"


@pytest.fixture
async def notifications_hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def test_opening_a_notification_from_the_log_and_cancelling_it(notifications_hub: Hub, page: Page) -> None:
    await request_drafts(notifications_hub, draft_notification(notifications_hub))
    await open_console(page, notifications_hub)
    await page.keyboard.press("g")
    await page.keyboard.press("n")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Notifications")
    await page.wait_for_load_state()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_contain_text("payment.succeeded")
    await expect(page.get_by_role("region", name="Why")).to_contain_text("Direct messages are on.")
    await expect(page.get_by_role("region", name="Content")).to_contain_text("결제가 완료됐어요")
    await save_screenshot(page, "notice-pending")
    await page.get_by_role("button", name="Cancel notification").click()
    await expect(page.get_by_role("status")).to_have_text("Notification cancelled.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Suppressed")


async def test_a_new_notification_appears_without_a_reload(notifications_hub: Hub, page: Page) -> None:
    await open_console(page, notifications_hub, NOTIFICATIONS_PATH)
    await page.evaluate("window.untouched = true")
    await expect(page.get_by_text("No notifications yet.")).to_be_visible()

    await request_drafts(notifications_hub, draft_notification(notifications_hub, "antinuke.triggered"))

    row = page.get_by_role("row", name="antinuke.triggered")
    await expect(row).to_contain_text("Emergency", timeout=15_000)
    assert await page.evaluate("window.untouched")


async def test_a_rule_is_added_with_the_form(notifications_hub: Hub, page: Page) -> None:
    await open_console(page, notifications_hub, f"{NOTIFICATIONS_PATH}/rules")
    await page.get_by_role("link", name="Add rule").click()
    await page.get_by_label("Name").fill("Paid")
    await page.get_by_label("Events").fill("order.paid")
    await page.get_by_label("Template").select_option("payment.succeeded")
    await page.get_by_label("Recipients").fill("user.discord_id")
    await page.get_by_label("Dashboard").check()
    await save_screenshot(page, "rule-form")
    await page.get_by_role("button", name="Save").click()

    await expect(page.get_by_role("status")).to_have_text("Rule saved.")
    await expect(page.get_by_role("row", name="Paid")).to_contain_text(
        "When order.paid arrives, send payment.succeeded"
    )
    await page.get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status")).to_have_text("Rule removed.")


async def test_the_korean_dark_layout_fits_a_phone_and_is_readable(
    notifications_hub: Hub, chromium: Browser, address: str
) -> None:
    rule, notification = await fill(notifications_hub)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    await add_operator_cookie(context, notifications_hub)
    async with open_checked_page(context) as page:
        sections = ("/templates", "/templates/antinuke.triggered", "/rules", f"/rules/{rule}", "/addresses")
        for path in (NOTIFICATIONS_PATH + section for section in ("", *sections, f"/{notification}")):
            await open_page(page, path)
            await expect(page.locator("html")).to_have_attribute("lang", "ko")
            await save_screenshot(page, f"phone-{path.replace('/', '-')}")
            assert not await find_overflows(page), path
            assert await find_low_contrast(page) == [], path
            await page.emulate_media(color_scheme="light")
            assert await find_low_contrast(page) == [], path
            await page.emulate_media(color_scheme="dark")
    await context.close()


async def fill(hub: Hub) -> tuple[str, str]:
    """Create a rule and notifications; returns the ids of the rule and of the newest notification."""
    async with hub.transaction() as tx:
        await update_preferences(tx, "200", PreferencesUpdate(dm_enabled=False), TESTER)
    long = {"item": "W" * 200, "amount": 12900, "currency": "https://example.org/" + "very-long/" * 20}
    await request_drafts(
        hub,
        draft_notification(hub, recipient="200"),
        draft_notification(hub, "antinuke.triggered"),
        draft_notification(hub, payload=long),
    )
    [closed] = await request_drafts(hub, draft_notification(hub, recipient="830000000000000004"))
    async with hub.transaction() as tx:
        await mark_address_unhealthy(tx, closed.id, "Discord answered 403 (50007): Cannot send messages to this user")
    rule = await add_test_rule(
        hub, name="아주 긴 이름을 가진 결제 알림 규칙", recipients=["user.discord_id", "a" * 250]
    )
    return str(rule.id), str(closed.id)
