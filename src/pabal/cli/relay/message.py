"""`pabal message list|show|tail`."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import run_query
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, JsonLines, Limit
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
from pabal.cli.relay.text_cipher import host_cipher
from pabal.cli.time_range import ANY_TIME, ListPage, TimeRange, read_range
from pabal.db.doorbell.channels import Channel
from pabal.db.tx import Tx
from pabal.relay.id_lookup import match_message_ids
from pabal.relay.messages import (
    InboundMessage,
    MessageDetails,
    MessageFilter,
    MessageStatus,
    find_message,
    list_messages,
)

if TYPE_CHECKING:
    from pabal.relay.delivery.follow import MessageChange

app = cyclopts.App(
    name="message",
    help="Inspect and follow chat messages.",
    help_epilogue=examples("message list --status QUEUED", "message tail --account mina"),
)

MAX_TEXT_CHARS = 60
ENCRYPTED_PLACEHOLDER = "(encrypted)"
COLUMNS = ("id", "received", "conversation", "status", "deliveries", "reply", "text")
STATUS_STYLES = {"ACKED": "green", "EXPIRED": "yellow", "CANCELLED": "yellow"}
REPLY_STYLES = {"sent": "green", "refused": "red", "unknown": "red", "late": "yellow"}
BULKY_REPLY_FIELDS = frozenset({"response", "kakao"})

AccountOption = Annotated[str | None, Parameter(help="Only messages of this account: a name or an id.")]
ConversationOption = Annotated[str | None, Parameter(help="Only this conversation: CHANNEL:USER.")]


@app.command(
    name="list", help_epilogue=examples("message list --status QUEUED", "message list --account mina --since 1h")
)
def message_list(
    *,
    account: AccountOption = None,
    conversation: ConversationOption = None,
    status: Annotated[MessageStatus | None, Parameter(help="Only messages with this status.")] = None,
    time_range: TimeRange = ANY_TIME,
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List messages, newest first."""

    async def read(tx: Tx) -> ListPage:
        criteria = MessageFilter(await optional_account_id(tx, account), conversation, status)
        return await read_range(
            lambda start: list_messages(tx, criteria, limit, start),
            await time_range.bounds(tx),
            lambda message: message.created_at,
            cursor,
        )

    page = run_query(connection, read)
    print_page(page.items, page.cursor, COLUMNS, message_cells, empty="No messages.", json=json)


@app.command(name="show", help_epilogue=examples("message show 01a1e213…ea569f", "message show 01a1e213…ea569f --json"))
def message_show(message_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show a message and its reply. For its history, see `pabal trace`."""

    async def read(tx: Tx) -> MessageDetails:
        full_id = await resolve_id(tx, message_id, "message", match_message_ids)
        details = await find_message(tx, full_id)
        return await find_message(tx, full_id, cipher=host_cipher(connection)) if details.is_encrypted else details

    details = run_query(connection, read)
    reply = asdict(details.reply) if details.reply else None
    if json:
        print_json(asdict(details.message) | {"payload": details.payload, "reply": reply})
        return
    print_fields(
        [
            *((name.replace("_", " "), display_value(value)) for name, value in asdict(details.message).items()),
            *(
                (f"reply {name}".replace("_", " "), display_value(value))
                for name, value in (reply or {}).items()
                if name not in BULKY_REPLY_FIELDS
            ),
        ]
    )
    print_block("payload", pretty_json(details.payload))
    if details.reply and details.reply.response is not None:
        print_block("response", pretty_json(details.reply.response))
    if details.reply and details.reply.kakao is not None:
        print_block("Kakao's response", pretty_json(details.reply.kakao))


@app.command(name="tail", help_epilogue=examples("message tail", "message tail --account mina --json"))
def message_tail(
    *,
    account: AccountOption = None,
    conversation: ConversationOption = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: JsonLines = False,
) -> None:
    """Print messages as they arrive, are delivered, answered and end, until Ctrl-C."""
    from pabal.cli.follow import follow_lane
    from pabal.relay.delivery.follow import MessageFollower

    account_id = run_query(connection, lambda tx: optional_account_id(tx, account)) if account else None
    print_change = partial(print_message_change, json=json)
    follow_lane(connection, "messages", MessageFollower(account_id, conversation), Channel.MESSAGES, print_change)


async def optional_account_id(tx: Tx, account_ref: str | None) -> UUID | None:
    if account_ref is None:
        return None
    from pabal.cli.relay.account import resolve_account_id

    return await resolve_account_id(tx, account_ref)


def message_cells(message: InboundMessage) -> tuple[object, ...]:
    return (
        message.id,
        local_time(message.created_at),
        message.conversation_key,
        f"{message.status} ({message.reason})" if message.reason else message.status,
        message.delivery_count,
        message.reply or "",
        message_excerpt(message),
    )


def message_excerpt(message: InboundMessage) -> str:
    """The beginning of a message's text. `pabal message show` decrypts it."""
    if message.text is None and message.is_encrypted:
        return ENCRYPTED_PLACEHOLDER
    return one_line(message.text or "", MAX_TEXT_CHARS)


def print_message_change(change: "MessageChange", *, json: bool) -> None:
    message = change.message
    if json:
        print_json_line({"what": change.kind, **asdict(message)})
        return
    is_new = change.kind == "came"
    at = message.created_at if is_new else message.ended_at or message.delivered_at or message.created_at
    reason = f" ({message.reason})" if message.reason else ""
    reply = f", reply {message.reply}" if message.reply else ""
    text = message_excerpt(message)
    kind = "received" if is_new else change.kind
    line = f"{kind:<8}  {message.id}  {message.conversation_key}  {message.status}{reason}{reply}  {text}"
    style = REPLY_STYLES.get(message.reply or "", STATUS_STYLES.get(message.status, ""))
    print_text(f"{local_time(at, 'milliseconds')}  {replace_unprintable(line)}", style)
