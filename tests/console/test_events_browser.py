"""Events and traces in a real browser: live updates, keyboard navigation and cancelling."""

import re

import msgspec
import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import Hub
from pabal.queue.outcome import Retry
from support.browser import NARROW, find_low_contrast, find_overflows, open_checked_page, open_page, save_screenshot
from support.failed_events import EventQueue, replay_as_operator
from support.operator import add_operator_cookie, open_console

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

LONG = "Traceback: " + "verylongwordwithoutanyspace" * 12
PAYLOAD = msgspec.json.encode({"주문": 77, "buyer": {"name": "민우", "phone": "010-0000-0000"}, "items": ["Nitro"] * 4})


async def create_replayed_event(event_queue: EventQueue) -> str:
    """Create an event that failed, became a dead letter, was replayed, failed again and waits."""
    event, letter = await event_queue.publish_failed(
        "order.payment.captured", why=LONG, correlation_id="order-77", payload=PAYLOAD
    )
    await replay_as_operator(event_queue.hub, letter)
    [held] = await event_queue.claim()
    await event_queue.settle(held, Retry("the shop answered 503"))
    return str(event)


async def test_a_new_event_appears_and_is_cancelled(page: Page, hub: Hub, event_queue: EventQueue) -> None:
    await open_console(page, hub)
    await page.keyboard.press("g")
    await page.keyboard.press("e")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Events")
    await expect(page.get_by_text("No events yet.")).to_be_visible()
    await save_screenshot(page, "events-none")
    await page.evaluate("window.untouched = true")

    await event_queue.publish("order.paid", payload=PAYLOAD)
    await expect(page.get_by_role("row", name="order.paid")).to_contain_text("Pending", timeout=15_000)
    assert await page.evaluate("window.untouched")

    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("order.paid")
    await page.get_by_role("button", name="Cancel event").click()
    await expect(page.get_by_text("1 event will be cancelled.")).to_be_visible()
    await save_screenshot(page, "events-confirm")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status")).to_contain_text("1 event cancelled.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")


async def test_a_search_url_can_be_shared_and_a_trace_opened_from_any_page(
    page: Page, hub: Hub, event_queue: EventQueue
) -> None:
    event = await create_replayed_event(event_queue)
    for place in range(8):
        await event_queue.publish(("cart.filled", "order.paid")[place % 2])
    await event_queue.insert_failed(3, "order %s not found")
    await open_console(page, hub, "/console/events")
    await page.get_by_label("Type", exact=True).fill("order.*")
    await page.get_by_role("button", name="Search").click()
    await page.get_by_role("link", name="Failed").click()
    await expect(page.get_by_role("row")).to_have_count(4)
    assert page.url.endswith("/console/events?type=order.%2A&status=failed")
    await page.get_by_role("link", name="All", exact=True).click()
    await page.wait_for_url(re.compile(r"type=order.%2A$"))  # the script is loaded and handles keys
    await save_screenshot(page, "events-many")

    await page.keyboard.press("/")
    await page.keyboard.type(event[:13])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Trace")
    moments = page.locator(".timeline li")
    await expect(moments).to_have_count(5)
    await expect(moments.nth(2)).to_contain_text("Dead")
    await save_screenshot(page, "trace-event")
    await page.locator('#trace a[href^="/console/dead/"]').first.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Replayed")
    await page.goto(f"/console/events/{event}")
    await save_screenshot(page, "event-one")
    await expect(page.locator("pre")).not_to_contain_text("010-0000")


async def test_the_korean_dark_layout_fits_a_phone(
    chromium: Browser, hub: Hub, address: str, event_queue: EventQueue
) -> None:
    event = await create_replayed_event(event_queue)
    for _ in range(3):
        await event_queue.publish("order.paid", payload=PAYLOAD)
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=NARROW, color_scheme="dark")
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        for name, path in (
            ("events-phone", "/console/events"),
            ("event-one-phone", f"/console/events/{event}"),
            ("trace-phone", f"/console/trace?id={event}"),
            ("trace-none-phone", "/console/trace"),
        ):
            await open_page(page, path)
            await expect(page.locator("html")).to_have_attribute("lang", "ko")
            await save_screenshot(page, name)
            assert not await find_overflows(page), path
            faint = await find_low_contrast(page)
            assert faint == [], path
    await context.close()
