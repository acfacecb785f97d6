"""Services in a real browser: adding one, its secret, what rests and what ends."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.db.queries import parse_queries
from pabal.events.subscriptions import disable_subscription, pause_subscription
from pabal.hub import Hub
from pabal.tokens.services import add_service, list_live_secrets, rotate_service_secret, set_service_active
from support.browser import NARROW, overflows, picture, too_faint, watched
from support.operator import PASSWORD, enter
from support.subscriptions import EVERYBODY, TESTER, subscribe
from tokens.asking import added, refreshed, signed_in

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

URL = "https://hooks.example.org/services/T0000000/B0000000/abcdefghijklmnopqrstuvwxyz"
[FAIL] = parse_queries("""
-- name: fail
update pabal.subscriptions set failures = 7, open_until = pabal.now() + interval '5 minutes' where id = :id
""")


async def fill(hub: Hub) -> None:
    """A shop with everything a shop can have, and some others."""
    secret = await added(hub, "shop", ("write", "tokens:introspect"))
    pairs = [await signed_in(hub, secret) for _ in range(3)]
    await refreshed(hub, pairs[0].refresh_token)
    push, _ = await subscribe(hub, "shop", "order.*", "refund.made", url=URL)
    paused, _ = await subscribe(hub, "shop", "mail.sent", url="https://mail.example.org/in")
    gone, _ = await subscribe(hub, "shop", "stock.low", url="https://stock.example.org/in")
    await subscribe(hub, "shop", "user.*")
    async with hub.transaction() as tx:
        await pause_subscription(tx, paused.id, EVERYBODY, TESTER)
        await disable_subscription(tx, gone.id, "shop", "https://stock.example.org/in", "answered 410: moved", TESTER)
        await tx.run(FAIL, id=push.id)
        await rotate_service_secret(tx, "shop", TESTER)
        await add_service(tx, "billing", ["read", "events:publish"], TESTER, description="청구와 결제를 맡는 서비스")
        await add_service(tx, "a_service_with_quite_a_long_name", ["hub:admin"], TESTER, description="W" * 90)
        await set_service_active(tx, "billing", TESTER, active=False)


async def test_with_the_keyboard_a_service_is_added_and_its_secret_shown_once(hub: Hub, page: Page) -> None:
    await enter(page)
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
    await picture(page, "services-secret")
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


async def test_families_and_subscriptions_live_on_the_page(hub: Hub, page: Page) -> None:
    secret = await added(hub)
    push, _ = await subscribe(hub, "shop", "order.*", url=URL)
    await enter(page)
    await page.goto("/console/services/shop")
    await page.evaluate("window.untouched = true")
    await expect(page.get_by_text("No active tokens.")).to_be_visible()

    await signed_in(hub, secret)
    async with hub.transaction() as tx:
        await pause_subscription(tx, push.id, EVERYBODY, TESTER)

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
async def test_on_a_phone_and_wide_nothing_overflows_or_fades(
    hub: Hub, chromium: Browser, address: str, scheme: str, locale: str
) -> None:
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    async with watched(context) as page:
        await page.goto("/console/login")
        await page.locator("input[name=password]").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile("/console$"))
        await page.goto("/console/services/hub")
        await picture(page, f"service-empty-phone-{scheme}")
        assert not await overflows(page)
        await fill(hub)
        for name, path in (("services", "/console/services"), ("service", "/console/services/shop")):
            await page.goto(path)
            assert not await overflows(page), path
            assert await too_faint(page) == []
            await picture(page, f"{name}-phone-{scheme}")
            await page.set_viewport_size({"width": 1280, "height": 800})
            assert not await overflows(page), path
            await picture(page, f"{name}-wide-{scheme}")
            await page.set_viewport_size(NARROW)
        await page.get_by_role("button", name=re.compile("Revoke all|모두 폐기")).click()
        await picture(page, f"service-confirm-{scheme}")
        assert not await overflows(page)
    await context.close()
