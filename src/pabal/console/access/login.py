"""Signing in and out of the console, and the session cookie."""

import hashlib
import secrets
from contextlib import suppress
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.audit.record import record_action
from pabal.console.access.csrf import is_trusted_form
from pabal.console.access.sign_in_queue import SignInQueue
from pabal.console.i18n import translator_for
from pabal.console.pages import REFRESH_HEADER, read_form, render_page, request_context
from pabal.core.actor import ANONYMOUS
from pabal.core.errors import RateLimited, Unauthenticated
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.limits import (
    RateLimit,
    block_rate_limit,
    blocked_for,
    consume_rate_limit,
    rate_limit_address,
    read_rate_limits,
)
from pabal.operators import sessions
from pabal.operators.operators import Operator, OperatorCredentials, OperatorSession, find_operator_credentials
from pabal.operators.sessions import (
    authenticate_operator,
    create_operator_session,
    find_operator_session,
    sign_out_operator,
)
from pabal.web.auth import set_secure_cookie
from pabal.web.cookies import read_cookie
from pabal.web.errors import error_headers
from pabal.web.request import RequestContext, mark_authenticated

CONSOLE_PATH = "/console"
OPERATOR_COOKIE = "pabal_session"
LOGIN_FORM_COOKIE = "pabal_form"
"""Holds the CSRF token of the sign-in form, because there is no session yet that could."""
LIVE_PATH = f"{CONSOLE_PATH}/live"

SIGN_INS_PER_ADDRESS = RateLimit("sign-ins", 10, timedelta(minutes=5))
FAILED_SIGN_INS_PER_NAME = RateLimit("failed sign-ins to this name", 100, timedelta(minutes=15))
"""Holds only for addresses that failed lately: strangers who guess cannot lock an operator out."""
FAILED_SIGN_IN_ADDRESS = "address of a failed sign-in"
FAILED_ADDRESS_MEMORY = timedelta(minutes=15)
SIGN_IN_FAILURE_RECORDS = RateLimit("records of failed sign-ins", 60, timedelta(minutes=1))
"""Per kind of sign-in, for all addresses together, because audit rows cannot be deleted."""
UNKNOWN_OPERATOR = "unknown"
SIGN_INS = SignInQueue()
"""One for the process, as the threads that check passwords."""


async def login_page(hub: Hub, request: Request) -> Response:
    if await find_current_session(hub, request):
        response = RedirectResponse(CONSOLE_PATH, 303)
        renew_operator_cookie(hub, request, response)
        return response
    return render_login_page(hub, request)


async def sign_in_action(hub: Hub, request: Request) -> Response:
    """Check name and password. No connection is held while the password is hashed."""
    t, fields, context = translator_for(request), await read_form(request), request_context(request)
    if not is_trusted_form(hub, request, fields, read_cookie(request, LOGIN_FORM_COOKIE)):
        return render_login_page(hub, request, t("common.error.form_expired"), 403)
    name, password = fields.get("name", "")[:64], fields.get("password", "")
    credentials = None
    try:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, SIGN_INS_PER_ADDRESS, rate_limit_address(context.client_ip))
            has_failed = await check_failed_sign_ins(tx, context.client_ip, name)
            credentials = await find_operator_credentials(tx, name)
        async with SIGN_INS.turn(rate_limit_address(context.client_ip), has_failed=has_failed):
            operator = await authenticate_operator(credentials, password)
        token = await start_operator_session(hub, context, operator)
    except Unauthenticated:
        await count_failed_sign_in(hub, context.client_ip, name)
        await record_failed_sign_in(hub, context, credentials)
        return render_login_page(hub, request, t("login.wrong_credentials"), 401)
    except RateLimited as error:
        response = render_login_page(hub, request, t("login.rate_limited"), 429)
        response.headers.update(error_headers(error))
        return response
    response = RedirectResponse(CONSOLE_PATH, 303)
    set_operator_cookie(hub, response, token)
    response.delete_cookie(LOGIN_FORM_COOKIE, path=CONSOLE_PATH)
    return response


async def check_failed_sign_ins(tx: Tx, client_ip: str, name: str) -> bool:
    """Whether this address failed lately, with any name. Raises RateLimited if this name failed too often as well."""
    [state] = await read_rate_limits(tx, (FAILED_SIGN_INS_PER_NAME, hash_login_name(name)))
    has_failed = bool(await blocked_for(tx, FAILED_SIGN_IN_ADDRESS, [rate_limit_address(client_ip)]))
    if state.retry_after and has_failed:
        raise RateLimited(FAILED_SIGN_INS_PER_NAME.name, state.retry_after)
    return has_failed


async def count_failed_sign_in(hub: Hub, client_ip: str, name: str) -> None:
    async with hub.autocommit() as tx:
        await block_rate_limit(tx, FAILED_SIGN_IN_ADDRESS, rate_limit_address(client_ip), FAILED_ADDRESS_MEMORY)
        with suppress(RateLimited):  # the limit is reached and stays so
            await consume_rate_limit(tx, FAILED_SIGN_INS_PER_NAME, hash_login_name(name))


def hash_login_name(name: str) -> str:
    """Return the key under which attempts are counted. The input is hashed because it may be a mistyped password."""
    return hashlib.sha256(name.lower().encode()).hexdigest()


async def start_operator_session(hub: Hub, context: RequestContext, operator: OperatorCredentials) -> str:
    async with hub.transaction() as tx:
        return await create_operator_session(tx, operator, context.actor(f"operator:{operator.name}"))


async def record_failed_sign_in(hub: Hub, context: RequestContext, operator: Operator | None) -> None:
    """Record a failed sign-in. An unknown name is not recorded, because it may be a mistyped password."""
    await record_refused_access(
        hub, context, "operator.sign_in_failed", operator.name if operator else UNKNOWN_OPERATOR
    )


async def record_refused_access(
    hub: Hub, context: RequestContext, action: str, subject: str | None, **details: object
) -> None:
    """Record a refused sign-in in the audit log, up to a rate limit."""
    async with hub.autocommit() as tx:
        try:
            await consume_rate_limit(tx, SIGN_IN_FAILURE_RECORDS, action)
        except RateLimited:
            return
        await record_action(tx, context.actor(ANONYMOUS), action, subject, **details)


async def sign_out_action(hub: Hub, request: Request, session: OperatorSession, _fields: object) -> Response:
    async with hub.transaction() as tx:
        await sign_out_operator(tx, session, request_context(request).actor(f"operator:{session.name}"))
    response = RedirectResponse("/console/login", 303)
    response.delete_cookie(OPERATOR_COOKIE, path=CONSOLE_PATH)
    return response


async def find_current_session(hub: Hub, request: Request) -> OperatorSession | None:
    """Return the session of the cookie. Background refreshes and streams do not count as activity."""
    token = read_cookie(request, OPERATOR_COOKIE)
    if not token:
        return None
    is_activity = REFRESH_HEADER not in request.headers and request.url.path != LIVE_PATH
    async with hub.autocommit() as tx:
        session = await find_operator_session(tx, token, is_activity=is_activity)
    if session:
        mark_authenticated(request)
    request.state.renewed_token = session and session.renewed_token
    return session


def renew_operator_cookie(hub: Hub, request: Request, response: Response) -> None:
    """Set the renewed session cookie, unless the response already sets or deletes it."""
    token: str | None = getattr(request.state, "renewed_token", None)
    cookies = response.headers.getlist("set-cookie")
    if token and not any(cookie.startswith(f"{OPERATOR_COOKIE}=") for cookie in cookies):
        set_operator_cookie(hub, response, token)


def render_login_page(hub: Hub, request: Request, error: str = "", status: int = 200) -> Response:
    token = read_cookie(request, LOGIN_FORM_COOKIE) or secrets.token_urlsafe(24)
    response = render_page(request, "login.html", status=status, error=error, csrf_token=token)
    set_secure_cookie(hub, response, LOGIN_FORM_COOKIE, token, max_age=3600, path=CONSOLE_PATH)
    return response


def set_operator_cookie(hub: Hub, response: Response, token: str) -> None:
    set_secure_cookie(
        hub, response, OPERATOR_COOKIE, token, max_age=int(sessions.SESSION_LIFETIME.total_seconds()), path=CONSOLE_PATH
    )
