"""The page of one person: their toasts, and what they want to be told."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.audit.pseudonym import person_pseudonym
from pabal.console.i18n import Translator
from pabal.console.pages import language_redirect, read_form, render_page
from pabal.core.errors import Forbidden, Invalid, NotFound, Unauthenticated
from pabal.hub import Hub
from pabal.notifications.people.preferences import (
    PREFERENCE_FLAGS,
    PreferencesUpdate,
    load_preferences,
    update_preferences,
)
from pabal.notifications.people.tokens import Person, exchange_person_link, revoke_person_token
from pabal.notifications.toasts.inbox import (
    ToastAction,
    list_toasts,
    load_inbox_state,
    mark_all_toasts_read,
    mark_toast,
    notify_toast_streams,
)
from pabal.web.auth import authenticate_person, clear_person_cookie, is_same_origin, set_person_cookie
from pabal.web.pagination import decode_cursor, next_cursor
from pabal.web.request import RequestContext

PERSON_PATH = "/me"
PAGE_SIZE = 20
LOCALES = ("ko", "en")
SAME_ORIGIN_REFERRER = {"referrer-policy": "same-origin"}
"""Without a referrer at all a browser does not say either that a form is from a page of ours."""


async def person_page(hub: Hub, request: Request) -> Response:
    """The page; whoever comes with a link is asked before it is used, as anything may fetch one."""
    if (link := request.query_params.get("token")) is not None:
        return with_referrer_policy(
            render_page(
                request,
                "open_link.html",
                layout="person/base.html",
                title_id="my notices",
                field_name="token",
                secret=link,
            )
        )
    try:
        visitor = await authenticate_person(request, hub)
    except Unauthenticated:
        return person_error_page(request, "no link", 401)
    what = await inbox_context(hub, request, visitor)
    async with hub.autocommit() as tx:
        wishes = await load_preferences(tx, visitor.id)
    saved = "saved" in request.query_params
    return with_referrer_policy(
        render_page(request, "person/page.html", person=visitor, preferences=wishes, saved=saved, **what)
    )


async def open_person_link_action(hub: Hub, request: Request) -> Response:
    """Take a link, once, and give a cookie for it. Only to a form of ours: nobody opens theirs in another's browser."""
    given = await read_form(request)
    if not is_same_origin(request, hub):
        return person_error_page(request, "stale form", 403)
    async with hub.transaction() as tx:
        cookie = await exchange_person_link(tx, given.get("token", ""))
    answer = RedirectResponse(PERSON_PATH, 303)
    if cookie:
        set_person_cookie(hub, answer, cookie)
    return answer  # to who they were, or to be told that the link is of no use


async def person_inbox_page(hub: Hub, request: Request, visitor: Person) -> Response:
    """The part of the page that changes, for the page to fetch again."""
    return render_page(request, "person/inbox.html", **await inbox_context(hub, request, visitor))


async def mark_toast_action(hub: Hub, request: Request, visitor: Person) -> Response:
    try:
        what, toast = ToastAction(request.path_params["mark"]), UUID(request.path_params["id"])
        async with hub.transaction() as tx:
            await mark_toast(tx, visitor.id, toast, what)
    except (ValueError, NotFound):
        return person_error_page(request, "no such page", 404)
    return RedirectResponse(PERSON_PATH, 303)


async def read_all_toasts_action(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await mark_all_toasts_read(tx, visitor.id)
    return RedirectResponse(PERSON_PATH, 303)


async def save_preferences_action(hub: Hub, request: Request, visitor: Person) -> Response:
    """Take the switches as the form has them: one that is off is not in it."""
    given = await read_form(request)
    visit: RequestContext = request.state.visit
    wish = PreferencesUpdate(
        **{name: name in given for name in PREFERENCE_FLAGS},
        night_consent="night_consent" in given,
        locale=given["locale"] if given.get("locale") in LOCALES else None,
    )
    async with hub.transaction() as tx:
        await update_preferences(tx, visitor.id, wish, visit.actor(person_pseudonym(visitor.id)))
    return RedirectResponse(f"{PERSON_PATH}?saved=1", 303)


async def sign_out_person_action(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await revoke_person_token(tx, visitor)
        notify_toast_streams(tx, visitor.id)
    answer = RedirectResponse(PERSON_PATH, 303)
    clear_person_cookie(answer)
    return answer


async def switch_person_language_action(hub: Hub, request: Request, _visitor: Person) -> Response:
    return language_redirect(hub, request, PERSON_PATH)


async def person_or_error_page(hub: Hub, request: Request) -> Person | Response:
    """Whose page it is, or what to show whoever it is not."""
    try:
        return await authenticate_person(request, hub)
    except Unauthenticated:
        return person_error_page(request, "no link", 401)
    except Forbidden:
        return person_error_page(request, "stale form", 403)


async def inbox_context(hub: Hub, request: Request, visitor: Person) -> dict[str, Any]:
    """What is in the inbox, or was put away: one page of it."""
    archived = request.query_params.get("view") == "archived"
    try:
        before = decode_cursor(request.query_params.get("cursor"))
    except Invalid:
        before = None
    async with hub.autocommit() as tx:
        now = await load_inbox_state(tx, visitor.id)
        rows = await list_toasts(tx, visitor.id, archived=archived, before=before, limit=PAGE_SIZE)
    return {
        "rows": rows,
        "inbox_state": now,
        "archived": archived,
        "next_cursor": next_cursor(rows, PAGE_SIZE),
        "current_cursor": before,
        "format_time_ago": format_time_ago,
    }


def format_time_ago(t: Translator, age: timedelta) -> str:
    """How long ago, as somebody would say it."""
    minutes = int(age.total_seconds()) // 60
    if minutes < 1:
        return t("just now")
    if minutes < 60:  # noqa: PLR2004 as a clock has them
        return t("minutes ago").format(minutes)
    return t("hours ago").format(minutes // 60) if minutes < 60 * 24 else t("days ago").format(minutes // (60 * 24))


async def person_not_found_page(request: Request) -> Response:
    return person_error_page(request, "no such page", 404)


def person_error_page(request: Request, text_id: str, status: int, detail: str = "") -> HTMLResponse:
    return with_referrer_policy(
        render_page(request, "person/error.html", status=status, text_id=text_id, detail=detail)
    )


def with_referrer_policy(response: HTMLResponse) -> HTMLResponse:
    response.headers.update(SAME_ORIGIN_REFERRER)
    return response
