"""Conversations: which user is connected to which account; approve, block, disconnect, export and erase."""

from dataclasses import asdict
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.format import redact_user_key
from pabal.console.pages import (
    build_url,
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    json_download,
    read_cursor,
    read_filters,
    read_query,
    redirect_with_flash,
    render_page,
)
from pabal.console.relay.accounts import PAGE_SIZE, PREVIEW_SIZE, RELAY_PATH, record_shown_texts, text_cipher
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.relay.accounts import find_account, find_account_names
from pabal.relay.conversations import (
    approve_pairing,
    block_conversation,
    decode_conversation_cursor,
    deny_pairing,
    encode_conversation_cursor,
    list_conversations,
    lock_conversation,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.messages import MessageFilter, list_messages
from pabal.relay.privacy import count_conversation_data, erase_conversation, export_conversation
from pabal.relay.web_sessions import find_conversation_details

CONVERSATION_PATH = f"{RELAY_PATH}/conversation"
NO_ACCOUNT_ID = UUID(int=0)
CANCELLING_ACTIONS = ("unpair", "block")
"""Actions that cancel open messages."""


async def conversations_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List conversations by key, of all accounts or of one. A full key redirects to its conversation."""
    filters = read_filters(request, "account")
    key = raw_query_param(request, "key").strip()
    if key:
        return redirect_with_flash(build_url(CONVERSATION_PATH, key=key))
    after = decode_conversation_cursor(read_cursor(request))
    async with hub.autocommit() as tx:
        account_id = await resolve_account_filter(tx, filters.get("account"))
        rows = await list_conversations(tx, account=account_id, after=after, limit=PAGE_SIZE + 1)
        rows, more = rows[:PAGE_SIZE], rows[PAGE_SIZE:]
        names = await find_account_names(tx, {row.account_id for row in rows if row.account_id})
    return render_page(
        request,
        "relay/conversations.html",
        session=session,
        rows=rows,
        account_names=names,
        filters=filters,
        next_cursor=encode_conversation_cursor(rows[-1]) if more else None,
        current_cursor=after,
    )


async def conversation_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    key = raw_query_param(request, "key")
    async with hub.autocommit() as tx:
        conversation = await find_conversation_details(tx, key)
        recent = await list_messages(
            tx, MessageFilter(conversation_key=key), PREVIEW_SIZE, cipher=text_cipher(hub, session)
        )
        await record_shown_texts(tx, request, session, recent.items)
    return render_page(
        request, "relay/conversation.html", session=session, conversation=conversation, recent_messages=recent.items
    )


async def change_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Approve, deny, disconnect, block or unblock a user. Actions that cancel messages ask for confirmation."""
    action, key = request.path_params["action"], fields.get("key", "")
    return_url = build_url(CONVERSATION_PATH, key=key)
    async with hub.transaction() as tx:
        cancelled = await count_messages_to_cancel(tx, action, key)
        if cancelled is not None and not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id=f"relay.confirm.{action}",
                count=cancelled,
                fields=fields,
                return_url=return_url,
                who=redact_user_key(key),
            )
        await apply_conversation_action(tx, hub, action, key, operator_actor(request, session))
    return redirect_with_flash(return_url, f"relay.done.{action}")


async def export_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Download everything the hub stores about a conversation. A POST, because the export is recorded."""
    async with hub.transaction() as tx:
        return json_download(
            await export_conversation(tx, fields.get("key", ""), operator_actor(request, session), hub.relay.cipher),
            "conversation.json",
        )


async def erase_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Erase everything about a conversation, after confirmation of the number of rows."""
    key = fields.get("key", "")
    async with hub.transaction() as tx:
        await lock_conversation(tx, key)
        stored = await count_conversation_data(tx, key)
        if not is_count_confirmed(fields, stored.total):
            return confirm_page(
                request,
                session,
                text_id="relay.confirm.erase",
                count=stored.total,
                fields=fields,
                return_url=build_url(CONVERSATION_PATH, key=key),
                who=redact_user_key(key),
                **asdict(stored),
            )
        erased = await erase_conversation(tx, key, operator_actor(request, session))
    return redirect_with_flash(
        f"{RELAY_PATH}/conversations", "relay.done.erase", messages=erased.messages, count=erased.total
    )


async def count_messages_to_cancel(
    tx: Tx, action: str, conversation_key: str, account_id: UUID | None = None
) -> int | None:
    """Lock a conversation and count the messages an action would cancel. None for actions that cancel none."""
    await lock_conversation(tx, conversation_key, account_id)
    return (
        (await find_conversation_details(tx, conversation_key)).open_messages if action in CANCELLING_ACTIONS else None
    )


async def apply_conversation_action(
    tx: Tx, hub: Hub, action: str, conversation_key: str, actor: Actor, *, account_id: UUID | None = None
) -> None:
    """Apply the action. With `account_id` only conversations of that account exist."""
    match action:
        case "unpair":
            await unpair_conversation(tx, conversation_key, actor, account_id)
        case "block":
            await block_conversation(tx, conversation_key, actor, account_id)
        case "unblock":
            await unblock_conversation(tx, conversation_key, actor, account_id)
        case "approve":
            await approve_pairing(tx, conversation_key, actor, hub.relay.metrics, account_id)
        case "deny":
            await deny_pairing(tx, conversation_key, actor, account_id)
        case _:
            raise NotFound(f"No such action: {action[:64]}")


async def resolve_account_filter(tx: Tx, account: str | None) -> UUID | None:
    """Find the account by id or name. An unknown name resolves to an id without conversations."""
    if account is None:
        return None
    try:
        return UUID(account)
    except ValueError:
        pass
    try:
        return (await find_account(tx, account)).id
    except NotFound:
        return NO_ACCOUNT_ID


def raw_query_param(request: Request, name: str) -> str:
    """Return a query parameter unstripped, because a key may end with a space."""
    return read_query(request, name) or ""


PAGES = (
    Page(f"{RELAY_PATH}/conversations", conversations_page),
    Page(CONVERSATION_PATH, conversation_page),
    Action(f"{CONVERSATION_PATH}/export", export_conversation_action),
    Action(f"{CONVERSATION_PATH}/erase", erase_conversation_action),
    Action(f"{CONVERSATION_PATH}/{{action}}", change_conversation_action),
)
