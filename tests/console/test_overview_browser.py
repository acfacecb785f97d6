"""The first page and the health page in a real browser: alive, on a phone, by night, with much and with nothing."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.hub import DatabaseUrls, Hub
from pabal.queue import processes
from pabal.queue.outcome import DONE, Dead, Retry
from support.browser import NARROW, overflows, picture, too_faint, watched
from support.clusters import connected
from support.lane_under_test import Events, Travel
from support.operator import PASSWORD, enter

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PAST = """
insert into pabal.throughput (minute, lane, done, failed, dead)
select date_trunc('minute', pabal.now()) - n * interval '1 minute', l.lane, (40 + 35 * sin(n / 4.0) + n % 7) * l.many,
       case when n % 9 = 0 then 6 * l.many else 0 end, case when n in (7, 31) then 3 else 0 end
from generate_series(0, 59) n, (values ('events', 20), ('relay', 1), ('notifications', 3)) as l (lane, many)
where n < 40 or l.lane <> 'relay'
"""
SILENT = timedelta(minutes=1, seconds=40)


@pytest.fixture
async def events(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> AsyncGenerator[Events]:
    assert database_urls.direct
    async with connected(database_urls.direct) as owner:
        yield Events(hub, owner, travel)


async def a_busy_day(hub: Hub, events: Events) -> None:
    """A past, workers of whom one is silent, a backlog, a chore that fails, something dead."""
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
        said = {"host": "host", "pid": 7, "lanes": ["events", "notifications"]}
        await tx.run(
            processes.Q.upsert_process, id="gone-7", **said, details={"version": "0.1.0", "holds": 12}, first=True
        )
        await hub.chores.run_due()
    await events.travel(seconds=SILENT.total_seconds())
    details = {"version": "0.1.0", "holds": 3, "program": "till", "handlers": {"minu_build": ["order.*", "cart.*"]}}
    async with hub.autocommit() as tx:
        name = "a-rather-long-hostname.seoul.example-48213"
        await tx.run(processes.Q.upsert_process, id=name, **said, details=details, first=True)
    await events.owner.execute(PAST)
    await events.owner.execute(
        "update pabal.chores set last_error = 'canceling statement due to timeout' where name = 'purge events'"
    )


async def test_what_ends_and_what_goes_wrong_shows_without_a_reload(events: Events, page: Page) -> None:
    await enter(page)
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


@pytest.mark.parametrize("locale", ["ko-KR", "en-GB"])
@pytest.mark.parametrize("room", ["", "/health"])
async def test_much_of_it_on_a_phone_by_night(
    events: Events, chromium: Browser, address: str, locale: str, room: str
) -> None:
    await a_busy_day(events.hub, events)
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme="dark")
    name = f"{room.strip('/') or 'overview'}-{locale[:2]}"
    async with watched(context) as page:
        await page.goto("/console/login")
        await page.locator("input[name=password]").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/console")
        await page.goto(f"/console{room}")
        assert not await overflows(page)
        assert await too_faint(page) == []
        await picture(page, f"{name}-phone-dark")
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert not await overflows(page)
        assert await too_faint(page) == []
        await picture(page, f"{name}-wide-light")
    await context.close()


async def test_health_is_one_key_away(page: Page) -> None:
    await enter(page)
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
