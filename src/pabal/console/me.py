"""The page of one person: their toasts, and what they want to be told."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.api.page import cursor_of, place_of
from pabal.api.person import from_here, give_cookie, person, take_cookie
from pabal.api.visit import Visit
from pabal.console.pages import form, page, turned
from pabal.console.texts import Texts
from pabal.core.errors import Forbidden, Invalid, NotFound, Unauthenticated
from pabal.notifications import people, preferences, toasts
from pabal.notifications.alias import alias
from pabal.notifications.people import Person
from pabal.notifications.preferences import SWITCHES, Wish
from pabal.notifications.toasts import Mark
from pabal.wiring import Hub

HOME = "/me"
PAGE = 20
LOCALES = ("ko", "en")
SAME_ORIGIN = {"referrer-policy": "same-origin"}
"""Without a referrer at all a browser does not say either that a form is from a page of ours."""


async def show(hub: Hub, request: Request) -> Response:
    """The page; whoever comes with a link is asked before it is used, as anything may fetch one."""
    if (link := request.query_params.get("token")) is not None:
        return dressed(page(request, "open.html", dress="me/base.html", title="my notices", name="token", secret=link))
    try:
        visitor = await person(request, hub)
    except Unauthenticated:
        return note(request, "no link", 401)
    what = await found(hub, request, visitor)
    async with hub.autocommit() as tx:
        wishes = await preferences.get(tx, visitor.id)
    saved = "saved" in request.query_params
    return dressed(page(request, "me/page.html", person=visitor, wishes=wishes, saved=saved, **what))


async def enter(hub: Hub, request: Request) -> Response:
    """Take a link, once, and give a cookie for it. Only to a form of ours: nobody opens theirs in another's browser."""
    given = await form(request)
    if not from_here(request, hub):
        return note(request, "stale form", 403)
    async with hub.transaction() as tx:
        cookie = await people.swap(tx, given.get("token", ""))
    answer = RedirectResponse(HOME, 303)
    if cookie:
        give_cookie(hub, answer, cookie)
    return answer  # to who they were, or to be told that the link is of no use


async def inbox(hub: Hub, request: Request, visitor: Person) -> Response:
    """The part of the page that changes, for the page to fetch again."""
    return page(request, "me/inbox.html", **await found(hub, request, visitor))


async def mark(hub: Hub, request: Request, visitor: Person) -> Response:
    try:
        what, toast = Mark(request.path_params["mark"]), UUID(request.path_params["id"])
        async with hub.transaction() as tx:
            await toasts.mark(tx, visitor.id, toast, what)
    except (ValueError, NotFound):
        return note(request, "no such page", 404)
    return RedirectResponse(HOME, 303)


async def read_all(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await toasts.read_all(tx, visitor.id)
    return RedirectResponse(HOME, 303)


async def save(hub: Hub, request: Request, visitor: Person) -> Response:
    """Take the switches as the form has them: one that is off is not in it."""
    given = await form(request)
    visit: Visit = request.state.visit
    wish = Wish(
        **{name: name in given for name in SWITCHES},
        night_consent="night_consent" in given,
        locale=given["locale"] if given.get("locale") in LOCALES else None,
    )
    async with hub.transaction() as tx:
        await preferences.put(tx, visitor.id, wish, visit.by(alias(visitor.id)))
    return RedirectResponse(f"{HOME}?saved=1", 303)


async def leave(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await people.leave(tx, visitor)
        toasts.tell(tx, visitor.id)
    answer = RedirectResponse(HOME, 303)
    take_cookie(answer)
    return answer


async def language(hub: Hub, request: Request, _visitor: Person) -> Response:
    return turned(hub, request, HOME)


async def known(hub: Hub, request: Request) -> Person | Response:
    """Whose page it is, or what to show whoever it is not."""
    try:
        return await person(request, hub)
    except Unauthenticated:
        return note(request, "no link", 401)
    except Forbidden:
        return note(request, "stale form", 403)


async def found(hub: Hub, request: Request, visitor: Person) -> dict[str, Any]:
    """What is in the inbox, or was put away: one page of it."""
    archived = request.query_params.get("view") == "archived"
    try:
        before = place_of(request.query_params.get("cursor"))
    except Invalid:
        before = None
    async with hub.autocommit() as tx:
        now = await toasts.standing(tx, visitor.id)
        rows = await toasts.inbox(tx, visitor.id, archived=archived, before=before, limit=PAGE)
    return {"rows": rows, "now": now, "archived": archived, "older": cursor_of(rows, PAGE), "later": before, "ago": ago}


def ago(t: Texts, span: timedelta) -> str:
    """How long ago, as somebody would say it."""
    minutes = int(span.total_seconds()) // 60
    if minutes < 1:
        return t("just now")
    if minutes < 60:  # noqa: PLR2004 as a clock has them
        return t("minutes ago").format(minutes)
    return t("hours ago").format(minutes // 60) if minutes < 60 * 24 else t("days ago").format(minutes // (60 * 24))


async def missing(request: Request) -> Response:
    return note(request, "no such page", 404)


def note(request: Request, says: str, status: int, because: str = "") -> HTMLResponse:
    return dressed(page(request, "me/note.html", status=status, says=says, because=because))


def dressed(answer: HTMLResponse) -> HTMLResponse:
    answer.headers.update(SAME_ORIGIN)
    return answer
