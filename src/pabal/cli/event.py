"""`pabal event publish|list|show|cancel|tail`."""

import sys
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import cyclopts
import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.api.events import WORDS, EventType, Status
from pabal.api.page import cursor_of, place_of
from pabal.cli import lists, screen, wide
from pabal.cli.errand import actor, errand
from pabal.cli.follow import follow
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, JsonLines, Limit, span
from pabal.cli.services import named
from pabal.core.actor import Actor
from pabal.core.errors import Invalid, TooLarge
from pabal.db.bells import Bell
from pabal.events import read
from pabal.events.cancel import cancel as call_off
from pabal.events.publish import LARGEST, Draft, Published
from pabal.events.publish import publish as record
from pabal.events.read import Delivery, Event, Filter, Reader
from pabal.events.tail import Sighting, Tail
from pabal.wiring import Hub

app = cyclopts.App(name="event", help="Publish events, look at them, call them off, follow them.")

SHOWN = 60
COLUMNS = ("id", "published", "type", "from", "to", "status", "last error")
OPERATOR = Reader("hub", all=True)
STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow"}

Id = Annotated[UUID, Parameter(name="ID", help="The event, as `pabal event list` shows it.")]
Type = Annotated[str | None, Parameter(help="Of this type; * stands for anything.")]


@app.command
def publish(
    event_type: Annotated[str, Parameter(name="TYPE", help="What happened: order.paid")],
    /,
    *,
    source: Annotated[str, Parameter(help="The service that says so.")] = "hub",
    target: Annotated[str | None, Parameter(help="The service it is for. Default: all that subscribed.")] = None,
    payload: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="A JSON object; @FILE reads it from a file, - from standard input."),
    ] = "{}",
    priority: Annotated[str, Parameter(help="1 (first) to 10, or critical, high, normal, low.")] = "normal",
    key: Annotated[str | None, Parameter(help="The same key with the same content is published once.")] = None,
    ordering_key: Annotated[str | None, Parameter(help="Events of one key are handed out in order.")] = None,
    deliver_in: Annotated[timedelta | None, Parameter(converter=span, help="Not before: 90s, 15m, 2h, 7d.")] = None,
    max_retries: Annotated[int, Parameter(help="Attempts after the first.", validator=Number(gte=0, lte=100))] = 3,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Publish an event. When this says so, it is recorded."""
    body, urgency = brought(payload), rank(priority)
    checked(event_type)

    async def do(hub: Hub) -> Published:
        async with hub.transaction() as tx:
            now = (await named(tx, source)).now
            draft = Draft(
                source=source,
                event_type=event_type,
                payload=body,
                target=target,
                priority=urgency,
                max_retries=max_retries,
                deliver_at=now + deliver_in if deliver_in else None,
                idempotency_key=key,
                ordering_key=ordering_key,
            )
            [event] = await record(tx, [draft])
            if isinstance(event, Exception):
                raise event
            return event

    event = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(msgspec.to_builtins(event))
    elif event.repeated:
        screen.say(f"event {event.id} was published under this key before; it is {event.status}")
    else:
        screen.say(f"event {event.id} is published")


def checked(event_type: str) -> None:
    try:
        msgspec.convert(event_type, EventType)
    except msgspec.ValidationError:
        why = "is words of small letters, digits and _ joined by dots, such as order.paid; 128 characters at most"
        raise Invalid.one("TYPE", why) from None


@app.command(name="list")
def listing(
    *,
    type: Type = None,  # noqa: A002 the option's name
    status: Annotated[Status | None, Parameter(help="How it stands.")] = None,
    source: Annotated[str | None, Parameter(help="Published by this service.")] = None,
    target: Annotated[str | None, Parameter(help="For this service.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show events, the newest first."""
    chosen, before = Filter(status, type, source, target), place_of(cursor)

    async def look(hub: Hub) -> list[Event]:
        async with hub.autocommit() as tx:
            return await read.every(tx, OPERATOR, chosen, before=before, limit=limit)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    lists.page(found, cursor_of(found, limit), COLUMNS, cells, empty="No events.", json=json)


@app.command
def show(event_id: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one event as it stands. `pabal trace` tells how it came to that."""

    async def look(hub: Hub) -> tuple[Event, list[Delivery], list[UUID]]:
        async with hub.autocommit() as tx:
            return (
                await read.find(tx, event_id, OPERATOR),
                await read.deliveries(tx, event_id, OPERATOR),
                await read.letters(tx, event_id),
            )

    event, deliveries, letters = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(event) | {"deliveries": [asdict(each) for each in deliveries], "dead_letters": letters})
        return
    told: dict[str, Any] = asdict(event) | {"target_service": event.target_service or "everybody"}
    heavy = {"payload", "error_history"}
    wide.facts(
        [
            *((name.replace("_", " "), wide.shown(value)) for name, value in told.items() if name not in heavy),
            *(("delivery", f"{each.id} {each.target_service} {each.status}") for each in deliveries),
            *(("dead letter", letter) for letter in letters),
        ]
    )
    wide.block("payload", wide.pretty(event.payload))


@app.command
def cancel(event_id: Id, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Call an event off, or the open deliveries of a broadcast. Whoever holds it learns so at the next heartbeat."""

    async def do(hub: Hub) -> list[UUID]:
        async with hub.transaction() as tx:
            return await call_off(tx, await read.find(tx, event_id, OPERATOR), Actor(actor()))

    ended = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json({"cancelled": ended})
    else:
        screen.say("\n".join(f"{each} is cancelled" for each in ended))


@app.command
def tail(
    *,
    type: Type = None,  # noqa: A002 the option's name
    service: Annotated[str | None, Parameter(help="Published by or for this service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: JsonLines = False,
) -> None:
    """Follow events as they come and as they end, until Ctrl-C."""
    seen, say = Tail(type, service), partial(tell, json=json)
    follow("events", seen, Bell.EVENTS, say, data_dir=data_dir, database_url=database_url)


def cells(event: Event) -> tuple[object, ...]:
    return (
        event.id,
        wide.local(event.created_at),
        event.event_type,
        event.source_service,
        event.target_service or "everybody",
        event.status,
        screen.one_line(event.last_error or "", SHOWN),
    )


def tell(sighting: Sighting, *, json: bool) -> None:
    event = sighting.event
    if json:
        wide.json_line({"what": sighting.what, **asdict(event)})
        return
    at = event.created_at if sighting.what == "came" else event.processed_at
    became = sighting.what if sighting.what == "came" else event.status
    why = f"  {screen.one_line(event.last_error, SHOWN)}" if event.last_error and became != "completed" else ""
    whom = f"{event.source_service} → {event.target_service or 'everybody'}"
    line = f"{wide.local(at, 'milliseconds')}  {became:<9}  {event.id}  {event.event_type}  {whom}{why}"
    screen.say(line, STYLES.get(became, ""))


def brought(payload: str) -> bytes:
    """The payload from the argument, a file or standard input: one JSON object."""
    try:
        match payload[:1]:
            case "-" if payload == "-":
                text = sys.stdin.buffer.read(LARGEST + 1)
            case "@":
                with Path(payload[1:]).open("rb") as file:
                    text = file.read(LARGEST + 1)
            case _:
                text = payload.encode(errors="surrogateescape")
    except OSError as error:
        raise Invalid.one("payload", f"{payload[1:]} cannot be read: {error.strerror}") from None
    if len(text) > LARGEST:
        raise TooLarge(LARGEST)
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.one("payload", f"is not a JSON object: {error}") from None
    return text.strip()


def rank(priority: str) -> int:
    if priority in WORDS:
        return WORDS[priority]
    if not priority.isascii() or not priority.isdecimal() or not 1 <= int(priority) <= 10:  # noqa: PLR2004 the table's own bounds
        raise Invalid.one("priority", "is 1 to 10, or critical, high, normal, low")
    return int(priority)
