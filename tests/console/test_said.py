"""What a deed has to say is said on the page after it: once, to somebody who looks, and in no words but ours."""

import json
from http.cookies import SimpleCookie
from urllib.parse import quote

import httpx2
import pytest

from pabal.console.login import OPERATOR_COOKIE
from pabal.console.pages import FLASH_COOKIE
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.operators.operators import Role
from pabal.settings import Settings
from pabal.tokens.services import add_service
from relay.people import TESTER, an_owner
from support.operator import HOSTILE, Signed, sign_in
from support.relay_log import csrf_token_in
from support.server import serving

pytestmark = pytest.mark.anyio

SHOP = "/console/services/shop"
DONE = "Service enabled."


@pytest.fixture(autouse=True)
async def _shop(hub: Hub) -> None:
    async with hub.transaction() as tx:
        await add_service(tx, "shop", ["events:publish"], TESTER)


def told(answer: httpx2.Response) -> SimpleCookie:
    jar = SimpleCookie()
    for header in answer.headers.get_list("set-cookie"):
        jar.load(header)
    return jar


async def look(admin: Signed, said: str, path: str = SHOP, **headers: str) -> httpx2.Response:
    """A page, asked for by a browser that carries what was to be said."""
    cookie = f"{OPERATOR_COOKIE}={admin.token}; {FLASH_COOKIE}={said}"
    return await admin.web.get(path, headers={"cookie": cookie, "accept-language": "en"} | headers)


async def test_it_is_said_once_and_by_whoever_looks_by_themselves(admin: Signed) -> None:
    said = told(await admin.post(f"{SHOP}/enable"))[FLASH_COOKIE]
    assert (said["path"], said["httponly"], said["samesite"], said["max-age"]) == ("/console", True, "lax", "30")

    by_itself = await look(admin, said.value, **{"x-refresh": "again"})
    assert DONE not in by_itself.text
    assert FLASH_COOKIE not in told(by_itself), "the page that keeps itself fresh has used it up"
    page = await look(admin, said.value)

    assert page.text.count(DONE) == 1
    assert told(page)[FLASH_COOKIE]["max-age"] == "0"
    assert DONE in (await look(admin, said.value, "/console/nowhere")).text


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


async def test_whatever_a_browser_brings_nobody_elses_words_are_said(admin: Signed) -> None:
    for brought in (*(quote(json.dumps(each)) for each in FOREIGN), *NONSENSE):
        page = await look(admin, brought)
        assert (page.status_code, 'class="flash"' in page.text) == (200, False), brought
        assert "02-555" not in page.text, brought
    assert 'class="flash"' in (await look(admin, quote(json.dumps(["services.family.revoked", {"count": 2}])))).text


async def test_behind_https_it_is_for_https_alone_as_every_cookie_is(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    home = {"origin": "https://hub.example.org"}
    async with (
        open_hub(public, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        admin, owner = await sign_in(hub, web, Role.ADMIN), await an_owner(hub)
        own = {"cookie": f"{OPERATOR_COOKIE}={admin.token}"} | home
        shop = await web.post(f"{SHOP}/enable", data={"csrf_token": admin.session.csrf.hex()}, headers=own)
        entered = await web.post("/portal/login", data={"token": owner.token}, headers=home)
        portal = {"cookie": f"pabal_portal={told(entered)['pabal_portal'].value}"} | home
        csrf_token = csrf_token_in((await web.get("/portal", headers=portal)).text)
        code = await web.post("/portal/code", data={"csrf_token": csrf_token}, headers=portal)
        turned = [await web.post(f"/{room}/language", headers=home) for room in ("console", "portal", "chat")]

    assert told(shop)[FLASH_COOKIE]["secure"]
    assert told(code)[FLASH_COOKIE]["secure"]
    assert [told(each)["pabal_language"]["secure"] for each in turned] == [True] * 3


@pytest.mark.parametrize("room", ["console", "portal", "chat"])
async def test_no_other_site_turns_the_language(web: httpx2.AsyncClient, room: str) -> None:
    home = str(web.base_url).rstrip("/")
    others = ({"origin": "https://evil.example"}, {"origin": "null", "sec-fetch-site": "cross-site"})
    refused = [await web.post(f"/{room}/language", headers=each) for each in others]
    turned = await web.post(f"/{room}/language", headers={"origin": home})

    assert [(each.status_code, "set-cookie" in each.headers) for each in refused] == [(403, False)] * 2
    assert (turned.status_code, turned.headers["location"]) == (303, f"/{room}")
