"""The page of one person (/me): their toasts and their notification preferences."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.audit.pseudonym import person_pseudonym
from pabal.console.i18n import Translator
from pabal.console.pages import language_redirect, read_cursor, read_form, read_query, render_page, request_context
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
from pabal.web.auth import authenticate_person, clear_person_cookie, set_person_cookie
from pabal.web.origin import is_same_origin
from pabal.web.pagination import decode_cursor, next_cursor
from pabal.web.request import mark_authenticated

PERSON_PATH = "/me"
PAGE_SIZE = 20
LOCALES = ("ko", "en")
SAME_ORIGIN_REFERRER = {"referrer-policy": "same-origin"}
"""With "no-referrer" browsers send "Origin: null" for forms, and the origin check would fail."""


async def person_page(hub: Hub, request: Request) -> Response:
    """Show the page. A link asks for a click first, because link previews fetch it as well."""
    if (link := read_query(request, "token")) is not None:
        return with_referrer_policy(
            render_page(
                request,
                "open_link.html",
                layout="person/base.html",
                title_id="people.title.me",
                field_name="token",
                secret=link,
            )
        )
    try:
        visitor = await authenticate_person(request, hub)
        mark_authenticated(request)
    except Unauthenticated:
        return person_error_page(request, "link_expired", 401)
    inbox = await inbox_context(hub, request, visitor)
    async with hub.autocommit() as tx:
        preferences = await load_preferences(tx, visitor.owner)
    saved = read_query(request, "saved")
    return with_referrer_policy(
        render_page(request, "person/page.html", person=visitor, preferences=preferences, saved=saved, **inbox)
    )


async def open_person_link_action(hub: Hub, request: Request) -> Response:
    """Exchange a one-time link for a cookie. Forms of other sites could sign a visitor in as a different person."""
    fields = await read_form(request)
    if not is_same_origin(request, hub):
        return person_error_page(request, "form_expired", 403)
    async with hub.transaction() as tx:
        cookie = await exchange_person_link(tx, fields.get("token", ""))
    response = RedirectResponse(PERSON_PATH, 303)
    if cookie:
        set_person_cookie(hub, response, cookie)
    return response  # without a new cookie the page shows the earlier session, or that the link has expired


async def person_inbox_page(hub: Hub, request: Request, visitor: Person) -> Response:
    """Render only the inbox, which the page fetches again after a change."""
    return render_page(request, "person/inbox.html", **await inbox_context(hub, request, visitor))


async def mark_toast_action(hub: Hub, request: Request, visitor: Person) -> Response:
    try:
        action, toast_id = ToastAction(request.path_params["mark"]), UUID(request.path_params["id"])
        async with hub.transaction() as tx:
            await mark_toast(tx, visitor.id, toast_id, action)
    except (ValueError, NotFound):
        return person_error_page(request, "not_found", 404)
    return RedirectResponse(PERSON_PATH, 303)


async def read_all_toasts_action(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await mark_all_toasts_read(tx, visitor.id)
    return RedirectResponse(PERSON_PATH, 303)


async def save_preferences_action(hub: Hub, request: Request, visitor: Person) -> Response:
    """Save all switches. A checkbox that is off is missing in the form."""
    fields = await read_form(request)
    flags: dict[str, Any] = {name: name in fields for name in PREFERENCE_FLAGS}
    update = PreferencesUpdate(**flags)
    if visitor.owner == visitor.id:  # a registered user without a Discord account has neither
        locale = fields["locale"] if fields.get("locale") in LOCALES else None
        update = replace(update, night_consent="night_consent" in fields, locale=locale)
    actor = request_context(request).actor(person_pseudonym(visitor.id))
    async with hub.transaction() as tx:
        await update_preferences(tx, visitor.owner, update, actor)
    return RedirectResponse(f"{PERSON_PATH}?saved=1", 303)


async def sign_out_person_action(hub: Hub, _request: Request, visitor: Person) -> Response:
    async with hub.transaction() as tx:
        await revoke_person_token(tx, visitor)
        notify_toast_streams(tx, visitor.id)
    response = RedirectResponse(PERSON_PATH, 303)
    clear_person_cookie(response)
    return response


async def switch_person_language_action(hub: Hub, request: Request, _visitor: Person) -> Response:
    return language_redirect(hub, request, PERSON_PATH)


async def person_or_error_page(hub: Hub, request: Request) -> Person | Response:
    """Authenticate the person, or return the error page to show."""
    try:
        visitor = await authenticate_person(request, hub)
        mark_authenticated(request)
    except Unauthenticated:
        return person_error_page(request, "link_expired", 401)
    except Forbidden:
        return person_error_page(request, "form_expired", 403)
    return visitor


async def inbox_context(hub: Hub, request: Request, visitor: Person) -> dict[str, Any]:
    """Load one page of the inbox or of the archive."""
    archived = read_query(request, "view") == "archived"
    try:
        before = decode_cursor(read_cursor(request))
    except Invalid:
        before = None
    async with hub.autocommit() as tx:
        inbox_state = await load_inbox_state(tx, visitor.id)
        rows = await list_toasts(tx, visitor.id, archived=archived, before=before, limit=PAGE_SIZE)
    return {
        "rows": rows,
        "inbox_state": inbox_state,
        "archived": archived,
        "next_cursor": next_cursor(rows, PAGE_SIZE),
        "current_cursor": before,
        "format_time_ago": format_time_ago,
    }


def format_time_ago(t: Translator, age: timedelta) -> str:
    """Format an age in its largest unit."""
    minutes = int(age.total_seconds()) // 60
    if minutes < 1:
        return t("person.time.now")
    if minutes < 60:  # noqa: PLR2004 minutes of an hour
        return t("person.time.minutes", count=minutes)
    if minutes < 60 * 24:
        return t("person.time.hours", count=minutes // 60)
    return t("person.time.days", count=minutes // (60 * 24))


async def person_not_found_page(request: Request) -> Response:
    return person_error_page(request, "not_found", 404)


def person_error_page(request: Request, error: str, status: int, detail: str = "") -> HTMLResponse:
    """Render a page with one of the `people.error` texts."""
    return with_referrer_policy(render_page(request, "person/error.html", status=status, error=error, detail=detail))


def with_referrer_policy(response: HTMLResponse) -> HTMLResponse:
    response.headers.update(SAME_ORIGIN_REFERRER)
    return response
