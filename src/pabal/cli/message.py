"""`pabal message list|show|tail`."""

from dataclasses import asdict
from functools import partial
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli import lists, screen, wide
from pabal.cli.errand import errand
from pabal.cli.follow import follow
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, JsonLines, Limit
from pabal.db.bells import Bell
from pabal.relay import messages
from pabal.relay.messages import Chosen, Message, Page, Status, Whole
from pabal.relay.tail import Sighting, Tail
from pabal.wiring import Hub

app = cyclopts.App(name="message", help="Messages of the relay: look at them, follow them.")

SHOWN = 60
COLUMNS = ("id", "came", "conversation", "status", "handed", "reply", "text")
STYLES = {"ACKED": "green", "EXPIRED": "yellow", "CANCELLED": "yellow"}
REPLIES = {"sent": "green", "refused": "red", "unknown": "red", "late": "yellow"}

Account = Annotated[UUID | None, Parameter(help="Of this account.")]
Conversation = Annotated[str | None, Parameter(help="Of this conversation: CHANNEL:USER.")]


@app.command(name="list")
def listing(
    *,
    account: Account = None,
    conversation: Conversation = None,
    status: Annotated[Status | None, Parameter(help="How it stands.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show messages, the newest first."""
    chosen = Chosen(account, conversation, status)

    async def look(hub: Hub) -> Page:
        async with hub.autocommit() as tx:
            return await messages.every(tx, chosen, limit, cursor)

    page = errand(look, data_dir=data_dir, database_url=database_url)
    lists.page(page.items, page.cursor, COLUMNS, cells, empty="No messages.", json=json)


@app.command
def show(
    message_id: Annotated[UUID, Parameter(name="ID", help="The message, as `pabal message list` shows it.")],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show one message and its reply as they stand. `pabal trace` tells how it came to that."""

    async def look(hub: Hub) -> Whole:
        async with hub.autocommit() as tx:
            return await messages.show(tx, message_id)

    whole = errand(look, data_dir=data_dir, database_url=database_url)
    reply = asdict(whole.reply) if whole.reply else None
    if json:
        screen.as_json(asdict(whole.message) | {"payload": whole.payload, "reply": reply})
        return
    heavy = {"response", "kakao"}
    wide.facts(
        [
            *((name.replace("_", " "), wide.shown(value)) for name, value in asdict(whole.message).items()),
            *(
                (f"reply {name}".replace("_", " "), wide.shown(value))
                for name, value in (reply or {}).items()
                if name not in heavy
            ),
        ]
    )
    wide.block("payload", wide.pretty(whole.payload))
    if whole.reply and whole.reply.response is not None:
        wide.block("response", wide.pretty(whole.reply.response))
    if whole.reply and whole.reply.kakao is not None:
        wide.block("Kakao said", wide.pretty(whole.reply.kakao))


@app.command
def tail(
    *,
    account: Account = None,
    conversation: Conversation = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: JsonLines = False,
) -> None:
    """Follow messages as they come, are handed out, answered and end, until Ctrl-C."""
    seen, say = Tail(account, conversation), partial(tell, json=json)
    follow("messages", seen, Bell.MESSAGES, say, data_dir=data_dir, database_url=database_url)


def cells(message: Message) -> tuple[object, ...]:
    return (
        message.id,
        wide.local(message.created_at),
        message.conversation_key,
        f"{message.status} ({message.reason})" if message.reason else message.status,
        message.delivery_count,
        message.reply or "",
        screen.one_line(message.text or "", SHOWN),
    )


def tell(sighting: Sighting, *, json: bool) -> None:
    message = sighting.message
    if json:
        wide.json_line({"what": sighting.what, **asdict(message)})
        return
    at = (
        message.created_at
        if sighting.what == "came"
        else message.ended_at or message.delivered_at or message.created_at
    )
    reason = f" ({message.reason})" if message.reason else ""
    reply = f", reply {message.reply}" if message.reply else ""
    text = screen.one_line(message.text or "", SHOWN)
    line = f"{sighting.what:<7}  {message.id}  {message.conversation_key}  {message.status}{reason}{reply}  {text}"
    style = REPLIES.get(message.reply or "", STYLES.get(message.status, ""))
    screen.say(f"{wide.local(at, 'milliseconds')}  {screen.printable(line)}", style)
