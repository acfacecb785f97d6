"""The console in a real browser: keyboard and mouse, both languages, phone and desktop."""

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.api import routes
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from support.browser import (
    NARROW,
    WIDE,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.operator import PASSWORD, open_console, sign_in_on_page

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

OPEN_DETAILS = "document.querySelectorAll('details').forEach(details => { details.open = true })"

[PUBLISH] = parse_queries("""
-- name: publish
with shop as (insert into public.services (name) values ('shop') on conflict do nothing)
insert into public.event_queue (event_type, source_service, target_service)
select 'shop.opened', 'shop', 'shop' from generate_series(1, 3)
""")


async def test_signing_in_and_out(page: Page) -> None:
    await sign_in_on_page(page)

    assert page.url.endswith("/console")
    for lane in ("Relay", "Events", "Notifications"):
        await expect(page.get_by_role("region", name=lane)).to_contain_text("Waiting")
    await expect(page.get_by_role("status")).to_have_text("All systems normal.")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    await page.goto("/console")
    assert page.url.endswith("/console/login")


async def test_a_wrong_password_shows_an_error(chromium: Browser, address: str) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB")
    page = await context.new_page()
    await page.goto("/console/login")
    await page.get_by_label("Password").fill("wrong horse")
    await page.get_by_role("button", name="Sign in").click()

    await expect(page.get_by_role("alert")).to_have_text("Incorrect name or password.")
    await save_screenshot(page, "login-wrong")
    await context.close()


async def test_the_overview_updates_without_a_reload(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await page.evaluate("window.untouched = true")
    events = page.get_by_role("region", name="Events")
    await expect(events.get_by_role("definition").first).to_have_text("0")

    async with hub.transaction() as tx:
        await tx.run(PUBLISH)

    await expect(events.get_by_role("definition").first).to_have_text("3", timeout=15_000)
    assert await page.evaluate("window.untouched")
    await save_screenshot(page, "overview-busy")


async def test_a_database_outage_and_its_end_are_shown(hub: Hub, chromium: Browser, address: str) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB")
    page = await context.new_page()
    await open_console(page, hub)

    await hub.db.close()
    await expect(page.get_by_role("alert")).to_contain_text("The database is unavailable", timeout=15_000)
    await save_screenshot(page, "overview-away")

    await hub.db.open()
    await expect(page.get_by_role("alert")).to_have_count(0, timeout=15_000)
    await context.close()


async def test_an_unreachable_hub_is_not_reported_as_a_database_outage(
    hub: Hub, chromium: Browser, address: str
) -> None:
    context = await chromium.new_context(base_url=address, locale="en-GB")
    page = await context.new_page()
    await open_console(page, hub)

    await page.route("**/console", lambda route: route.abort())
    async with hub.transaction() as tx:
        await tx.run(PUBLISH)
    await expect(page.get_by_role("alert")).to_contain_text("The hub is not responding", timeout=15_000)

    await page.unroute("**/console")
    async with hub.transaction() as tx:
        await tx.run(PUBLISH)
    await expect(page.get_by_role("alert")).to_have_count(0, timeout=15_000)
    await context.close()


async def test_navigation_works_with_the_keyboard_alone(page: Page) -> None:
    await page.goto("/console/login")
    await expect(page.get_by_label("Password")).to_be_focused()
    await page.keyboard.type(PASSWORD)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")

    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    assert await page.get_by_role("link", name="Skip to content").evaluate("e => e.getBoundingClientRect().left >= 0")
    for _ in range(6):
        await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Sign out")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_switching_to_english_and_back_to_korean(chromium: Browser, address: str) -> None:
    context = await chromium.new_context(base_url=address, locale="ko-KR", viewport=WIDE)
    async with open_checked_page(context) as page:
        await page.goto("/console/login")
        await expect(page.locator("html")).to_have_attribute("lang", "ko")
        await save_screenshot(page, "login-ko")
        await page.get_by_label("비밀번호").fill(PASSWORD)
        await page.get_by_role("button", name="로그인").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("개요")
        await expect(page.get_by_role("region", name="릴레이")).to_contain_text("카카오톡")
        await save_screenshot(page, "overview-ko")

        await page.get_by_role("button", name="English").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        await page.get_by_role("button", name="한국어").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("개요")
    await context.close()


@pytest.mark.parametrize("locale", ["en-GB", "ko-KR"])
async def test_no_page_is_wider_than_a_phone_screen(hub: Hub, chromium: Browser, address: str, locale: str) -> None:
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme="dark")
    async with open_checked_page(context) as page:
        await open_page(page, "/console/login")
        assert not await find_overflows(page)
        await save_screenshot(page, f"login-phone-dark-{locale[:2]}")
        await open_console(page, hub)
        assert not await find_overflows(page)
        await save_screenshot(page, f"overview-phone-dark-{locale[:2]}")
    await context.close()


async def test_light_and_dark_mode_are_readable(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await save_screenshot(page, "overview-light")
    day = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    await page.emulate_media(color_scheme="dark")
    await save_screenshot(page, "overview-dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != day
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        faint = await find_low_contrast(page)
        assert faint == []


async def test_the_api_reference_lists_every_endpoint_and_fits_a_phone(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await page.get_by_role("link", name="API").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("API")
    await expect(page.locator("article .method")).to_have_count(len({route.name for route in routes.RESOURCE_ROUTES}))
    await page.get_by_role("link", name="Events", exact=True).click()
    await expect(page.locator("#tag-events")).to_be_in_viewport()
    article = page.locator("#post-event")
    await article.get_by_text("Examples").click()
    await expect(article.get_by_text('curl "$PABAL_URL/v1/queue/events"')).to_be_visible()
    await page.evaluate(OPEN_DETAILS)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        assert await find_low_contrast(page) == []
        await save_screenshot(page, f"docs-{scheme}")
    await page.set_viewport_size(NARROW)
    assert not await find_overflows(page)  # in English only, whatever the language of the browser is
    await save_screenshot(page, "docs-phone-dark")
