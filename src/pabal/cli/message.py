"""`pabal message list|show|tail`."""

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli import screen, wide
from pabal.cli.errand import errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.errors import Unavailable
from pabal.db.bells import Bell
from pabal.db.doorbell import FLOOR
from pabal.relay import messages
from pabal.relay.messages import Chosen, Page, Status, Whole
from pabal.relay.tail import Sighting, Tail
from pabal.wiring import Hub

app = cyclopts.App(name="message", help="Messages of the relay: look at them, follow them.")

MOST = 1000
SHOWN = 60
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
    limit: Annotated[int, Parameter(help="How many.", validator=Number(gte=1, lte=MOST))] = 50,
    cursor: Annotated[str | None, Parameter(help="Where the page before ended.")] = None,
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
    if json:
        screen.as_json(asdict(page))
        return
    screen.table(
        ("id", "came", "conversation", "status", "handed", "reply", "text"),
        [
            (
                each.id,
                wide.local(each.created_at),
                each.conversation_key,
                f"{each.status} ({each.reason})" if each.reason else each.status,
                each.delivery_count,
                each.reply or "",
                screen.one_line(each.text or "", SHOWN),
            )
            for each in page.items
        ],
        empty="No messages.",
    )
    if page.cursor:
        screen.say(f"older: --cursor {page.cursor}")


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
            *((name.replace("_", " "), shown(value)) for name, value in asdict(whole.message).items()),
            *(
                (f"reply {name}".replace("_", " "), shown(value))
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
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document a line.")] = False,
) -> None:
    """Follow messages as they come, are handed out, answered and end, until Ctrl-C."""

    async def follow(hub: Hub) -> None:
        seen = Tail(account, conversation)
        with hub.doorbell.hear(Bell.MESSAGES) as ear:
            async with hub.autocommit() as tx:
                await seen.begin(tx)
            screen.err.print("following messages; Ctrl-C ends it")
            while True:
                await ear.within(FLOOR)
                try:
                    async with hub.autocommit() as tx:
                        sightings = await seen.look(tx)
                except Unavailable as error:
                    screen.complain(str(error))
                    await asyncio.sleep(FLOOR.total_seconds())
                    continue
                for sighting in sightings:
                    tell(sighting, json=json)

    errand(follow, data_dir=data_dir, database_url=database_url)


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


def shown(value: Any) -> Any:
    return wide.local(value) if isinstance(value, datetime) else value
