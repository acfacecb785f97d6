"""The overview and the health page in a real browser: live updates, phone, dark mode."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import DatabaseUrls, Hub
from pabal.queue import processes
from pabal.queue.outcome import DONE, Dead, Retry
from support.browser import (
    NARROW,
    WIDE,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.clusters import open_connection
from support.lane_under_test import Events, Travel
from support.operator import add_operator_cookie, open_console

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

THROUGHPUT_SQL = """
insert into pabal.throughput (minute, lane, done, failed, dead)
select date_trunc('minute', pabal.now()) - n * interval '1 minute', l.lane, (40 + 35 * sin(n / 4.0) + n % 7) * l.many,
       case when n % 9 = 0 then 6 * l.many else 0 end, case when n in (7, 31) then 3 else 0 end
from generate_series(0, 59) n, (values ('events', 20), ('relay', 1), ('notifications', 3)) as l (lane, many)
where n < 40 or l.lane <> 'relay'
on conflict do nothing  -- the hub may have counted what the test settled
"""
SILENT = timedelta(minutes=1, seconds=40)


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as owner:
        yield Events(hub, owner, travel)


async def create_busy_hub(hub: Hub, events: Events) -> None:
    """Create throughput, a silent worker, a backlog, a failing chore and a dead letter."""
    await events.put(3)
    [one, *_] = await events.claim()
    await events.settle(one, Dead("no"))
    await events.put(2500)
    await events.owner.execute(
        """
        insert into pabal.subscriptions (service_name, mode, event_types, url, secret, paused_at)
        values ('minu_build', 'push', '{order.*}', 'https://shop.example/hook', 'sealed', now())
        """
    )
    async with hub.autocommit() as tx:
        process = {"host": "host", "pid": 7, "lanes": ["events", "notifications"]}
        await tx.run(
            processes.Q.upsert_process, id="gone-7", **process, details={"version": "0.1.0", "holds": 12}, first=True
        )
        await hub.chores.run_due()
    await events.travel(seconds=SILENT.total_seconds())
    details = {"version": "0.1.0", "holds": 3, "program": "till", "handlers": {"minu_build": ["order.*", "cart.*"]}}
    async with hub.autocommit() as tx:
        name = "a-rather-long-hostname.seoul.example-48213"
        await tx.run(processes.Q.upsert_process, id=name, **process, details=details, first=True)
    await events.owner.execute(THROUGHPUT_SQL)
    await events.owner.execute(
        "update pabal.chores set last_error = 'canceling statement due to timeout' where name = 'purge events'"
    )


async def test_completed_and_failed_work_appears_without_a_reload(events: Events, page: Page) -> None:
    await open_console(page, events.hub)
    await page.evaluate("window.untouched = true")
    lane = page.get_by_role("region", name="Events")
    await expect(lane).to_contain_text("Nothing was processed in the last hour.")
    await expect(lane.get_by_role("img")).to_have_accessible_name("Events: last hour, per minute")

    await events.put(3)
    for held, outcome in zip(await events.claim(), (DONE, Retry("boom"), Dead("no")), strict=True):
        await events.settle(held, outcome)

    await expect(lane).to_contain_text("1 done, 2 failed", timeout=15_000)
    await expect(lane.locator("rect")).to_have_count(2)
    dead = page.get_by_role("status").get_by_role("link", name="1 unresolved dead letter")
    await expect(dead).to_have_attribute("href", "/console/dead")
    await dead.focus()
    await expect(dead).to_be_focused()
    assert await page.evaluate("window.untouched")


async def test_a_busy_overview_fits_a_phone_in_dark_mode(events: Events, chromium: Browser, address: str) -> None:
    await create_busy_hub(events.hub, events)
    for locale in ("ko-KR", "en-GB"):
        context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme="dark")
        await add_operator_cookie(context, events.hub)
        async with open_checked_page(context) as page:
            for section in ("", "/health"):
                name = f"{section.strip('/') or 'overview'}-{locale[:2]}"
                await page.set_viewport_size(NARROW)
                await page.emulate_media(color_scheme="dark")
                await open_page(page, f"/console{section}")
                assert not await find_overflows(page), name
                assert await find_low_contrast(page) == [], name
                await save_screenshot(page, f"{name}-phone-dark")
                await page.emulate_media(color_scheme="light")
                await page.set_viewport_size(WIDE)
                assert not await find_overflows(page), name
                assert await find_low_contrast(page) == [], name
                await save_screenshot(page, f"{name}-wide-light")
        await context.close()


async def test_a_keyboard_shortcut_opens_the_health_page(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await page.locator("#main").focus()
    await page.keyboard.press("g")
    await page.keyboard.press("h")

    await expect(page.get_by_role("heading", level=1)).to_have_text("Health")
    await expect(page.get_by_role("row", name="OK schema")).to_contain_text("none pending")
    await expect(page.get_by_role("row", name="PABAL_DATA_DIR")).to_be_visible()
    await expect(page.get_by_text("PABAL_PORT")).to_be_hidden()
    await page.get_by_text("settings at their defaults").click()
    await expect(page.get_by_text("PABAL_PORT")).to_be_visible()
    await page.get_by_role("link", name="Check again").click()
    await expect(page.get_by_role("status")).to_be_visible()
