"""The owner's portal: who signs in with a relay token or a session's, and is still let in."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.console.cookie_guard import CookieGuard, csrf_token_for
from pabal.console.format import redact_user_key
from pabal.console.guards import Form
from pabal.console.i18n import translator_for
from pabal.console.login import record_refused_access
from pabal.console.pages import is_confirmed, read_filters, read_form, redirect_with_flash
from pabal.console.relay.conversations import apply_conversation_action, count_messages_to_cancel, raw_query_param
from pabal.console.relay.messages import parse_message_status
from pabal.core.actor import Actor
from pabal.core.errors import AccountDisabled, NotFound, RateLimited, Unauthenticated
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.limits import consume_rate_limit, rate_limit_address
from pabal.relay import accounts as roster
from pabal.relay import web_sessions
from pabal.relay.accounts import (
    find_account_summary,
    list_live_pairing_codes,
    measure_deletion_impact,
    rotate_relay_token,
)
from pabal.relay.auth import AccountOwner, RelayPrincipal, require_owner
from pabal.relay.conversations import decode_conversation_cursor, encode_conversation_cursor, list_conversations
from pabal.relay.messages import MESSAGE_STATUSES, MessageFilter, find_message, find_reply_summaries, list_messages
from pabal.relay.pairing import codes
from pabal.relay.pairing.codes import create_pairing_code
from pabal.relay.web_sessions import (
    authenticate_portal_session,
    create_portal_session,
    delete_portal_session,
    find_pending_session_code,
    lock_portal_owner,
    relay_principal_name,
    replace_portal_token,
)
from pabal.web.auth import is_same_origin
from pabal.web.errors import error_headers
from pabal.web.request import RequestContext

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
            return PortalVisitor(await authenticate_portal_session(tx, cookie), csrf_token_for(cookie))
    except AccountDisabled as error:
        raise Unauthenticated(str(error)) from None


async def hold_portal_access(tx: Tx, request: Request, visitor: PortalVisitor) -> str:
    """See in a deed's own transaction that its owner is let in until it ends; what is kept of their token."""
    try:
        return await lock_portal_owner(tx, request.cookies.get(PORTAL_COOKIE, ""), visitor.owner)
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
            await consume_rate_limit(tx, web_sessions.PORTAL_SIGN_IN_LIMIT, rate_limit_address(visit.client_ip))
        async with hub.transaction() as tx:
            cookie = await create_portal_session(
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
    return PORTAL_GUARD.sign_in_redirect(hub, cookie, web_sessions.PORTAL_SESSION_LIFETIME)


async def portal_sign_out_action(hub: Hub, request: Request, _visitor: PortalVisitor, _fields: Form) -> Response:
    async with hub.autocommit() as tx:
        await delete_portal_session(tx, request.cookies.get(PORTAL_COOKIE, ""))
    return PORTAL_GUARD.delete_cookie(RedirectResponse(PORTAL_LOGIN_PATH, 303))


def render_portal_login_page(request: Request, error: str = "", status: int = 200) -> Response:
    return PORTAL_GUARD.render_page(request, "portal/login.html", status=status, error=error)


def portal_actor(request: Request, visitor: PortalVisitor) -> Actor:
    """The owner, as the audit log names them at every door."""
    visit: RequestContext = request.state.visit
    return visit.actor(relay_principal_name(visitor.principal))


PAGE_SIZE = 30
PREVIEW_SIZE = 10


async def portal_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    """Everything at a glance; a session nobody has paired yet waits here with its code."""
    if visitor.principal.account_id is None:
        return await portal_pairing_page(hub, request, visitor)
    account = visitor.owner.account_id
    after = decode_conversation_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        has = await find_account_summary(tx, account)
        live_codes = await list_live_pairing_codes(tx, account)
        people = await list_conversations(tx, account=account, after=after, limit=PAGE_SIZE + 1)
        recent = await list_messages(tx, MessageFilter(account), PREVIEW_SIZE)
    people, more = people[:PAGE_SIZE], people[PAGE_SIZE:]
    return PORTAL_GUARD.render_page(
        request,
        "portal/home.html",
        csrf_token=visitor.csrf_token,
        counts=has,
        max_counted=roster.MAX_COUNT_FOR_ONE,
        pairing_codes=live_codes,
        max_codes=codes.MAX_LIVE_CODES,
        conversations=people,
        next_cursor=encode_conversation_cursor(people[-1]) if more else None,
        current_cursor=after,
        recent_messages=recent.items,
        uses_relay_token=visitor.uses_relay_token,
        command_prefix=hub.settings.command_prefix,
    )


async def portal_pairing_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    assert visitor.principal.session_id is not None
    async with hub.autocommit() as tx:
        awaited = await find_pending_session_code(tx, visitor.principal.session_id)
    return PORTAL_GUARD.render_page(
        request,
        "portal/pairing.html",
        csrf_token=visitor.csrf_token,
        pairing_code=awaited,
        command_prefix=hub.settings.command_prefix,
    )


async def portal_messages_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    """What came to this account, the newest first, with what was answered."""
    account, said = visitor.owner.account_id, read_filters(request, "status")
    if key := raw_query_param(request, "conversation"):
        said["conversation"] = key
    status, cursor = parse_message_status(said), request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        found = await list_messages(tx, MessageFilter(account, key or None, status), PAGE_SIZE, cursor)
        answered = await find_reply_summaries(tx, [each.id for each in found.items], account)
    return PORTAL_GUARD.render_page(
        request,
        "portal/messages.html",
        csrf_token=visitor.csrf_token,
        rows=found.items,
        replies=answered,
        filters=said,
        statuses=MESSAGE_STATUSES,
        next_cursor=found.cursor,
        current_cursor=cursor,
    )


async def portal_message_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        whole = await find_message(tx, row, visitor.owner.account_id)
    return PORTAL_GUARD.render_page(
        request,
        "portal/message.html",
        csrf_token=visitor.csrf_token,
        message=whole.message,
        payload=whole.payload,
        reply=whole.reply,
    )


async def create_portal_code_action(hub: Hub, request: Request, visitor: PortalVisitor, _fields: Form) -> Response:
    """Make a pairing code, as often as the door for it allows."""
    account = visitor.owner.account_id
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, codes.PAIRING_CODE_RATE_LIMIT, str(account))
    async with hub.transaction() as tx:
        await create_pairing_code(tx, account, portal_actor(request, visitor))
        await hold_portal_access(tx, request, visitor)
    hub.relay.metrics.pairing_codes_created.add(1)
    return redirect_with_flash(PORTAL_PATH, "done code")


async def change_portal_conversation_action(
    hub: Hub, request: Request, visitor: PortalVisitor, fields: Form
) -> Response:
    """Connect, disconnect, keep out or let in one of their own users."""
    deed, key, account = request.path_params["deed"], fields.get("key", ""), visitor.owner.account_id
    async with hub.transaction() as tx:
        ends = await count_messages_to_cancel(tx, deed, key, account)
        await hold_portal_access(tx, request, visitor)
        if ends is not None and not is_confirmed(fields):
            return PORTAL_GUARD.confirm_page(
                request, visitor, text_id=f"sure {deed}", count=ends, fields=fields, who=redact_user_key(key)
            )
        await apply_conversation_action(tx, hub, deed, key, portal_actor(request, visitor), account_id=account)
    return redirect_with_flash(PORTAL_PATH, f"done {deed}")


async def rotate_portal_token_action(hub: Hub, request: Request, visitor: PortalVisitor, fields: Form) -> Response:
    """Give another relay token to whoever showed the one before; this browser stays in, every other is out."""
    account = visitor.owner.account_id
    if not visitor.uses_relay_token:
        raise NotFound("a session's token cannot be rotated")
    async with hub.transaction() as tx:
        ends = await measure_deletion_impact(tx, account)
        before = await hold_portal_access(tx, request, visitor)
        if not is_confirmed(fields):
            return PORTAL_GUARD.confirm_page(request, visitor, text_id="sure rotate own", count=ends.codes, fields={})
        token = await rotate_relay_token(tx, account, portal_actor(request, visitor))
        await replace_portal_token(tx, request.cookies.get(PORTAL_COOKIE, ""), before, token)
    return PORTAL_GUARD.render_page(request, "portal/secret.html", csrf_token=visitor.csrf_token, secret=token)


def portal_routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route(PORTAL_PATH, PORTAL_GUARD.page_handler(hub, portal_page), methods=["GET"]),
        Route(PORTAL_LOGIN_PATH, PORTAL_GUARD.public_handler(hub, portal_login_page), methods=["GET"]),
        Route(PORTAL_LOGIN_PATH, PORTAL_GUARD.public_handler(hub, portal_sign_in_action), methods=["POST"]),
        Route(f"{PORTAL_PATH}/live", PORTAL_GUARD.page_handler(hub, PORTAL_GUARD.live_page), methods=["GET"]),
        Route(f"{PORTAL_PATH}/messages", PORTAL_GUARD.page_handler(hub, portal_messages_page), methods=["GET"]),
        Route(
            f"{PORTAL_PATH}/messages/{{id:uuid}}", PORTAL_GUARD.page_handler(hub, portal_message_page), methods=["GET"]
        ),
        Route(f"{PORTAL_PATH}/code", PORTAL_GUARD.action_handler(hub, create_portal_code_action), methods=["POST"]),
        Route(f"{PORTAL_PATH}/rotate", PORTAL_GUARD.action_handler(hub, rotate_portal_token_action), methods=["POST"]),
        Route(
            f"{PORTAL_PATH}/conversation/{{deed}}",
            PORTAL_GUARD.action_handler(hub, change_portal_conversation_action),
            methods=["POST"],
        ),
        Route(f"{PORTAL_PATH}/leave", PORTAL_GUARD.action_handler(hub, portal_sign_out_action), methods=["POST"]),
        Route(
            f"{PORTAL_PATH}/language",
            PORTAL_GUARD.public_handler(hub, PORTAL_GUARD.switch_language_action),
            methods=["POST"],
        ),
        Route(f"{PORTAL_PATH}/{{rest:path}}", PORTAL_GUARD.not_found_page),
    ]
