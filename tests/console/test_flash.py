"""Flash messages: shown once on the next page, never on refreshes, and only with known texts."""

import json
from http.cookies import SimpleCookie
from urllib.parse import quote

import httpx2
import pytest

from pabal.console.access.login import OPERATOR_COOKIE
from pabal.console.pages import FLASH_COOKIE
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role
from pabal.settings import Settings
from pabal.tokens.services import add_service
from relay.people import TESTER, add_account
from support.operator import HOSTILE, SignedInOperator, sign_in
from support.relay_log import csrf_token_in
from support.server import serve_hub

pytestmark = pytest.mark.anyio

SHOP = "/console/services/shop"
DONE = "Service enabled."


@pytest.fixture(autouse=True)
async def _shop(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await add_service(tx, "shop", ["events:publish"], TESTER)


def flash_text(response: httpx2.Response) -> SimpleCookie:
    jar = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        jar.load(header)
    return jar


async def get_with_flash(admin: SignedInOperator, flash: str, path: str = SHOP, **headers: str) -> httpx2.Response:
    """Request a page with a flash cookie."""
    cookie = f"{OPERATOR_COOKIE}={admin.token}; {FLASH_COOKIE}={flash}"
    return await admin.web.get(path, headers={"cookie": cookie, "accept-language": "en"} | headers)


async def test_a_flash_message_is_shown_once_and_not_by_automatic_refreshes(admin: SignedInOperator) -> None:
    flash = flash_text(await admin.post(f"{SHOP}/enable"))[FLASH_COOKIE]
    assert (flash["path"], flash["httponly"], flash["samesite"], flash["max-age"]) == ("/console", True, "lax", "30")

    by_itself = await get_with_flash(admin, flash.value, **{"x-refresh": "again"})
    assert DONE not in by_itself.text
    assert FLASH_COOKIE not in flash_text(by_itself), "the page that keeps itself fresh has used it up"
    page = await get_with_flash(admin, flash.value)

    assert page.text.count(DONE) == 1
    assert flash_text(page)[FLASH_COOKIE]["max-age"] == "0"
    assert DONE in (await get_with_flash(admin, flash.value, "/console/nowhere")).text


FOREIGN: tuple[object, ...] = (
    ["services.family.revoked", {"count": "all of them; call 02-555-0100"}],
    ["services.family.revoked", {"count": HOSTILE}],
    ["services.family.revoked", {"count": -1}],
    ["services.family.revoked", {"count": 10**9}],
    ["services.family.revoked", {"count": 0.5}],
    ["services.family.revoked", {"count": True}],
    ["services.family.revoked", {}],
    ["services.disable.confirm", {"name": "mina"}],
    ["Call 02-555-0100 at once.", {}],
    ["services.family.revoked", [1]],
    ["services.family.revoked"],
    {"services.family.revoked": 1},
    [["services.family.revoked"], {}],
    None,
)
NONSENSE = ("", "%", "%5B", "[" * 10_000, "%00", "%FF%FE")


async def test_a_forged_flash_cookie_shows_nothing(admin: SignedInOperator) -> None:
    for value in (*(quote(json.dumps(flash)) for flash in FOREIGN), *NONSENSE):
        page = await get_with_flash(admin, value)
        assert (page.status_code, 'class="flash"' in page.text) == (200, False), value
        assert "02-555" not in page.text, value
    assert (
        'class="flash"'
        in (await get_with_flash(admin, quote(json.dumps(["services.family.revoked", {"count": 2}])))).text
    )


async def test_the_flash_cookie_is_secure_behind_https(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    home = {"origin": "https://hub.example.org"}
    async with (
        open_hub(public, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        admin, owner = await sign_in(hub, web, Role.ADMIN), await add_account(hub)
        own = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"} | home
        shop = await web.post(f"{SHOP}/enable", data={"csrf_token": admin.session.csrf.hex()}, headers=own)
        entered = await web.post("/portal/login", data={"token": owner.token}, headers=home)
        portal = {"cookie": f"pabal_portal={flash_text(entered)['pabal_portal'].value}"} | home
        csrf_token = csrf_token_in((await web.get("/portal", headers=portal)).text)
        code = await web.post("/portal/code", data={"csrf_token": csrf_token}, headers=portal)
        turned = [await web.post(f"/{section}/language", headers=home) for section in ("console", "portal", "chat")]

    assert flash_text(shop)[FLASH_COOKIE]["secure"]
    assert flash_text(code)[FLASH_COOKIE]["secure"]
    assert [flash_text(response)["pabal_language"]["secure"] for response in turned] == [True] * 3


@pytest.mark.parametrize("section", ["console", "portal", "chat"])
async def test_other_sites_cannot_switch_the_language(web: httpx2.AsyncClient, section: str) -> None:
    home = str(web.base_url).rstrip("/")
    others = ({"origin": "https://evil.example"}, {"origin": "null", "sec-fetch-site": "cross-site"})
    refused = [await web.post(f"/{section}/language", headers=other) for other in others]
    turned = await web.post(f"/{section}/language", headers={"origin": home})

    assert [(response.status_code, "set-cookie" in response.headers) for response in refused] == [(403, False)] * 2
    assert (turned.status_code, turned.headers["location"]) == (303, f"/{section}")
