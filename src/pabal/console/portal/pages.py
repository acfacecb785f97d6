"""Pages and actions of the portal: the account of a bot owner, its users and its messages."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pabal.console.access.guards import Form
from pabal.console.format import redact_user_key
from pabal.console.pages import is_confirmed, read_cursor, read_filters, redirect_with_flash
from pabal.console.portal.login import (
    PORTAL_COOKIE,
    PORTAL_GUARD,
    PORTAL_LOGIN_PATH,
    PORTAL_PATH,
    PortalVisitor,
    hold_portal_access,
    portal_actor,
    portal_login_page,
    portal_sign_in_action,
    portal_sign_out_action,
)
from pabal.console.relay.conversations import apply_conversation_action, count_messages_to_cancel, raw_query_param
from pabal.console.relay.messages import parse_message_status
from pabal.core.errors import NotFound
from pabal.hub import Hub
from pabal.limits import consume_rate_limit
from pabal.relay.accounts import (
    MAX_COUNT_FOR_ONE,
    find_account_summary,
    list_live_pairing_codes,
    measure_deletion_impact,
    rotate_relay_token,
)
from pabal.relay.conversations import decode_conversation_cursor, encode_conversation_cursor, list_conversations
from pabal.relay.messages import MESSAGE_STATUSES, MessageFilter, find_message, find_reply_summaries, list_messages
from pabal.relay.pairing import codes
from pabal.relay.pairing.codes import create_pairing_code
from pabal.relay.web_sessions import (
    find_pending_session_code,
    replace_portal_token,
)
from pabal.web.cookies import read_cookie

PAGE_SIZE = 30
PREVIEW_SIZE = 10


async def portal_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    """Show the account and its users. A session that is not paired yet sees its pairing code."""
    if visitor.principal.account_id is None:
        return await portal_pairing_page(hub, request, visitor)
    account_id = visitor.owner.account_id
    after = decode_conversation_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        summary = await find_account_summary(tx, account_id)
        pairing_codes = await list_live_pairing_codes(tx, account_id)
        conversations = await list_conversations(tx, account=account_id, after=after, limit=PAGE_SIZE + 1)
        recent = await list_messages(tx, MessageFilter(account_id), PREVIEW_SIZE, cipher=hub.relay.cipher)
    conversations, more = conversations[:PAGE_SIZE], conversations[PAGE_SIZE:]
    return PORTAL_GUARD.render_page(
        request,
        "portal/home.html",
        csrf_token=visitor.csrf_token,
        counts=summary,
        max_counted=MAX_COUNT_FOR_ONE,
        pairing_codes=pairing_codes,
        max_codes=codes.MAX_LIVE_CODES,
        conversations=conversations,
        next_cursor=encode_conversation_cursor(conversations[-1]) if more else None,
        current_cursor=after,
        recent_messages=recent.items,
        uses_relay_token=visitor.uses_relay_token,
        command_prefix=hub.settings.command_prefix,
    )


async def portal_pairing_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    assert visitor.principal.session_id is not None
    async with hub.autocommit() as tx:
        pairing_code = await find_pending_session_code(tx, visitor.principal.session_id)
    return PORTAL_GUARD.render_page(
        request,
        "portal/pairing.html",
        csrf_token=visitor.csrf_token,
        pairing_code=pairing_code,
        command_prefix=hub.settings.command_prefix,
    )


async def portal_messages_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    """List the messages of this account with their replies, newest first."""
    account_id, filters = visitor.owner.account_id, read_filters(request, "status")
    if key := raw_query_param(request, "conversation"):
        filters["conversation"] = key
    status, cursor = parse_message_status(filters), read_cursor(request)
    async with hub.autocommit() as tx:
        page = await list_messages(
            tx, MessageFilter(account_id, key or None, status), PAGE_SIZE, cursor, hub.relay.cipher
        )
        replies = await find_reply_summaries(tx, [message.id for message in page.items], account_id, hub.relay.cipher)
    return PORTAL_GUARD.render_page(
        request,
        "portal/messages.html",
        csrf_token=visitor.csrf_token,
        rows=page.items,
        replies=replies,
        filters=filters,
        statuses=MESSAGE_STATUSES,
        next_cursor=page.cursor,
        current_cursor=cursor,
    )


async def portal_message_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    message_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        details = await find_message(tx, message_id, visitor.owner.account_id, hub.relay.cipher)
    return PORTAL_GUARD.render_page(
        request,
        "portal/message.html",
        csrf_token=visitor.csrf_token,
        message=details.message,
        payload=details.payload,
        reply=details.reply,
    )


async def create_portal_code_action(hub: Hub, request: Request, visitor: PortalVisitor, _fields: Form) -> Response:
    """Create a pairing code, within the rate limit of the API."""
    account_id = visitor.owner.account_id
    async with hub.autocommit() as tx:
        await consume_rate_limit(tx, codes.PAIRING_CODE_RATE_LIMIT, str(account_id))
    async with hub.transaction() as tx:
        await create_pairing_code(tx, account_id, portal_actor(request, visitor))
        await hold_portal_access(tx, request, visitor)
    hub.relay.metrics.pairing_codes_created.add(1)
    return redirect_with_flash(PORTAL_PATH, "portal.code.created")


async def change_portal_conversation_action(
    hub: Hub, request: Request, visitor: PortalVisitor, fields: Form
) -> Response:
    """Approve, deny, disconnect, block or unblock a user of the account."""
    action, key, account_id = request.path_params["action"], fields.get("key", ""), visitor.owner.account_id
    async with hub.transaction() as tx:
        cancelled = await count_messages_to_cancel(tx, action, key, account_id)
        await hold_portal_access(tx, request, visitor)
        if cancelled is not None and not is_confirmed(fields):
            return PORTAL_GUARD.confirm_page(
                request,
                visitor,
                text_id=f"portal.confirm.{action}",
                count=cancelled,
                fields=fields,
                who=redact_user_key(key),
            )
        await apply_conversation_action(tx, hub, action, key, portal_actor(request, visitor), account_id=account_id)
    return redirect_with_flash(PORTAL_PATH, f"portal.done.{action}")


async def rotate_portal_token_action(hub: Hub, request: Request, visitor: PortalVisitor, fields: Form) -> Response:
    """Replace the relay token. This browser stays signed in, every other one is signed out."""
    account_id = visitor.owner.account_id
    if not visitor.uses_relay_token:
        raise NotFound("Session tokens cannot be rotated")
    async with hub.transaction() as tx:
        impact = await measure_deletion_impact(tx, account_id)
        token_hash = await hold_portal_access(tx, request, visitor)
        if not is_confirmed(fields):
            return PORTAL_GUARD.confirm_page(
                request, visitor, text_id="portal.confirm.rotate", count=impact.codes, fields={}
            )
        token = await rotate_relay_token(tx, account_id, portal_actor(request, visitor))
        await replace_portal_token(tx, read_cookie(request, PORTAL_COOKIE), token_hash, token)
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
            f"{PORTAL_PATH}/conversation/{{action}}",
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
