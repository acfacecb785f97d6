"""`pabal message list|show|tail`."""

from dataclasses import asdict
from functools import partial
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import follow_lane, with_hub
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, JsonLines, Limit
from pabal.cli.output import (
    display_value,
    local_time,
    one_line,
    pretty_json,
    print_block,
    print_fields,
    print_json,
    print_json_line,
    print_page,
    print_text,
    replace_unprintable,
)
from pabal.db.channels import Channel
from pabal.hub import Hub
from pabal.relay.delivery.follow import MessageChange, MessageFollower
from pabal.relay.messages import (
    InboundMessage,
    InboundMessagePage,
    MessageDetails,
    MessageFilter,
    MessageStatus,
    find_message,
    list_messages,
)

app = cyclopts.App(name="message", help="Messages of the relay: look at them, follow them.")

MAX_TEXT_CHARS = 60
COLUMNS = ("id", "came", "conversation", "status", "handed", "reply", "text")
STATUS_STYLES = {"ACKED": "green", "EXPIRED": "yellow", "CANCELLED": "yellow"}
REPLY_STYLES = {"sent": "green", "refused": "red", "unknown": "red", "late": "yellow"}

AccountOption = Annotated[UUID | None, Parameter(help="Of this account.")]
ConversationOption = Annotated[str | None, Parameter(help="Of this conversation: CHANNEL:USER.")]


@app.command(name="list")
def message_list(
    *,
    account: AccountOption = None,
    conversation: ConversationOption = None,
    status: Annotated[MessageStatus | None, Parameter(help="How it stands.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show messages, the newest first."""
    chosen = MessageFilter(account, conversation, status)

    async def look(hub: Hub) -> InboundMessagePage:
        async with hub.autocommit() as tx:
            return await list_messages(tx, chosen, limit, cursor)

    page = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_page(page.items, page.cursor, COLUMNS, message_cells, empty="No messages.", json=json)


@app.command(name="show")
def message_show(
    message_id: Annotated[UUID, Parameter(name="ID", help="The message, as `pabal message list` shows it.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show one message and its reply as they stand. `pabal trace` tells how it came to that."""

    async def look(hub: Hub) -> MessageDetails:
        async with hub.autocommit() as tx:
            return await find_message(tx, message_id)

    whole = with_hub(look, data_dir=data_dir, database_url=database_url)
    reply = asdict(whole.reply) if whole.reply else None
    if json:
        print_json(asdict(whole.message) | {"payload": whole.payload, "reply": reply})
        return
    heavy = {"response", "kakao"}
    print_fields(
        [
            *((name.replace("_", " "), display_value(value)) for name, value in asdict(whole.message).items()),
            *(
                (f"reply {name}".replace("_", " "), display_value(value))
                for name, value in (reply or {}).items()
                if name not in heavy
            ),
        ]
    )
    print_block("payload", pretty_json(whole.payload))
    if whole.reply and whole.reply.response is not None:
        print_block("response", pretty_json(whole.reply.response))
    if whole.reply and whole.reply.kakao is not None:
        print_block("Kakao said", pretty_json(whole.reply.kakao))


@app.command(name="tail")
def message_tail(
    *,
    account: AccountOption = None,
    conversation: ConversationOption = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: JsonLines = False,
) -> None:
    """Follow messages as they come, are handed out, answered and end, until Ctrl-C."""
    seen, say = MessageFollower(account, conversation), partial(print_message_change, json=json)
    follow_lane("messages", seen, Channel.MESSAGES, say, data_dir=data_dir, database_url=database_url)


def message_cells(message: InboundMessage) -> tuple[object, ...]:
    return (
        message.id,
        local_time(message.created_at),
        message.conversation_key,
        f"{message.status} ({message.reason})" if message.reason else message.status,
        message.delivery_count,
        message.reply or "",
        one_line(message.text or "", MAX_TEXT_CHARS),
    )


def print_message_change(change: MessageChange, *, json: bool) -> None:
    message = change.message
    if json:
        print_json_line({"what": change.kind, **asdict(message)})
        return
    at = message.created_at if change.kind == "came" else message.ended_at or message.delivered_at or message.created_at
    reason = f" ({message.reason})" if message.reason else ""
    reply = f", reply {message.reply}" if message.reply else ""
    text = one_line(message.text or "", MAX_TEXT_CHARS)
    line = f"{change.kind:<7}  {message.id}  {message.conversation_key}  {message.status}{reason}{reply}  {text}"
    style = REPLY_STYLES.get(message.reply or "", STATUS_STYLES.get(message.status, ""))
    print_text(f"{local_time(at, 'milliseconds')}  {replace_unprintable(line)}", style)
