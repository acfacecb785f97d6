"""What an owner sees in the portal, and does there: their own users, messages, codes and token, and nobody else's."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pabal.api.pairing import decode_conversation_cursor
from pabal.console.gate import Form
from pabal.console.pages import is_confirmed, read_filters, redirect_with_flash
from pabal.console.portal.door import (
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
from pabal.console.veil import redact_user_key
from pabal.core.base64url import encode_base64url
from pabal.core.errors import NotFound
from pabal.limits import consume_rate_limit
from pabal.relay import accounts, codes, conversations, messages, portal, roster
from pabal.relay.answers import find_reply_summaries
from pabal.relay.messages import MESSAGE_STATUSES, MessageFilter
from pabal.wiring import Hub

PAGE_SIZE = 30
PREVIEW_SIZE = 10


async def portal_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    """Everything at a glance; a session nobody has paired yet waits here with its code."""
    if visitor.principal.account_id is None:
        return await portal_pairing_page(hub, request, visitor)
    account = visitor.owner.account_id
    after = decode_conversation_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        has = await roster.find_account_summary(tx, account)
        live_codes = await roster.list_live_pairing_codes(tx, account)
        people = await conversations.list_conversations(tx, account=account, after=after, limit=PAGE_SIZE + 1)
        recent = await messages.list_messages(tx, MessageFilter(account), PREVIEW_SIZE)
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
        next_cursor=encode_base64url(people[-1].conversation_key.encode()) if more else None,
        current_cursor=after,
        recent_messages=recent.items,
        uses_relay_token=visitor.uses_relay_token,
        command_prefix=hub.settings.command_prefix,
    )


async def portal_pairing_page(hub: Hub, request: Request, visitor: PortalVisitor) -> Response:
    assert visitor.principal.session_id is not None
    async with hub.autocommit() as tx:
        awaited = await portal.find_pending_session_code(tx, visitor.principal.session_id)
    return PORTAL_GUARD.render_page(
        request,
        "portal/waiting.html",
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
        found = await messages.list_messages(tx, MessageFilter(account, key or None, status), PAGE_SIZE, cursor)
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
        whole = await messages.find_message(tx, row, visitor.owner.account_id)
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
        await codes.create_pairing_code(tx, account, portal_actor(request, visitor))
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
        ends = await roster.measure_deletion_impact(tx, account)
        before = await hold_portal_access(tx, request, visitor)
        if not is_confirmed(fields):
            return PORTAL_GUARD.confirm_page(request, visitor, text_id="sure rotate own", count=ends.codes, fields={})
        token = await accounts.rotate_relay_token(tx, account, portal_actor(request, visitor))
        await portal.replace_portal_token(tx, request.cookies.get(PORTAL_COOKIE, ""), before, token)
    return PORTAL_GUARD.render_page(request, "portal/once.html", csrf_token=visitor.csrf_token, secret=token)


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
