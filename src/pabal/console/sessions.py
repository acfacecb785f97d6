"""Signing in and out of the console."""

import hmac
import secrets
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.api.errors import headers_for
from pabal.api.visit import Visit
from pabal.console.pages import fields, page
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
    t, given = texts_for(request), await fields(request)
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


async def leave(hub: Hub, request: Request, session: operators.Session) -> Response:
    given = await fields(request)
    if not same(given.get("csrf", ""), session.csrf.hex()):
        return RedirectResponse("/console", 303)
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
    homes = {request.headers.get("host"), urlsplit(hub.settings.public_url or "").netloc}
    origin = request.headers.get("origin")
    if origin and origin != "null" and urlsplit(origin).netloc not in homes:
        return False
    kept = request.cookies.get(BEFORE, "")
    return bool(kept) and same(kept, token)


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def set_cookie(hub: Hub, answer: Response, name: str, value: str, seconds: int) -> None:
    secure = bool(hub.settings.public_url and hub.settings.public_url.startswith("https://"))
    answer.set_cookie(name, value, max_age=seconds, path="/console", httponly=True, secure=secure, samesite="lax")
