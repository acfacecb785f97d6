"""The notifications room in a real browser: by keyboard, alive, on a phone."""

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from pabal.notifications.dispatch.addresses import mark_address_unhealthy
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from support.browser import NARROW, overflows, picture, too_faint, watched
from support.notifications import draft_notification as notice
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.operator import PASSWORD, enter
from support.rules import TESTER
from support.rules import add_test_rule as add

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

ROOM = "/console/notifications"


@pytest.fixture
async def room(hub: Hub) -> Hub:
    return await registered(hub)


async def test_from_the_log_to_a_notification_and_calling_it_off(room: Hub, page: Page) -> None:
    await asked(room, notice(room))
    await enter(page)
    await page.keyboard.press("g")
    await page.keyboard.press("n")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Notifications")
    await page.wait_for_load_state()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_contain_text("payment.succeeded")
    await expect(page.get_by_role("region", name="Why")).to_contain_text("Direct messages are on.")
    await expect(page.get_by_role("region", name="Content")).to_contain_text("결제가 완료됐어요")
    await picture(page, "notice-pending")
    await page.get_by_role("button", name="Cancel notification").click()
    await expect(page.get_by_role("status")).to_have_text("Notification cancelled.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Suppressed")


async def test_a_notification_comes_while_somebody_looks(room: Hub, page: Page) -> None:
    await enter(page)
    await page.goto(ROOM)
    await page.evaluate("window.untouched = true")
    await expect(page.get_by_text("No notifications yet.")).to_be_visible()

    await asked(room, notice(room, "antinuke.triggered"))

    row = page.get_by_role("row", name="antinuke.triggered")
    await expect(row).to_contain_text("Emergency", timeout=15_000)
    assert await page.evaluate("window.untouched")


async def test_a_rule_is_written_in_a_form(room: Hub, page: Page) -> None:
    await enter(page)
    await page.goto(f"{ROOM}/rules")
    await page.get_by_role("link", name="Add rule").click()
    await page.get_by_label("Name").fill("Paid")
    await page.get_by_label("Events").fill("order.paid")
    await page.get_by_label("Template").select_option("payment.succeeded")
    await page.get_by_label("Recipients").fill("user.discord_id")
    await page.get_by_label("Dashboard").check()
    await picture(page, "rule-form")
    await page.get_by_role("button", name="Save").click()

    await expect(page.get_by_role("status")).to_have_text("Rule saved.")
    await expect(page.get_by_role("row", name="Paid")).to_contain_text(
        "When order.paid arrives, send payment.succeeded"
    )
    await page.get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status")).to_have_text("Rule removed.")


async def test_on_a_phone_at_night_in_korean_everything_fits_and_can_be_read(
    room: Hub, chromium: Browser, address: str
) -> None:
    rule = await fill(room)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    async with watched(context) as page:
        await page.goto("/console/login")
        await page.get_by_label("비밀번호").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("개요")
        await page.goto(ROOM)
        first = await page.locator("[data-row]").first.get_attribute("href")
        rooms = ("", "/templates", "/templates/antinuke.triggered", "/rules", f"/rules/{rule}", "/addresses")
        for path in (*(ROOM + each for each in rooms), str(first)):
            await page.goto(path)
            await picture(page, f"phone-{path.replace('/', '-')}")
            assert not await overflows(page), path
            assert await too_faint(page) == [], path
            await page.emulate_media(color_scheme="light")
            assert await too_faint(page) == [], path
            await page.emulate_media(color_scheme="dark")
    await context.close()


async def fill(hub: Hub) -> str:
    async with hub.transaction() as tx:
        await update_preferences(tx, "200", PreferencesUpdate(dm_enabled=False), TESTER)
    long = {"item": "W" * 200, "amount": 12900, "currency": "https://example.org/" + "very-long/" * 20}
    await asked(hub, notice(hub, recipient="200"), notice(hub, "antinuke.triggered"), notice(hub, payload=long))
    [closed] = await asked(hub, notice(hub, recipient="830000000000000004"))
    async with hub.transaction() as tx:
        await mark_address_unhealthy(tx, closed.id, "Discord answered 403 (50007): Cannot send messages to this user")
    rule = await add(hub, name="아주 긴 이름을 가진 결제 알림 규칙", recipients=["user.discord_id", "a" * 250])
    return str(rule.id)
