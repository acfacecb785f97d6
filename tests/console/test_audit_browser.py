"""The audit log and the profile page in a real browser."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.hub import DatabaseUrls, Hub
from support.audit_log import AuditLog
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
from support.operator import PASSWORD, add_operator_cookie, open_console, sign_in_on_page

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


async def record_entries(hub: Hub, *entries: AuditEntry) -> None:
    async with hub.transaction() as tx:
        for entry in entries:
            await record_audit_entry(tx, entry)


async def test_filtering_the_audit_log_and_verifying_the_seals(
    hub: Hub, database_urls: DatabaseUrls, page: Page
) -> None:
    await AuditLog(hub, database_urls, hub.key_ring).write_sealed(3)
    await open_console(page, hub)
    await page.keyboard.press("g")
    await page.keyboard.press("a")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Audit log")
    await page.evaluate("window.untouched = true")

    await record_entries(
        hub, AuditEntry("minu_keep", "token.reused", "token 7", {"family": "one", "client_secret": "hidden"})
    )
    row = page.get_by_role("row").filter(has_text="minu_keep")
    await expect(row).to_have_count(1, timeout=15_000)
    assert await page.evaluate("window.untouched")
    await page.keyboard.press("j")
    await expect(row.get_by_role("link", name="minu_keep")).to_be_focused()
    await row.get_by_text("family, client_secret").click()
    await expect(row.locator("pre")).to_contain_text('"family": "one"')
    await expect(row.locator("pre")).to_contain_text("•••")
    await page.keyboard.press("Escape")

    await page.get_by_label("Action (prefix)").fill("token.i")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"action=token\.i"))
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.get_by_role("button", name="Verify seals").click()
    await expect(page.get_by_role("status", name="Verify seals")).to_contain_text("All seals are intact.")
    await save_screenshot(page, "audit-good")


async def test_changing_the_password_and_ending_other_sessions(
    hub: Hub, chromium: Browser, address: str, page: Page
) -> None:
    other_context = await chromium.new_context(base_url=address, locale="en-GB", user_agent="Another browser")
    other = await other_context.new_page()
    await sign_in_on_page(other)
    await open_console(page, hub)
    await page.get_by_role("link", name="admin").click()
    await expect(page.get_by_role("row").filter(has_text="Another browser")).to_have_count(1)
    await save_screenshot(page, "you")

    await page.get_by_role("button", name="Sign out all other sessions").click()
    await expect(page.get_by_role("main")).to_contain_text("1 other session will be signed out.")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("row").filter(has_text="Another browser")).to_have_count(0)
    await other.wait_for_url("**/console/login")  # an open page notices the end of its session
    await other.goto("/console")
    assert other.url.endswith("/console/login")

    await page.get_by_label("Current password").fill(PASSWORD)
    await page.get_by_label("New password", exact=True).fill("another horse")
    await page.get_by_label("Confirm new password").fill("another horse")
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_role("status")).to_contain_text("Password changed.")
    await page.goto("/console")
    assert page.url.endswith("/console")
    await other_context.close()


@pytest.mark.parametrize(("scheme", "locale"), [("dark", "ko-KR"), ("light", "en-GB")])
async def test_the_layout_fits_and_is_readable_on_phone_and_desktop(
    hub: Hub, database_urls: DatabaseUrls, chromium: Browser, address: str, scheme: str, locale: str
) -> None:
    ledger = AuditLog(hub, database_urls, hub.key_ring)
    context = await chromium.new_context(base_url=address, locale=locale, viewport=NARROW, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    await add_operator_cookie(context, hub)
    async with open_checked_page(context) as page:
        [[first, _]] = (await ledger.write_sealed(2))[-1:]
        await ledger.tamper(f"update pabal.audit_log set actor = 'nobody' where id = {first}")
        await record_entries(
            hub, AuditEntry("operator:" + "x" * 60, "subscription.secret_rotated", "W" * 80, {"a": "W" * 200})
        )
        for name, path in (("audit", "/console/audit"), ("you", "/console/you"), ("none", "/console/audit?actor=no")):
            await open_page(page, path)
            if name == "audit":
                await page.locator("details summary").first.press("Enter")
            assert not await find_overflows(page), path
            assert await find_low_contrast(page) == []
            await save_screenshot(page, f"{name}-phone-{scheme}")
            for size in (*TABLET, WIDE):
                await page.set_viewport_size(size)
                assert not await find_overflows(page), (path, size)
            await save_screenshot(page, f"{name}-wide-{scheme}")
            await page.set_viewport_size(NARROW)
        await page.get_by_role("button", name=re.compile("Verify seals|봉인 검증")).click()
        await expect(page.get_by_role("status").filter(has_text=f"row {first} was changed")).to_be_visible()
        assert not await find_overflows(page)
        await save_screenshot(page, f"audit-broken-phone-{scheme}")
    await context.close()
