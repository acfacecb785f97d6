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

from pabal.api.events import PRIORITY_BY_NAME, EventStatus, EventType
from pabal.cli.context import cli_actor, follow_lane, with_hub
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, JsonLines, Limit, parse_duration_option
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
)
from pabal.cli.services import require_service
from pabal.core.actor import Actor
from pabal.core.errors import BodyTooLarge, Invalid
from pabal.db.channels import Channel
from pabal.events.events import (
    Delivery,
    Event,
    EventAccess,
    EventFilter,
    find_event,
    list_dead_letter_ids,
    list_deliveries,
    list_events,
)
from pabal.events.events import cancel_event as call_off
from pabal.events.follow import EventChange, EventFollower
from pabal.events.publish import MAX_EVENT_PAYLOAD_BYTES, EventDraft, PublishResult
from pabal.events.publish import publish_events as record
from pabal.hub import Hub
from pabal.web.pagination import decode_cursor, next_cursor

app = cyclopts.App(name="event", help="Publish events, look at them, call them off, follow them.")

MAX_ERROR_CHARS = 60
COLUMNS = ("id", "published", "type", "from", "to", "status", "last error")
OPERATOR = EventAccess("hub", all_services=True)
STATUS_STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow"}

EventArgument = Annotated[UUID, Parameter(name="ID", help="The event, as `pabal event list` shows it.")]
EventTypeOption = Annotated[str | None, Parameter(help="Of this type; * stands for anything.")]


@app.command(name="publish")
def event_publish(
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
    deliver_in: Annotated[
        timedelta | None, Parameter(converter=parse_duration_option, help="Not before: 90s, 15m, 2h, 7d.")
    ] = None,
    max_retries: Annotated[int, Parameter(help="Attempts after the first.", validator=Number(gte=0, lte=100))] = 3,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Publish an event. When this says so, it is recorded."""
    body, urgency = read_payload(payload), parse_priority(priority)
    check_event_type(event_type)

    async def do(hub: Hub) -> PublishResult:
        async with hub.transaction() as tx:
            now = (await require_service(tx, source)).now
            draft = EventDraft(
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

    event = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(msgspec.to_builtins(event))
    elif event.repeated:
        print_text(f"event {event.id} was published under this key before; it is {event.status}")
    else:
        print_text(f"event {event.id} is published")


def check_event_type(event_type: str) -> None:
    try:
        msgspec.convert(event_type, EventType)
    except msgspec.ValidationError:
        why = "is words of small letters, digits and _ joined by dots, such as order.paid; 128 characters at most"
        raise Invalid.of_field("TYPE", why) from None


@app.command(name="list")
def event_list(
    *,
    type: EventTypeOption = None,
    status: Annotated[EventStatus | None, Parameter(help="How it stands.")] = None,
    source: Annotated[str | None, Parameter(help="Published by this service.")] = None,
    target: Annotated[str | None, Parameter(help="For this service.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show events, the newest first."""
    chosen, before = EventFilter(status, type, source, target), decode_cursor(cursor)

    async def look(hub: Hub) -> list[Event]:
        async with hub.autocommit() as tx:
            return await list_events(tx, OPERATOR, chosen, before=before, limit=limit)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_page(found, next_cursor(found, limit), COLUMNS, event_cells, empty="No events.", json=json)


@app.command(name="show")
def event_show(
    event_id: EventArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Show one event as it stands. `pabal trace` tells how it came to that."""

    async def look(hub: Hub) -> tuple[Event, list[Delivery], list[UUID]]:
        async with hub.autocommit() as tx:
            return (
                await find_event(tx, event_id, OPERATOR),
                await list_deliveries(tx, event_id, OPERATOR),
                await list_dead_letter_ids(tx, event_id),
            )

    event, deliveries, letters = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(event) | {"deliveries": [asdict(each) for each in deliveries], "dead_letters": letters})
        return
    told: dict[str, Any] = asdict(event) | {"target_service": event.target_service or "everybody"}
    heavy = {"payload", "error_history"}
    print_fields(
        [
            *((name.replace("_", " "), display_value(value)) for name, value in told.items() if name not in heavy),
            *(("delivery", f"{each.id} {each.target_service} {each.status}") for each in deliveries),
            *(("dead letter", letter) for letter in letters),
        ]
    )
    print_block("payload", pretty_json(event.payload))


@app.command(name="cancel")
def event_cancel(
    event_id: EventArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Call an event off, or the open deliveries of a broadcast. Whoever holds it learns so at the next heartbeat."""

    async def do(hub: Hub) -> list[UUID]:
        async with hub.transaction() as tx:
            return await call_off(tx, await find_event(tx, event_id, OPERATOR), Actor(cli_actor()))

    ended = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json({"cancelled": ended})
    else:
        print_text("\n".join(f"{each} is cancelled" for each in ended))


@app.command(name="tail")
def event_tail(
    *,
    type: EventTypeOption = None,
    service: Annotated[str | None, Parameter(help="Published by or for this service.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: JsonLines = False,
) -> None:
    """Follow events as they come and as they end, until Ctrl-C."""
    seen, say = EventFollower(type, service), partial(print_event_change, json=json)
    follow_lane("events", seen, Channel.EVENTS, say, data_dir=data_dir, database_url=database_url)


def event_cells(event: Event) -> tuple[object, ...]:
    return (
        event.id,
        local_time(event.created_at),
        event.event_type,
        event.source_service,
        event.target_service or "everybody",
        event.status,
        one_line(event.last_error or "", MAX_ERROR_CHARS),
    )


def print_event_change(change: EventChange, *, json: bool) -> None:
    event = change.event
    if json:
        print_json_line({"what": change.kind, **asdict(event)})
        return
    at = event.created_at if change.kind == "came" else event.processed_at
    became = change.kind if change.kind == "came" else event.status
    why = f"  {one_line(event.last_error, MAX_ERROR_CHARS)}" if event.last_error and became != "completed" else ""
    whom = f"{event.source_service} → {event.target_service or 'everybody'}"
    line = f"{local_time(at, 'milliseconds')}  {became:<9}  {event.id}  {event.event_type}  {whom}{why}"
    print_text(line, STATUS_STYLES.get(became, ""))


def read_payload(payload: str) -> bytes:
    """The payload from the argument, a file or standard input: one JSON object."""
    try:
        match payload[:1]:
            case "-" if payload == "-":
                text = sys.stdin.buffer.read(MAX_EVENT_PAYLOAD_BYTES + 1)
            case "@":
                with Path(payload[1:]).open("rb") as file:
                    text = file.read(MAX_EVENT_PAYLOAD_BYTES + 1)
            case _:
                text = payload.encode(errors="surrogateescape")
    except OSError as error:
        raise Invalid.of_field("payload", f"{payload[1:]} cannot be read: {error.strerror}") from None
    if len(text) > MAX_EVENT_PAYLOAD_BYTES:
        raise BodyTooLarge(MAX_EVENT_PAYLOAD_BYTES)
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid.of_field("payload", f"is not a JSON object: {error}") from None
    return text.strip()


def parse_priority(priority: str) -> int:
    if priority in PRIORITY_BY_NAME:
        return PRIORITY_BY_NAME[priority]
    if not priority.isascii() or not priority.isdecimal() or not 1 <= int(priority) <= 10:  # noqa: PLR2004 the table's own bounds
        raise Invalid.of_field("priority", "is 1 to 10, or critical, high, normal, low")
    return int(priority)
