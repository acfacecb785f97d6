"""Services in a real browser: adding one, secrets, subscriptions and token families."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.db.queries import parse_queries
from pabal.events.subscriptions import disable_subscription, pause_subscription
from pabal.hub import Hub
from pabal.tokens.services import add_service, list_live_secrets, rotate_service_secret, set_service_active
from support.browser import NARROW, find_low_contrast, find_overflows, open_checked_page, open_page, save_screenshot
from support.operator import add_operator_cookie, open_console
from support.subscriptions import ALL_ACCESS, TESTER, subscribe
from tokens.token_operations import add_shop, issue_pair, refresh_pair

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

URL = "https://hooks.example.org/services/T0000000/B0000000/abcdefghijklmnopqrstuvwxyz"
[FAIL] = parse_queries("""
-- name: fail
update pabal.subscriptions set failures = 7, open_until = pabal.now() + interval '5 minutes' where id = :id
""")


async def create_services(hub: Hub) -> None:
    """Create a service with secrets, tokens and subscriptions, and some others."""
    secret = await add_shop(hub, "shop", ("write", "tokens:introspect"))
    pairs = [await issue_pair(hub, secret) for _ in range(3)]
    await refresh_pair(hub, pairs[0].refresh_token)
    push, _ = await subscribe(hub, "shop", "order.*", "refund.made", url=URL)
    paused, _ = await subscribe(hub, "shop", "mail.sent", url="https://mail.example.org/in")
    gone, _ = await subscribe(hub, "shop", "stock.low", url="https://stock.example.org/in")
    await subscribe(hub, "shop", "user.*")
    async with hub.transaction() as tx:
        await pause_subscription(tx, paused.id, ALL_ACCESS, TESTER)
        await disable_subscription(tx, gone.id, "shop", "https://stock.example.org/in", "answered 410: moved", TESTER)
        await tx.run(FAIL, id=push.id)
        await rotate_service_secret(tx, "shop", TESTER)
        await add_service(tx, "billing", ["read", "events:publish"], TESTER, description="청구와 결제를 맡는 서비스")
        await add_service(tx, "a_service_with_quite_a_long_name", ["hub:admin"], TESTER, description="W" * 90)
        await set_service_active(tx, "billing", TESTER, active=False)


async def test_adding_a_service_with_the_keyboard_shows_its_secret_once(hub: Hub, page: Page) -> None:
    await open_console(page, hub)
    await page.keyboard.press("g")
    await page.keyboard.press("s")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Services")

    await page.get_by_label("Service name").focus()
    await page.keyboard.type("shop")
    await page.keyboard.press("Tab")
    await page.keyboard.type("sells things")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("checkbox", name="events:publish")).to_be_focused()
    await page.keyboard.press("Space")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_have_text("New secret")
    secret = await page.locator(".secret").inner_text()
    assert re.fullmatch(r"pbs_[\w-]{43}", secret)
    await save_screenshot(page, "services-secret")
    await page.get_by_role("link", name="I have saved it").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("shop")
    assert secret not in await page.content()

    await page.get_by_role("button", name="Rotate secret").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("New secret")
    second = await page.locator(".secret").inner_text()
    await page.reload()
    await expect(page.get_by_role("status")).to_contain_text(
        "A new secret was created in the meantime. Nothing was changed."
    )
    assert second not in await page.content()
    async with hub.autocommit() as tx:
        assert len(await list_live_secrets(tx, "shop")) == 2


async def test_token_families_and_subscriptions_update_on_the_page(hub: Hub, page: Page) -> None:
    secret = await add_shop(hub)
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    await open_console(page, hub, "/console/services/shop")
    await page.evaluate("window.untouched = true")
    await expect(page.get_by_text("No active tokens.")).to_be_visible()

    await issue_pair(hub, secret)
    async with hub.transaction() as tx:
        await pause_subscription(tx, push.id, ALL_ACCESS, TESTER)

    await expect(page.locator("#tokens tbody tr")).to_have_count(1, timeout=15_000)
    await expect(page.locator("#subscriptions .tag")).to_have_text("Paused", timeout=15_000)
    assert await page.evaluate("window.untouched")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator("#subscriptions .tag")).to_have_text("Active")
    await page.get_by_role("button", name="Revoke all").click()
    await expect(page.get_by_role("main")).to_contain_text("1 token of “shop” will be revoked.")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status")).to_have_text("1 token revoked.")


@pytest.mark.parametrize(("scheme", "locale"), [("dark", "ko-KR"), ("light", "en-GB")])
async def test_the_layout_fits_and_is_readable_on_phone_and_desktop(
    hub: Hub, chromium: Browser, address: str, scheme: str, locale: str
) -> None:
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        await open_page(page, "/console/services/hub")
        await save_screenshot(page, f"service-empty-phone-{scheme}")
        assert not await find_overflows(page)
        await create_services(hub)
        for name, path in (("services", "/console/services"), ("service", "/console/services/shop")):
            await open_page(page, path)
            assert not await find_overflows(page), path
            assert await find_low_contrast(page) == []
            await save_screenshot(page, f"{name}-phone-{scheme}")
            await page.set_viewport_size({"width": 1280, "height": 800})
            assert not await find_overflows(page), path
            await save_screenshot(page, f"{name}-wide-{scheme}")
            await page.set_viewport_size(NARROW)
        await page.get_by_role("button", name=re.compile("Revoke all|모두 폐기")).click()
        await save_screenshot(page, f"service-confirm-{scheme}")
        assert not await find_overflows(page)
    await context.close()
