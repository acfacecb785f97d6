"""Sign in to the portal with a relay token or a session token."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.console.access.cookie_guard import CookieGuard
from pabal.console.access.csrf import csrf_token_for
from pabal.console.access.guards import Form
from pabal.console.access.login import record_refused_access
from pabal.console.i18n import translator_for
from pabal.console.pages import read_form, request_context
from pabal.core.actor import ANONYMOUS, Actor
from pabal.core.errors import AccountDisabled, NotFound, RateLimited, Unauthenticated
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.limits import consume_rate_limit, rate_limit_address
from pabal.relay import web_sessions
from pabal.relay.auth import AccountOwner, RelayPrincipal, require_owner
from pabal.relay.web_sessions import (
    authenticate_portal_session,
    create_portal_session,
    delete_portal_session,
    lock_portal_owner,
    relay_principal_name,
)
from pabal.web.cookies import read_cookie
from pabal.web.errors import error_headers
from pabal.web.origin import is_same_origin

PORTAL_PATH = "/portal"
PORTAL_LOGIN_PATH = f"{PORTAL_PATH}/login"
PORTAL_COOKIE = "pabal_portal"
MAX_TOKEN_LENGTH = 200
"""Characters of the input that are read; real tokens are shorter."""


@dataclass(frozen=True, slots=True)
class PortalVisitor:
    """A signed-in owner, with the current rights of their token."""

    principal: RelayPrincipal
    csrf_token: str

    @property
    def owner(self) -> AccountOwner:
        """The owner of the account. A session that is not paired yet has none."""
        if self.principal.account_id is None:
            raise NotFound("This session has no account yet")
        return require_owner(self.principal)

    @property
    def uses_relay_token(self) -> bool:
        return self.principal.session_id is None


async def authenticate_portal_visitor(hub: Hub, request: Request) -> PortalVisitor:
    """Authenticate the cookie. The owner of a disabled account has to sign in again and learns the reason there."""
    cookie = read_cookie(request, PORTAL_COOKIE)
    try:
        async with hub.autocommit() as tx:
            return PortalVisitor(await authenticate_portal_session(tx, cookie), csrf_token_for(cookie))
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


async def hold_portal_access(tx: Tx, request: Request, visitor: PortalVisitor) -> str:
    """Lock the owner's access for the transaction of an action. Returns the hash of their token."""
    try:
        return await lock_portal_owner(tx, read_cookie(request, PORTAL_COOKIE), visitor.owner)
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


def portal_login_redirect(_request: Request) -> Response:
    return RedirectResponse(PORTAL_LOGIN_PATH, 303)


PORTAL_GUARD = CookieGuard(
    PORTAL_PATH,
    PORTAL_COOKIE,
    authenticate_portal_visitor,
    portal_login_redirect,
    refresh_interval=timedelta(seconds=5),
)


async def portal_login_page(hub: Hub, request: Request) -> Response:
    try:
        await authenticate_portal_visitor(hub, request)
    except Unauthenticated:
        return render_portal_login_page(request)
    return RedirectResponse(PORTAL_PATH, 303)


async def portal_sign_in_action(hub: Hub, request: Request) -> Response:
    """Exchange a token for a cookie. The token itself is not stored."""
    t, fields, context = translator_for(request), await read_form(request), request_context(request)
    if not is_same_origin(request, hub):
        return render_portal_login_page(request, t("people.error.form_expired"), 403)
    try:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, web_sessions.PORTAL_SIGN_IN_LIMIT, rate_limit_address(context.client_ip))
        async with hub.transaction() as tx:
            cookie = await create_portal_session(
                tx, fields.get("token", "").strip()[:MAX_TOKEN_LENGTH], context.actor(ANONYMOUS)
            )
    except RateLimited as error:
        response = render_portal_login_page(request, t("portal.login.rate_limited"), 429)
        response.headers.update(error_headers(error))
        return response
    except (Unauthenticated, AccountDisabled) as error:
        await record_refused_access(hub, context, "portal.refused", None, why=error.code)
        if isinstance(error, AccountDisabled):
            return render_portal_login_page(request, t("portal.login.disabled"), 403)
        return render_portal_login_page(request, t("portal.login.unknown_token"), 401)
    return PORTAL_GUARD.sign_in_redirect(hub, cookie, web_sessions.PORTAL_SESSION_LIFETIME)


async def portal_sign_out_action(hub: Hub, request: Request, _visitor: PortalVisitor, _fields: Form) -> Response:
    async with hub.autocommit() as tx:
        await delete_portal_session(tx, read_cookie(request, PORTAL_COOKIE))
    return PORTAL_GUARD.delete_cookie(RedirectResponse(PORTAL_LOGIN_PATH, 303))


def render_portal_login_page(request: Request, error: str = "", status: int = 200) -> Response:
    return PORTAL_GUARD.render_page(request, "portal/login.html", status=status, error=error)


def portal_actor(request: Request, visitor: PortalVisitor) -> Actor:
    """Return the owner as an actor of the audit log."""
    return request_context(request).actor(relay_principal_name(visitor.principal))
