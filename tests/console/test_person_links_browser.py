"""The pages about links in a real browser: phone and desktop, both languages, light and dark."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize

from pabal.core.actor import Actor
from pabal.hub import Hub
from pabal.notifications.people.links import assert_service_link
from pabal.notifications.people.preferences import link_discord_account
from support.browser import (
    NARROW,
    WIDE,
    find_low_contrast,
    find_overflows,
    open_checked_page,
    open_page,
    save_screenshot,
)
from support.clusters import Connection
from support.inbox import JUN, MINA, Inbox
from support.operator import add_operator_cookie

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

TESTER = Actor("operator:tester")


async def check_page(page: Page, name: str) -> None:
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
        await save_screenshot(page, f"{name}-{scheme}")
        assert await find_low_contrast(page) == [], (name, scheme)
    assert not await find_overflows(page), name


@pytest.mark.parametrize(("locale", "viewport"), [("ko-KR", NARROW), ("en-GB", WIDE)], ids=["ko", "en"])
async def test_the_pages_fit_and_can_be_read(
    hub: Hub, inbox: Inbox, owner: Connection, address: str, chromium: Browser, locale: str, viewport: ViewportSize
) -> None:
    users = [await owner.fetchval("insert into identity.users default values returning id") for _ in range(2)]
    await owner.execute("insert into public.services (name) values ('shop')")
    async with hub.transaction() as tx:
        await link_discord_account(tx, MINA, users[0], TESTER, reason="identity checked")
        await assert_service_link(tx, "shop", JUN, users[1], TESTER)
    options: dict[str, Any] = {"base_url": address, "locale": locale, "viewport": viewport}
    context = await chromium.new_context(**options)
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        for name, recipient in (("linked", MINA), ("asserted", JUN)):
            await open_page(page, f"/console/notifications/person?recipient={recipient}")
            await check_page(page, f"person-{name}-{locale}")
        for name, user in (("me-linked", users[0]), ("me-unlinked", users[1])):
            await page.goto(f"/me?token={await inbox.token(str(user))}")
            await page.locator("button.main").click()
            await page.wait_for_url("**/me")
            await check_page(page, f"{name}-{locale}")
        await page.goto("/me/link/confirm?code=1")
        await check_page(page, f"confirm-{locale}")
    await context.close()
