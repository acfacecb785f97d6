"""The page of a person without scripts: links, cookies, forms and access."""

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
from support.inbox import HOSTILE_TEXTS, JUN, MINA, Inbox, open_inbox
from support.server import serve_hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]


@pytest.fixture
async def address(hub: Hub) -> AsyncGenerator[str]:
    async with serve_hub(hub) as where:
        yield where


async def preferences_of(hub: Hub, person: str = MINA) -> Preferences:
    async with hub.autocommit() as tx:
        return await load_preferences(tx, person)


@pytest.fixture
async def web(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as client:
        yield client


async def open_person_page(web: httpx2.AsyncClient, inbox: Inbox, person: str = MINA) -> None:
    response = await web.post("/me", data={"token": await inbox.token(person)})
    assert response.status_code == 303


async def test_a_link_is_exchanged_for_a_cookie_once_and_removed_from_the_url(
    web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    link = await inbox.token()

    first = await web.post("/me", data={"token": link})
    set_cookie, former_cookie = first.headers.get_list("set-cookie")
    assert (first.status_code, first.headers["location"]) == (303, "/me")
    assert {"HttpOnly", "Path=/me", "SameSite=lax", f"Max-Age={int(PERSON_COOKIE_LIFETIME.total_seconds())}"} <= {
        *set_cookie.split("; ")
    }
    assert "Secure" not in set_cookie
    assert link not in set_cookie
    assert former_cookie.startswith('pabal_person=""')
    assert {"Max-Age=0", "Path=/"} <= {*former_cookie.split("; ")}

    mine = await web.get("/me")
    assert mine.status_code == 200
    assert MINA in mine.text
    again = await web.post("/me", data={"token": link})
    assert (again.status_code, again.headers["location"]) == (303, "/me")
    web.cookies.clear()
    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    assert (await web.get("/me")).status_code == 401


async def test_the_cookie_is_secure_behind_https(database_urls: DatabaseUrls, settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://hub.example.org"})
    async with (
        open_hub(public, database_urls) as hub,
        open_inbox(hub, database_urls) as inbox,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        headers = {"origin": "https://hub.example.org"}
        response = await web.post("/me", data={"token": await inbox.token()}, headers=headers)

    assert "Secure" in response.headers.get_list("set-cookie")[0].split("; ")


async def test_a_link_is_used_only_when_the_button_is_pressed(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    """Link previews fetch the URL, so a GET must not use the token."""
    link = await inbox.token()

    assert (await web.head("/me", params={"token": link})).status_code == 200
    door = await web.get("/me", params={"token": link})
    assert (door.status_code, "set-cookie" in door.headers) == (200, False)
    assert f'<input type="hidden" name="token" value="{link}">' in door.text
    assert "set-cookie" in (await web.post("/me", data={"token": link})).headers


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
async def test_other_sites_cannot_sign_an_owner_in(address: str, inbox: Inbox, origin: str | None) -> None:
    """A person signed in as someone else would change the wrong preferences."""
    link = await inbox.token()
    async with httpx2.AsyncClient(base_url=address, headers={"origin": origin} if origin else {}) as theirs:
        response = await theirs.post("/me", data={"token": link})

    assert (response.status_code, "set-cookie" in response.headers) == (403, False)
    async with httpx2.AsyncClient(base_url=address, headers={"origin": address}) as mine:
        assert "set-cookie" in (await mine.post("/me", data={"token": link})).headers


@pytest.mark.parametrize("link", ["", "garbage", "pbp_" + "a" * 43, "\0", HOSTILE_TEXTS[0]])
async def test_an_invalid_link_is_refused(web: httpx2.AsyncClient, link: str) -> None:
    assert "<script>" not in (await web.get("/me", params={"token": link})).text
    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    response = await web.get("/me")

    assert response.status_code == 401
    assert "used or has expired" in response.text or "만료" in response.text


async def test_an_expired_link_is_refused(web: httpx2.AsyncClient, inbox: Inbox, travel: Travel) -> None:
    link = await inbox.token()
    await travel(PERSON_LINK_LIFETIME)

    assert "set-cookie" not in (await web.post("/me", data={"token": link})).headers
    assert (await web.get("/me")).status_code == 401


async def test_preferences_are_saved_with_the_form(web: httpx2.AsyncClient, inbox: Inbox, hub: Hub) -> None:
    await open_person_page(web, inbox)
    before = await preferences_of(hub)
    assert before.updated_at is None

    some = {name: "on" for name in PREFERENCE_FLAGS if name != "payment_notifications"}
    response = await web.post("/me/preferences", data=some | {"night_consent": "on", "locale": "en"})

    assert (response.status_code, response.headers["location"]) == (303, "/me?saved=1")
    after = await preferences_of(hub)
    assert (after.dm_enabled, after.payment_notifications, after.locale) == (True, False, "en")
    assert after.night_consent_at
    page = (await web.get("/me?saved=1", headers={"accept-language": "en"})).text
    assert "Saved." in page
    assert re.search(r'name="payment_notifications"(?! checked)', page)
    assert re.search(r'name="dm_enabled" checked', page)


async def test_toasts_are_marked_as_read_and_archived_with_forms(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    one, two, three = [await inbox.insert_toast() for _ in range(3)]
    await open_person_page(web, inbox)

    for path in (f"/me/toasts/{one}/read", f"/me/toasts/{two}/archive", "/me/read"):
        response = await web.post(path)
        assert (response.status_code, response.headers["location"]) == (303, "/me")

    assert {(toast.id, toast.state) for toast in await inbox.list_toasts()} == {(one, "read"), (three, "read")}
    assert f"toast-{two}" in (await web.get("/me?view=archived")).text


async def test_reading_changes_nothing(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await inbox.insert_toast()
    await open_person_page(web, inbox)
    before = await inbox.changes()
    for path in ("/me", "/me/inbox", "/me?view=archived", "/me?cursor=nonsense"):
        assert (await web.get(path)).status_code == 200

    assert [(change.seq, change.state) for change in await inbox.changes()] == [(before[0].seq, "unseen")]
    assert await inbox.db.fetchval("select count(*) from notification.people") == 0


@pytest.mark.parametrize("origin", [None, "null", "x", "http://[", "https://evil.example", "http://127.0.0.1:1"])
async def test_cross_site_requests_with_the_cookie_are_refused(
    address: str, inbox: Inbox, hub: Hub, origin: str | None
) -> None:
    toast = await inbox.insert_toast()
    headers = {"origin": origin} if origin else {}
    cookies = {PERSON_COOKIE: await inbox.cookie()}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies=cookies) as web:
        forged = [
            await web.post(f"/me/toasts/{toast}/read"),
            await web.post("/me/read"),
            await web.post("/me/preferences", data={"dm_enabled": "on"}),
            await web.post("/me/leave"),
            await web.post("/me/language"),
            await web.post(f"/v1/toasts/{toast}/archive"),
            await web.put(f"/v1/preferences/{MINA}", json={"dm_enabled": False}),
        ]
        still_there = await web.get("/me")

    assert {response.status_code for response in forged} == {403}
    assert still_there.status_code == 200
    assert [toast.state for toast in await inbox.list_toasts()] == ["unseen"]
    assert (await preferences_of(hub)).updated_at is None


async def test_sec_fetch_site_is_accepted_in_place_of_an_origin(address: str, inbox: Inbox) -> None:
    headers, cookies = {"sec-fetch-site": "same-origin"}, {PERSON_COOKIE: await inbox.cookie()}
    async with httpx2.AsyncClient(base_url=address, headers=headers, cookies=cookies) as web:
        assert (await web.post("/me/read")).status_code == 303


async def test_a_page_shows_nothing_of_another_person(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    theirs = await inbox.insert_toast(JUN, body="between us")
    await open_person_page(web, inbox, MINA)

    assert "between us" not in (await web.get("/me")).text
    for path in (
        f"/me/toasts/{theirs}/read",
        f"/me/toasts/{new_id()}/read",
        "/me/toasts/x/read",
        "/me/toasts/x/eat",
    ):
        assert (await web.post(path)).status_code == 404
    assert [toast.state for toast in await inbox.list_toasts(JUN)] == ["unseen"]


async def test_signing_out_ends_the_session(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    cookie = await inbox.cookie()
    web.cookies.set(PERSON_COOKIE, cookie)
    assert (await web.post("/me/leave")).status_code == 303
    web.cookies.set(PERSON_COOKIE, cookie)

    assert (await web.get("/me")).status_code == 401


async def test_older_toasts_are_paginated(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    ids = [await inbox.insert_toast() for _ in range(25)]
    await open_person_page(web, inbox)
    toast_ids: list[UUID] = []
    path: str | None = "/me"
    while path:
        text = (await web.get(path, headers={"accept-language": "en"})).text
        toast_ids += [UUID(toast_id) for toast_id in re.findall(r'<article id="toast-([^"]+)"', text)]
        older = re.search(r'<a href="([^"]+)">Older</a>', text)
        path = older[1].replace("&amp;", "&") if older else None

    assert toast_ids == ids[::-1]


@pytest.mark.parametrize("nasty", HOSTILE_TEXTS)
async def test_toasts_are_escaped(web: httpx2.AsyncClient, inbox: Inbox, nasty: str) -> None:
    await inbox.insert_toast(title=nasty, body=nasty)
    await open_person_page(web, inbox)

    page = (await web.get("/me")).text

    assert "<script>window" not in page
    assert not re.search(r"<(img|svg|h1>no)", page)
    assert "{{ 7 * 7 }}" in page if "{{" in nasty else True


async def test_the_content_security_policy_blocks_other_scripts(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await open_person_page(web, inbox)
    response = await web.get("/me")

    assert "script-src 'self'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    assert not re.search(r"\son\w+=|<style|style=|<script(?![^>]+src=)", response.text)


async def test_a_database_outage_shows_an_error_page(web: httpx2.AsyncClient, inbox: Inbox, hub: Hub) -> None:
    await open_person_page(web, inbox)
    await hub.db.close()
    response = await web.get("/me")
    await hub.db.open()

    assert (response.status_code, response.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "/console" not in re.sub(r"/console/static", "", response.text)


async def test_the_page_needs_its_cookie_only_under_its_own_path(
    web: httpx2.AsyncClient, inbox: Inbox, address: str
) -> None:
    """Browsers send the cookie to /me only, so the page's script must not use another path."""
    await open_person_page(web, inbox)
    toast = await inbox.insert_toast()
    script = (await web.get("/console/static/person.js")).text
    paths = re.findall(r"(?:fetch|EventSource)\(`([^`]+)`", script)
    assert paths
    assert all(path.startswith("/me/") for path in paths), paths

    seen = await web.post(f"/me/toasts/{toast}/seen", headers={"origin": address})
    assert seen.status_code == 303
    async with web.stream("GET", "/me/stream?after=0") as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        assert [await anext(lines), await anext(lines)][1] == "event: connected"
    assert (await web.get("/v1/toasts")).status_code == 401


async def test_a_cookie_of_an_earlier_version_is_ignored(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    web.cookies.set("pabal_person", await inbox.cookie())

    assert (await web.get("/me")).status_code == 401
    await open_person_page(web, inbox)
    assert (await web.get("/me")).status_code == 200
