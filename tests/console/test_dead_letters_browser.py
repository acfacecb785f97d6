"""Dead letters in a real browser."""

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
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
from support.failed_events import EventQueue
from support.operator import add_operator_cookie, open_console

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

LONG = "HTTP 500 from the receiver: " + "verylongwordwithoutanyspace" * 12


async def create_dead_letters(event_queue: EventQueue) -> None:
    """Create dead letters of several causes, spread over the last day."""
    await event_queue.insert_failed(40, "order %s not found")
    await event_queue.insert_failed(6, "timed out after 30 s", event_type="cart.filled", code="ETIMEDOUT")
    await event_queue.insert_failed(2, LONG, event_type="invoice.sent")
    await event_queue.owner.execute(
        "update public.dead_letter_queue"
        " set failed_at = pabal.now() - (abs(hashtext(id::text)) % 86000) * interval '1 s'"
    )


async def test_finding_a_cause_and_replaying_its_dead_letters(page: Page, hub: Hub, event_queue: EventQueue) -> None:
    await create_dead_letters(event_queue)
    await event_queue.publish_failed("order.paid", why="the shop was closed")
    await open_console(page, hub)
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    await expect(page.locator("svg.spark")).to_have_count(4)
    await save_screenshot(page, "dead-groups")
    await page.evaluate("window.untouched = true")
    await event_queue.insert_failed(1, "something new")
    await expect(page.get_by_role("link", name="something new")).to_be_visible(timeout=15_000)
    assert await page.evaluate("window.untouched")

    await page.get_by_role("link", name="order <n> not found").click()
    await expect(page.get_by_role("row")).to_have_count(41)
    boxes = page.get_by_role("checkbox", name="Select order.paid")
    await boxes.nth(0).check()
    await boxes.nth(1).check()
    selected = page.get_by_role("group", name="Selected")
    await selected.get_by_role("button", name="Replay").click()
    await expect(page.get_by_text("2 dead letters will be replayed")).to_be_visible()
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status")).to_have_text("2 dead letters replayed.")
    await expect(page.get_by_role("row")).to_have_count(39)
    await save_screenshot(page, "dead-letters")

    await page.get_by_label("Select all on this page").check()
    await expect(page.locator("input[name=letter]:checked")).to_have_count(38)
    await selected.get_by_label("Resolution note").fill("a bug of ours")
    await selected.get_by_role("button", name="Resolve").click()
    await expect(page.get_by_text("38 dead letters will be marked as resolved.")).to_be_visible()
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_text("No dead letters match these filters.")).to_be_visible()


async def test_replaying_one_dead_letter_and_all_matching_ones(page: Page, hub: Hub, event_queue: EventQueue) -> None:
    _, letter = await event_queue.publish_failed("order.paid", why=LONG)
    await event_queue.insert_failed(5, "timed out")
    await open_console(page, hub, f"/console/dead/{letter}")
    await save_screenshot(page, "dead-one")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("status")).to_have_text("1 dead letter replayed.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Replayed")

    await page.goto("/console/dead")
    all_matching = page.get_by_role("form", name="All matching")
    await all_matching.get_by_role("button", name="Resolve").click()
    await expect(all_matching.get_by_label("Resolution note")).to_be_focused()  # the browser requires the note
    await page.keyboard.type("known")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("5 dead letters will be marked")).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No dead letters.")).to_be_visible()
    await save_screenshot(page, "dead-none")


async def test_the_korean_dark_layout_fits_a_phone(
    chromium: Browser, hub: Hub, address: str, event_queue: EventQueue
) -> None:
    await create_dead_letters(event_queue)
    _, letter = await event_queue.publish_failed("order.paid", why=LONG)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        for name, path in (
            ("dead-groups-phone", "/console/dead"),
            ("dead-letters-phone", "/console/dead/letters?type=invoice.sent"),
            ("dead-one-phone", f"/console/dead/{letter}"),
        ):
            await open_page(page, path)
            await expect(page.locator("html")).to_have_attribute("lang", "ko")
            await save_screenshot(page, name)
            assert not await find_overflows(page), path
            faint = await find_low_contrast(page)
            assert faint == [], path
            for size in (*TABLET, WIDE, NARROW):
                await page.set_viewport_size(size)
                assert not await find_overflows(page), (path, size)
    await context.close()
