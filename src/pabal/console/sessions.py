"""Signing in and out of the console."""

import hmac
import secrets
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.api.errors import headers_for
from pabal.api.person import from_here
from pabal.api.visit import Visit
from pabal.console.pages import form as read_form
from pabal.console.pages import page
from pabal.console.texts import texts_for
from pabal.core.errors import TooMany, Unauthenticated
from pabal.limits import Limit, take
from pabal.operators import operators
from pabal.wiring import Hub

COOKIE = "pabal_session"
BEFORE = "pabal_form"
"""Ties the sign-in form to the browser it was shown in, before there is a session to tie it to."""

PER_ADDRESS = Limit("sign-ins", 10, timedelta(minutes=5))
PER_NAME = Limit("sign-ins to this name", 100, timedelta(minutes=15))  # high, or anybody could lock an operator out


async def show(hub: Hub, request: Request) -> Response:
    if await who(hub, request):
        return RedirectResponse("/console", 303)
    return form(hub, request)


async def enter(hub: Hub, request: Request) -> Response:
    """Check name and password; a wrong one says nothing about which."""
    t, given = texts_for(request), await read_form(request)
    visit: Visit = request.state.visit
    if not same_browser(hub, request, given.get("form", "")):
        return form(hub, request, t("stale form"), 403)
    name = given.get("name", "")[:64]
    try:
        async with hub.autocommit() as tx:
            await take(tx, PER_ADDRESS, visit.client)
            await take(tx, PER_NAME, name.lower())
        async with hub.transaction() as tx:
            token = await operators.sign_in(
                tx, name, given.get("password", ""), client_ip=visit.client or None, user_agent=visit.user_agent
            )
    except Unauthenticated:
        return form(hub, request, t("wrong"), 401)
    except TooMany as error:
        answer = form(hub, request, t("too many"), 429)
        answer.headers.update(headers_for(error))
        return answer
    answer = RedirectResponse("/console", 303)
    set_cookie(hub, answer, COOKIE, token, int(operators.SESSION_LIFE.total_seconds()))
    answer.delete_cookie(BEFORE, path="/console")
    return answer


async def leave(hub: Hub, request: Request, _session: operators.Session, _given: object) -> Response:
    async with hub.autocommit() as tx:
        await operators.sign_out(tx, request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/console/login", 303)
    answer.delete_cookie(COOKIE, path="/console")
    return answer


async def who(hub: Hub, request: Request) -> operators.Session | None:
    token = request.cookies.get(COOKIE)
    if not token:
        return None
    async with hub.autocommit() as tx:
        return await operators.session(tx, token)


def form(hub: Hub, request: Request, complaint: str = "", status: int = 200) -> Response:
    token = request.cookies.get(BEFORE) or secrets.token_urlsafe(24)
    answer = page(request, "login.html", status=status, complaint=complaint, form=token)
    set_cookie(hub, answer, BEFORE, token, 3600)
    return answer


def same_browser(hub: Hub, request: Request, token: str) -> bool:
    """The form carries what its browser's cookie carries, and no other site sent it."""
    kept = request.cookies.get(BEFORE, "")
    return ours(hub, request) and bool(kept) and same(kept, token)


def ours(hub: Hub, request: Request) -> bool:
    """Whether nobody says that another site sent this. Browsers that say nothing have the form's own token to show."""
    silent = request.headers.get("origin", "null") == "null" and "sec-fetch-site" not in request.headers
    return silent or from_here(request, hub)


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def set_cookie(hub: Hub, answer: Response, name: str, value: str, seconds: int) -> None:
    secure = bool(hub.settings.public_url and hub.settings.public_url.startswith("https://"))
    answer.set_cookie(name, value, max_age=seconds, path="/console", httponly=True, secure=secure, samesite="lax")
