"""Conversations, for an operator: who is connected to whose bot, and everything that ends or resumes it."""

from dataclasses import asdict
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.format import redact_user_key
from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.pages import (
    build_url,
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    json_download,
    read_filters,
    redirect_with_flash,
    render_page,
)
from pabal.console.relay.accounts import PAGE_SIZE, PREVIEW_SIZE, RELAY_PATH
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
"""Deeds that cancel what waits for an answer."""


async def conversations_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """Conversations by their keys: everybody's, or those of one account. A whole key leads to its page."""
    said = read_filters(request, "account")
    key = raw_query_param(request, "key").strip()
    if key:
        return redirect_with_flash(build_url(CONVERSATION_PATH, key=key))
    after = decode_conversation_cursor(request.query_params.get("cursor") or None)
    async with hub.autocommit() as tx:
        whose = await resolve_account_filter(tx, said.get("account"))
        rows = await list_conversations(tx, account=whose, after=after, limit=PAGE_SIZE + 1)
        rows, more = rows[:PAGE_SIZE], rows[PAGE_SIZE:]
        names = await find_account_names(tx, {each.account_id for each in rows if each.account_id})
    return render_page(
        request,
        "relay/conversations.html",
        session=session,
        rows=rows,
        account_names=names,
        filters=said,
        next_cursor=encode_conversation_cursor(rows[-1]) if more else None,
        current_cursor=after,
    )


async def conversation_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    key = raw_query_param(request, "key")
    async with hub.autocommit() as tx:
        now = await find_conversation_details(tx, key)
        recent = await list_messages(tx, MessageFilter(conversation_key=key), PREVIEW_SIZE)
    return render_page(
        request, "relay/conversation.html", session=session, conversation=now, recent_messages=recent.items
    )


async def change_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Connect, disconnect, keep out or let in; where messages are cancelled by it, that is agreed to before."""
    deed, key = request.path_params["deed"], fields.get("key", "")
    back = build_url(CONVERSATION_PATH, key=key)
    async with hub.transaction() as tx:
        ends = await count_messages_to_cancel(tx, deed, key)
        if ends is not None and not is_confirmed(fields):
            who = redact_user_key(key)
            return confirm_page(
                request, session, text_id=f"sure {deed}", count=ends, fields=fields, return_url=back, who=who
            )
        await apply_conversation_action(tx, hub, deed, key, operator_actor(request, session))
    return redirect_with_flash(back, f"done {deed}")


async def export_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Everything the hub has of a conversation, as a file. A deed, because that somebody took it is written down."""
    async with hub.transaction() as tx:
        return json_download(
            await export_conversation(tx, fields.get("key", ""), operator_actor(request, session)), "conversation.json"
        )


async def erase_conversation_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Erase everything of a conversation, with as many rows as were agreed to."""
    key = fields.get("key", "")
    async with hub.transaction() as tx:
        await lock_conversation(tx, key)
        there = await count_conversation_data(tx, key)
        if not is_count_confirmed(fields, there.total):
            return confirm_page(
                request,
                session,
                text_id="sure erase rows",
                count=there.total,
                fields=fields,
                return_url=build_url(CONVERSATION_PATH, key=key),
                who=redact_user_key(key),
                **asdict(there),
            )
        gone = await erase_conversation(tx, key, operator_actor(request, session))
    return redirect_with_flash(f"{RELAY_PATH}/conversations", "done erase", messages=gone.messages, rows=gone.total)


async def count_messages_to_cancel(
    tx: Tx, action: str, conversation_key: str, account_id: UUID | None = None
) -> int | None:
    """How many messages a deed would cancel in a conversation, held from here on; None for one that cancels none."""
    await lock_conversation(tx, conversation_key, account_id)
    return (
        (await find_conversation_details(tx, conversation_key)).open_messages if action in CANCELLING_ACTIONS else None
    )


async def apply_conversation_action(
    tx: Tx, hub: Hub, action: str, conversation_key: str, actor: Actor, *, account_id: UUID | None = None
) -> None:
    """Do it: for an operator, or for the owner of this account, to whom everybody else's are not there."""
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
            raise NotFound("there is no such deed")


async def resolve_account_filter(tx: Tx, account: str | None) -> UUID | None:
    """The account somebody wrote, by its id or its name; one that is not there has nothing."""
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
    """What stands in the address, as it is: a key may end with a blank."""
    return request.query_params.get(name, "").replace("\0", "")


PAGES = (
    Page(f"{RELAY_PATH}/conversations", conversations_page),
    Page(CONVERSATION_PATH, conversation_page),
    Action(f"{CONVERSATION_PATH}/export", export_conversation_action),
    Action(f"{CONVERSATION_PATH}/erase", erase_conversation_action),
    Action(f"{CONVERSATION_PATH}/{{deed}}", change_conversation_action),
)
