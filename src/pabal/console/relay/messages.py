"""Messages, for an operator: what people wrote, what became of it, and the answers that did not get through."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Page
from pabal.console.i18n import translator_for
from pabal.console.pages import read_filters, render_page
from pabal.console.relay.accounts import PAGE_SIZE, RELAY_PATH
from pabal.console.relay.conversations import raw_query_param, resolve_account_filter
from pabal.console.trace import build_timeline
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.relay.accounts import find_account_names
from pabal.relay.messages import (
    MESSAGE_STATUSES,
    MessageFilter,
    MessageStatus,
    find_message,
    list_failed_callbacks,
    list_messages,
)
from pabal.trace.entry import TraceMatch
from pabal.trace.relay import trace_message
from pabal.web.pagination import decode_cursor, next_cursor


async def messages_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Messages, the newest first; what they are narrowed to is in the address."""
    said = read_filters(request, "account", "status")
    if key := raw_query_param(request, "conversation"):
        said["conversation"] = key
    status, cursor = parse_message_status(said), request.query_params.get("cursor") or None
    async with hub.autocommit() as tx:
        wanted = MessageFilter(await resolve_account_filter(tx, said.get("account")), key or None, status)
        found = await list_messages(tx, wanted, PAGE_SIZE, cursor)
        names = await find_account_names(tx, {each.account_id for each in found.items})
    return render_page(
        request,
        "relay/messages.html",
        session=session,
        rows=found.items,
        account_names=names,
        filters=said,
        statuses=MESSAGE_STATUSES,
        next_cursor=found.cursor,
        current_cursor=cursor,
    )


async def message_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    row: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        whole = await find_message(tx, row)
        told = await trace_message(tx, TraceMatch(row, "message", row))
        names = await find_account_names(tx, [whole.message.account_id])
    return render_page(
        request,
        "relay/message.html",
        session=session,
        message=whole.message,
        payload=whole.payload,
        reply=whole.reply,
        account_name=names.get(whole.message.account_id, ""),
        entries=build_timeline(translator_for(request), told),
    )


async def failed_callbacks_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Callbacks that Kakao refused or said nothing to, the newest first."""
    before = decode_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        rows = await list_failed_callbacks(tx, before=before, limit=PAGE_SIZE)
        names = await find_account_names(tx, {each.account_id for each in rows})
    return render_page(
        request,
        "relay/failed_callbacks.html",
        session=session,
        rows=rows,
        account_names=names,
        next_cursor=next_cursor(rows, PAGE_SIZE, "settled_at"),
        current_cursor=before,
    )


def parse_message_status(filters: dict[str, str]) -> MessageStatus | None:
    status = filters.get("status")
    if status is not None and status not in MESSAGE_STATUSES:
        raise Invalid.of_field("status", f"is none of {', '.join(MESSAGE_STATUSES)}")
    return status


PAGES = (
    Page(f"{RELAY_PATH}/messages", messages_page),
    Page(f"{RELAY_PATH}/messages/{{id:uuid}}", message_page),
    Page(f"{RELAY_PATH}/failures", failed_callbacks_page),
)
