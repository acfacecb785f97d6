"""The owner's portal: who signs in with a relay token or a session's, and is still let in."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pabal.api.errors import error_headers
from pabal.api.person import is_same_origin
from pabal.api.visit import RequestContext
from pabal.console.gate import Form
from pabal.console.pages import read_form
from pabal.console.sessions import record_refused_access
from pabal.console.texts import translator_for
from pabal.console.wicket import CookieGuard, csrf_token_for
from pabal.core.actor import Actor
from pabal.core.errors import AccountDisabled, NotFound, RateLimited, Unauthenticated
from pabal.db.tx import Tx
from pabal.limits import consume_rate_limit, rate_limit_address
from pabal.relay import portal
from pabal.relay.bearer import AccountOwner, RelayPrincipal, require_owner
from pabal.wiring import Hub

PORTAL_PATH = "/portal"
PORTAL_LOGIN_PATH = f"{PORTAL_PATH}/login"
PORTAL_COOKIE = "pabal_portal"
MAX_TOKEN_LENGTH = 200
"""Characters of a token that are looked at; ours are shorter."""


@dataclass(frozen=True, slots=True)
class PortalVisitor:
    """An owner who is signed in, as their token stands now."""

    principal: RelayPrincipal
    csrf_token: str

    @property
    def owner(self) -> AccountOwner:
        """The account's owner; to a session that has none yet, nothing of one is there."""
        if self.principal.account_id is None:
            raise NotFound("there is no account yet")
        return require_owner(self.principal)

    @property
    def uses_relay_token(self) -> bool:
        return self.principal.session_id is None


async def authenticate_portal_visitor(hub: Hub, request: Request) -> PortalVisitor:
    """Whoever is signed in. An account that is disabled lets nobody in; whoever tries again is told why."""
    cookie = request.cookies.get(PORTAL_COOKIE, "")
    try:
        async with hub.autocommit() as tx:
            return PortalVisitor(await portal.authenticate_portal_session(tx, cookie), csrf_token_for(cookie))
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


async def hold_portal_access(tx: Tx, request: Request, visitor: PortalVisitor) -> str:
    """See in a deed's own transaction that its owner is let in until it ends; what is kept of their token."""
    try:
        return await portal.lock_portal_owner(tx, request.cookies.get(PORTAL_COOKIE, ""), visitor.owner)
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
    """Take a token, which goes no further than its hash, and give a cookie for it."""
    t, given = translator_for(request), await read_form(request)
    visit: RequestContext = request.state.visit
    if not is_same_origin(request, hub):
        return render_portal_login_page(request, t("stale form"), 403)
    try:
        async with hub.autocommit() as tx:
            await consume_rate_limit(tx, portal.PORTAL_SIGN_IN_LIMIT, rate_limit_address(visit.client_ip))
        async with hub.transaction() as tx:
            cookie = await portal.create_portal_session(
                tx, given.get("token", "").strip()[:MAX_TOKEN_LENGTH], visit.actor("nobody")
            )
    except RateLimited as error:
        answer = render_portal_login_page(request, t("too many"), 429)
        answer.headers.update(error_headers(error))
        return answer
    except (Unauthenticated, AccountDisabled) as error:
        await record_refused_access(hub, visit, "portal.refused", None, why=error.code)
        if isinstance(error, AccountDisabled):
            return render_portal_login_page(request, t("account is off"), 403)
        return render_portal_login_page(request, t("token unknown"), 401)
    return PORTAL_GUARD.sign_in_redirect(hub, cookie, portal.PORTAL_SESSION_LIFETIME)


async def portal_sign_out_action(hub: Hub, request: Request, _visitor: PortalVisitor, _fields: Form) -> Response:
    async with hub.autocommit() as tx:
        await portal.delete_portal_session(tx, request.cookies.get(PORTAL_COOKIE, ""))
    return PORTAL_GUARD.delete_cookie(RedirectResponse(PORTAL_LOGIN_PATH, 303))


def render_portal_login_page(request: Request, error: str = "", status: int = 200) -> Response:
    return PORTAL_GUARD.render_page(request, "portal/login.html", status=status, error=error)


def portal_actor(request: Request, visitor: PortalVisitor) -> Actor:
    """The owner, as the audit log names them at every door."""
    visit: RequestContext = request.state.visit
    return visit.actor(portal.relay_principal_name(visitor.principal))
