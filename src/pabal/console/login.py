"""Signing in and out of the console, and the cookie in between."""

import hashlib
import hmac
import secrets
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.audit.record import record_action
from pabal.console.i18n import translator_for
from pabal.console.pages import read_form, render_page
from pabal.core.errors import RateLimited, Unauthenticated
from pabal.hub import Hub
from pabal.limits import RateLimit, consume_rate_limit, rate_limit_address
from pabal.operators import sessions
from pabal.operators.operators import Operator, OperatorCredentials, OperatorSession, find_operator_credentials
from pabal.operators.sessions import (
    authenticate_operator,
    create_operator_session,
    find_operator_session,
    sign_out_operator,
)
from pabal.web.auth import is_same_origin, set_secure_cookie
from pabal.web.errors import error_headers
from pabal.web.request import RequestContext

CONSOLE_PATH = "/console"
OPERATOR_COOKIE = "pabal_session"
LOGIN_FORM_COOKIE = "pabal_form"
"""Ties the sign-in form to the browser it was shown in, before there is a session to tie it to."""
LIVE_PATH = f"{CONSOLE_PATH}/live"

SIGN_INS_PER_ADDRESS = RateLimit("sign-ins", 10, timedelta(minutes=5))
SIGN_INS_PER_NAME = RateLimit(
    "sign-ins to this name", 100, timedelta(minutes=15)
)  # high, or anybody could lock an operator out
SIGN_IN_FAILURE_RECORDS = RateLimit("notes of failed sign-ins", 60, timedelta(minutes=1))
"""All addresses together, at each door: nobody can take a row back out of the log."""
UNKNOWN_OPERATOR = "unknown"


async def login_page(hub: Hub, request: Request) -> Response:
    if await find_current_session(hub, request):
        answer = RedirectResponse(CONSOLE_PATH, 303)
        renew_operator_cookie(hub, request, answer)
        return answer
    return render_login_page(hub, request)


async def sign_in_action(hub: Hub, request: Request) -> Response:
    """Check name and password; a wrong one says nothing about which. No connection is held while it is compared."""
    t, given = translator_for(request), await read_form(request)
    visit: RequestContext = request.state.visit
    if not is_login_form_valid(hub, request, given.get("form", "")):
        return render_login_page(hub, request, t("stale form"), 403)
    name, password = given.get("name", "")[:64], given.get("password", "")
    known = None
    try:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, SIGN_INS_PER_ADDRESS, rate_limit_address(visit.client_ip))
            await consume_rate_limit(tx, SIGN_INS_PER_NAME, hash_login_name(name))
            known = await find_operator_credentials(tx, name)
        token = await start_operator_session(hub, visit, await authenticate_operator(known, password))
    except Unauthenticated:
        await record_failed_sign_in(hub, visit, known)
        return render_login_page(hub, request, t("wrong"), 401)
    except RateLimited as error:
        answer = render_login_page(hub, request, t("too many"), 429)
        answer.headers.update(error_headers(error))
        return answer
    answer = RedirectResponse(CONSOLE_PATH, 303)
    set_operator_cookie(hub, answer, token)
    answer.delete_cookie(LOGIN_FORM_COOKIE, path=CONSOLE_PATH)
    return answer


def hash_login_name(name: str) -> str:
    """What tries to a name are counted by: not what was typed, which may have been a password."""
    return hashlib.sha256(name.lower().encode()).hexdigest()


async def start_operator_session(hub: Hub, context: RequestContext, operator: OperatorCredentials) -> str:
    async with hub.transaction() as tx:
        return await create_operator_session(tx, operator, context.actor(f"operator:{operator.name}"))


async def record_failed_sign_in(hub: Hub, context: RequestContext, operator: Operator | None) -> None:
    """Write down that somebody tried, and to be whom. A name nobody has is not kept: it may be a password."""
    await record_refused_access(
        hub, context, "operator.sign_in_failed", operator.name if operator else UNKNOWN_OPERATOR
    )


async def record_refused_access(
    hub: Hub, context: RequestContext, action: str, subject: str | None, **details: object
) -> None:
    """Write down that a door let somebody not in, unless it wrote that too often already."""
    async with hub.autocommit() as tx:
        try:
            await consume_rate_limit(tx, SIGN_IN_FAILURE_RECORDS, action)
        except RateLimited:
            return
        await record_action(tx, context.actor("nobody"), action, subject, **details)


async def sign_out_action(hub: Hub, request: Request, session: OperatorSession, _fields: object) -> Response:
    visit: RequestContext = request.state.visit
    async with hub.transaction() as tx:
        await sign_out_operator(tx, session, visit.actor(f"operator:{session.name}"))
    answer = RedirectResponse("/console/login", 303)
    answer.delete_cookie(OPERATOR_COOKIE, path=CONSOLE_PATH)
    return answer


async def find_current_session(hub: Hub, request: Request) -> OperatorSession | None:
    """Who is signed in. A page that keeps itself fresh, or a stream that opens again, is nobody who is there."""
    token = request.cookies.get(OPERATOR_COOKIE)
    if not token:
        return None
    used = "x-look" not in request.headers and request.url.path != LIVE_PATH
    async with hub.autocommit() as tx:
        session = await find_operator_session(tx, token, is_activity=used)
    request.state.renewed = session and session.renewed_token
    return session


def renew_operator_cookie(hub: Hub, request: Request, response: Response) -> None:
    """Give the browser what its cookie is from now on, unless the answer ends the session or begins another."""
    renewed: str | None = getattr(request.state, "renewed", None)
    if renewed and not any(each.startswith(f"{OPERATOR_COOKIE}=") for each in response.headers.getlist("set-cookie")):
        set_operator_cookie(hub, response, renewed)


def render_login_page(hub: Hub, request: Request, error: str = "", status: int = 200) -> Response:
    token = request.cookies.get(LOGIN_FORM_COOKIE) or secrets.token_urlsafe(24)
    answer = render_page(request, "login.html", status=status, error=error, form_token=token)
    set_secure_cookie(hub, answer, LOGIN_FORM_COOKIE, token, max_age=3600, path=CONSOLE_PATH)
    return answer


def is_login_form_valid(hub: Hub, request: Request, token: str) -> bool:
    """The form carries what its browser's cookie carries, and no other site sent it."""
    kept = request.cookies.get(LOGIN_FORM_COOKIE, "")
    return is_own_form(hub, request) and bool(kept) and equal_in_constant_time(kept, token)


def is_own_form(hub: Hub, request: Request) -> bool:
    """Whether nobody says that another site sent this. Browsers that say nothing have the form's own token to show."""
    silent = request.headers.get("origin", "null") == "null" and "sec-fetch-site" not in request.headers
    return silent or is_same_origin(request, hub)


def equal_in_constant_time(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def set_operator_cookie(hub: Hub, response: Response, token: str) -> None:
    set_secure_cookie(
        hub, response, OPERATOR_COOKIE, token, max_age=int(sessions.SESSION_LIFETIME.total_seconds()), path=CONSOLE_PATH
    )
