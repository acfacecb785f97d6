"""Messages of the relay, one message with its timeline, and failed callbacks."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Page
from pabal.console.i18n import translator_for
from pabal.console.pages import read_cursor, read_filters, render_page
from pabal.console.relay.accounts import PAGE_SIZE, RELAY_PATH, record_shown_texts, text_cipher
from pabal.console.relay.conversations import raw_query_param, resolve_account_filter
from pabal.console.trace.timeline import build_timeline
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
    """List the messages that match the filters, newest first."""
    filters = read_filters(request, "account", "status")
    if key := raw_query_param(request, "conversation"):
        filters["conversation"] = key
    status, cursor = parse_message_status(filters), read_cursor(request)
    async with hub.autocommit() as tx:
        account_id = await resolve_account_filter(tx, filters.get("account"))
        page = await list_messages(
            tx, MessageFilter(account_id, key or None, status), PAGE_SIZE, cursor, text_cipher(hub, session)
        )
        await record_shown_texts(tx, request, session, page.items)
        names = await find_account_names(tx, {message.account_id for message in page.items})
    return render_page(
        request,
        "relay/messages.html",
        session=session,
        rows=page.items,
        account_names=names,
        filters=filters,
        statuses=MESSAGE_STATUSES,
        next_cursor=page.cursor,
        current_cursor=cursor,
    )


async def message_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    message_id: UUID = request.path_params["id"]
    async with hub.autocommit() as tx:
        details = await find_message(tx, message_id, cipher=text_cipher(hub, session))
        await record_shown_texts(tx, request, session, [details.message])
        trace = await trace_message(tx, TraceMatch(message_id, "message", message_id))
        names = await find_account_names(tx, [details.message.account_id])
    return render_page(
        request,
        "relay/message.html",
        session=session,
        message=details.message,
        payload=details.payload,
        reply=details.reply,
        account_name=names.get(details.message.account_id, ""),
        entries=build_timeline(translator_for(request), trace),
    )


async def failed_callbacks_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List callbacks that Kakao refused or did not answer, newest first."""
    before = decode_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        rows = await list_failed_callbacks(tx, before=before, limit=PAGE_SIZE)
        names = await find_account_names(tx, {callback.account_id for callback in rows})
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
        raise Invalid.of_field("status", f"must be one of {', '.join(MESSAGE_STATUSES)}")
    return status


PAGES = (
    Page(f"{RELAY_PATH}/messages", messages_page),
    Page(f"{RELAY_PATH}/messages/{{id:uuid}}", message_page),
    Page(f"{RELAY_PATH}/failures", failed_callbacks_page),
)
