"""The page of one person as it is served, without a script: links, cookies, forms, and who may not."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import httpx2
import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.notifications.people.preferences import PREFERENCE_FLAGS, Preferences, load_preferences
from pabal.notifications.people.tokens import PERSON_COOKIE_LIFETIME, PERSON_LINK_LIFETIME
from pabal.settings import Settings
from pabal.web.auth import PERSON_COOKIE
from support.inbox import JUN, MINA, NASTY, Inbox, inbox_of
from support.server import serving

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serving(hub) as where:
        yield where


async def wishes_of(hub: Hub, person: str = MINA) -> Preferences:
    async with hub.autocommit() as tx:
        return await load_preferences(tx, person)


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as client:
        yield client


async def enter(web: httpx2.AsyncClient, inbox: Inbox, person: str = MINA) -> None:
    answer = await web.post("/me", data={"token": await inbox.token(person)})
    assert answer.status_code == 303


async def test_a_link_becomes_a_cookie_once_and_leaves_the_address(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    link = await inbox.token()

    first = await web.post("/me", data={"token": link})
    said = first.headers["set-cookie"]
    assert (first.status_code, first.headers["location"]) == (303, "/me")
    assert {"HttpOnly", "Path=/", "SameSite=lax", f"Max-Age={int(PERSON_COOKIE_LIFETIME.total_seconds())}"} <= {
        *said.split("; ")
    }
    assert "Secure" not in said
    assert link not in said

    mine = await web.get("/me")
    assert mine.status_code == 200
    assert MINA in mine.text
    again = await web.post("/me", data={"token": link})
    assert (again.status_code, again.headers["location"]) == (303, "/me")
    web.cookies.clear()
    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    assert (await web.get("/me")).status_code == 401


async def test_behind_https_the_cookie_is_for_https_alone(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        inbox_of(hub, database_urls) as inbox,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        headers = {"origin": "https://hub.example.org"}
        answer = await web.post("/me", data={"token": await inbox.token()}, headers=headers)

    assert "Secure" in answer.headers["set-cookie"].split("; ")


async def test_following_a_link_does_not_spend_it_until_the_button_is_pressed(
    web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    """Whatever it looks like: no program that fetches it has to be known."""
    link = await inbox.token()

    assert (await web.head("/me", params={"token": link})).status_code == 200
    door = await web.get("/me", params={"token": link})
    assert (door.status_code, "set-cookie" in door.headers) == (200, False)
    assert f'<input type="hidden" name="token" value="{link}">' in door.text
    assert "set-cookie" in (await web.post("/me", data={"token": link})).headers


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
async def test_no_other_site_signs_somebody_in(address: str, inbox: Inbox, origin: str | None) -> None:
    """Somebody who is signed in as another without knowing it would say what they wish to be told to that one."""
    link = await inbox.token()
    async with httpx2.AsyncClient(base_url=address, headers={"origin": origin} if origin else {}) as theirs:
        answer = await theirs.post("/me", data={"token": link})

    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as mine:
        assert "set-cookie" in (await mine.post("/me", data={"token": link})).headers


@pytest.mark.parametrize("link", ["", "garbage", "pbp_" + "a" * 43, "\0", NASTY[0]])
async def test_what_is_no_link_opens_nothing(web: httpx2.AsyncClient, link: str) -> None:
    assert "<script>" not in (await web.get("/me", params={"token": link})).text
    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    answer = await web.get("/me")

    assert answer.status_code == 401
    assert "used or has expired" in answer.text or "만료" in answer.text


async def test_an_expired_link_opens_nothing(web: httpx2.AsyncClient, inbox: Inbox, travel: Travel) -> None:
    link = await inbox.token()
    await travel(PERSON_LINK_LIFETIME)

    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    assert (await web.get("/me")).status_code == 401


async def test_switches_are_saved_by_a_form(web: httpx2.AsyncClient, inbox: Inbox, hub: Hub) -> None:
    await enter(web, inbox)
    before = await wishes_of(hub)
    assert before.updated_at is None

    some = {name: "on" for name in PREFERENCE_FLAGS if name != "payment_notifications"}
    answer = await web.post("/me/preferences", data=some | {"night_consent": "on", "locale": "en"})

    assert (answer.status_code, answer.headers["location"]) == (303, "/me?saved=1")
    after = await wishes_of(hub)
    assert (after.dm_enabled, after.payment_notifications, after.locale) == (True, False, "en")
    assert after.night_consent_at
    page = (await web.get("/me?saved=1", headers={"accept-language": "en"})).text
    assert "Saved." in page
    assert re.search(r'name="payment_notifications"(?! checked)', page)
    assert re.search(r'name="dm_enabled" checked', page)


async def test_toasts_are_read_and_put_away_by_forms(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    one, two, three = [await inbox.arrive() for _ in range(3)]
    await enter(web, inbox)

    for path in (f"/me/toasts/{one}/read", f"/me/toasts/{two}/archive", "/me/read"):
        answer = await web.post(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/me")

    assert {(toast.id, toast.state) for toast in await inbox.listed()} == {(one, "read"), (three, "read")}
    assert f"toast-{two}" in (await web.get("/me?view=archived")).text


async def test_looking_changes_nothing(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await inbox.arrive()
    await enter(web, inbox)
    before = await inbox.changes()
    for path in ("/me", "/me/inbox", "/me?view=archived", "/me?cursor=nonsense"):
        assert (await web.get(path)).status_code == 200

    assert [(each.seq, each.state) for each in await inbox.changes()] == [(before[0].seq, "unseen")]
    assert await inbox.db.fetchval("select count(*) from notification.people") == 0


@pytest.mark.parametrize("origin", [None, "null", "x", "http://[", "https://evil.example", "http://127.0.0.1:1"])
async def test_no_other_site_does_anything_with_the_cookie(
    address: str, inbox: Inbox, hub: Hub, origin: str | None
) -> None:
    toast = await inbox.arrive()
    headers = {"origin": origin} if origin else {}
    cookies = {PERSON_COOKIE: await inbox.cookie()}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies=cookies) as web:
        tried = [
            await web.post(f"/me/toasts/{toast}/read"),
            await web.post("/me/read"),
            await web.post("/me/preferences", data={"dm_enabled": "on"}),
            await web.post("/me/leave"),
            await web.post("/me/language"),
            await web.post(f"/v1/toasts/{toast}/archive"),
            await web.put(f"/v1/preferences/{MINA}", json={"dm_enabled": False}),
        ]
        still_there = await web.get("/me")

    assert {answer.status_code for answer in tried} == {403}
    assert still_there.status_code == 200
    assert [each.state for each in await inbox.listed()] == ["unseen"]
    assert (await wishes_of(hub)).updated_at is None


async def test_a_browser_that_names_no_origin_but_says_it_is_ours_is_believed(address: str, inbox: Inbox) -> None:
    headers, cookies = {"sec-fetch-site": "same-origin"}, {PERSON_COOKIE: await inbox.cookie()}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies=cookies) as web:
        assert (await web.post("/me/read")).status_code == 303


async def test_somebody_elses_page_is_nobodys(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    theirs = await inbox.arrive(JUN, body="between us")
    await enter(web, inbox, MINA)

    assert "between us" not in (await web.get("/me")).text
    for path in (
        f"/me/toasts/{theirs}/read",
        f"/me/toasts/{new_id()}/read",
        "/me/toasts/x/read",
        "/me/toasts/x/eat",
    ):
        assert (await web.post(path)).status_code == 404
    assert [each.state for each in await inbox.listed(JUN)] == ["unseen"]


async def test_whoever_leaves_is_gone(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    cookie = await inbox.cookie()
    web.cookies.set(PERSON_COOKIE, cookie)
    assert (await web.post("/me/leave")).status_code == 303
    web.cookies.set(PERSON_COOKIE, cookie)

    assert (await web.get("/me")).status_code == 401


async def test_older_toasts_are_on_the_next_page(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    ids = [await inbox.arrive() for _ in range(25)]
    await enter(web, inbox)
    found: list[UUID] = []
    path: str | None = "/me"
    while path:
        text = (await web.get(path, headers={"accept-language": "en"})).text
        found += [UUID(each) for each in re.findall(r'<article id="toast-([^"]+)"', text)]
        older = re.search(r'<a href="([^"]+)">Older</a>', text)
        path = older[1].replace("&amp;", "&") if older else None

    assert found == ids[::-1]


@pytest.mark.parametrize("nasty", NASTY)
async def test_whatever_a_toast_says_is_text(web: httpx2.AsyncClient, inbox: Inbox, nasty: str) -> None:
    await inbox.arrive(title=nasty, body=nasty)
    await enter(web, inbox)

    page = (await web.get("/me")).text

    assert "<script>window" not in page
    assert not re.search(r"<(img|svg|h1>no)", page)
    assert "{{ 7 * 7 }}" in page if "{{" in nasty else True


async def test_the_policy_lets_nothing_else_run(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await enter(web, inbox)
    answer = await web.get("/me")

    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"\son\w+=|<style|style=|<script(?![^>]+src=)", answer.text)


async def test_a_database_that_is_away_is_said_in_a_page(web: httpx2.AsyncClient, inbox: Inbox, hub: Hub) -> None:
    await enter(web, inbox)
    await hub.db.close()
    answer = await web.get("/me")
    await hub.db.open()

    assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "/console" not in re.sub(r"/console/static", "", answer.text)
