"""`pabal event publish|list|show|cancel|tail`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import cyclopts
import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import (
    DEFAULT_CONNECTION,
    Connection,
    Cursor,
    Json,
    JsonLines,
    JsonPayload,
    Limit,
    parse_duration_option,
)
from pabal.cli.output import (
    display_value,
    local_time,
    one_line,
    pretty_json,
    print_block,
    print_fields,
    print_json,
    print_json_items,
    print_json_line,
    print_page,
    print_text,
)
from pabal.cli.time_range import ANY_TIME, TimeRange, scan_range
from pabal.core.cursor import decode_cursor, encode_cursor
from pabal.core.short_id import IdPattern
from pabal.db.doorbell.channels import Channel
from pabal.db.tx import Tx
from pabal.events.delivery_state import (
    DeliveryState,
    describe_deliveries,
    read_delivery_state,
    read_delivery_states,
)
from pabal.events.events import (
    OPERATOR_ACCESS,
    Delivery,
    Event,
    EventFilter,
    cancel_event,
    find_event,
    list_dead_letter_ids,
    list_deliveries,
    scan_events,
)
from pabal.events.id_lookup import match_event_ids
from pabal.events.types import EventStatus

if TYPE_CHECKING:
    from pabal.events.follow import EventChange

app = cyclopts.App(
    name="event",
    help="Publish, inspect, cancel and follow events.",
    help_epilogue=examples("event list --status failed", "event tail --type 'order.*'"),
)

MAX_ERROR_CHARS = 60
COLUMNS = ("id", "published", "type", "from", "to", "status", "last error")
STATUS_STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow"}
BULKY_FIELDS = frozenset({"payload", "error_history"})


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """What `event show` prints. `state_text` says what the event waits for, as its trace does."""

    event: Event
    deliveries: list[Delivery]
    dead_letters: list[UUID]
    delivery_state: DeliveryState | None
    state_text: str


TypeOption = Annotated[str | None, Parameter(help="Only this type; * matches anything.")]


@app.command(
    name="publish",
    help_epilogue=examples(
        """event publish order.paid --source shop --payload '{"order": 7}'""",
        "event publish report.ready --target billing --deliver-in 15m --payload @report.json",
    ),
)
def event_publish(
    event_type: Annotated[str, Parameter(name="TYPE", help="The event type, for example order.paid.")],
    /,
    *,
    source: Annotated[str, Parameter(help="The service that publishes it.")] = "hub",
    target: Annotated[str | None, Parameter(help="The service it is for. Default: every subscriber.")] = None,
    payload: JsonPayload = "{}",
    priority: Annotated[str, Parameter(help="1 (highest) to 10, or critical, high, normal, low.")] = "normal",
    key: Annotated[str | None, Parameter(help="Idempotency key: publishing it again returns the first event.")] = None,
    ordering_key: Annotated[str | None, Parameter(help="Deliver events with the same key in order.")] = None,
    deliver_in: Annotated[
        timedelta | None,
        Parameter(metavar="DURATION", converter=parse_duration_option, help="Delay the delivery: 90s, 15m, 2h, 7d."),
    ] = None,
    max_retries: Annotated[int, Parameter(help="Attempts after the first.", validator=Number(gte=0, lte=100))] = 3,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Publish an event. Prints its id once it is durable."""
    from pabal.cli.events.event_publish import publish_from_terminal

    event = publish_from_terminal(
        connection,
        source=source,
        event_type=event_type,
        payload=payload,
        target=target,
        priority=priority,
        max_retries=max_retries,
        deliver_in=deliver_in,
        idempotency_key=key,
        ordering_key=ordering_key,
    )
    if json:
        print_json(msgspec.to_builtins(event))
    elif event.repeated:
        print_text(f"event {event.id} was already published with this key; it is {event.status}")
    else:
        print_text(f"event {event.id} published")


@app.command(
    name="list", help_epilogue=examples("event list --type 'order.*'", "event list --status failed --since 2h")
)
def event_list(
    *,
    type: TypeOption = None,
    status: Annotated[EventStatus | None, Parameter(help="Only events with this status.")] = None,
    source: Annotated[str | None, Parameter(help="Only events published by this service.")] = None,
    target: Annotated[str | None, Parameter(help="Only events for this service.")] = None,
    time_range: TimeRange = ANY_TIME,
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List events, newest first."""
    criteria, start = EventFilter(status, type, source, target), decode_cursor(cursor)

    async def read(tx: Tx) -> tuple[list[Event], str | None, dict[UUID, DeliveryState]]:
        rows, end = await scan_range(
            lambda before, count: scan_events(tx, OPERATOR_ACCESS, criteria, before=before, limit=count),
            await time_range.bounds(tx),
            start,
            limit,
        )
        broadcasts = [event.id for event in rows if event.is_broadcast]
        return rows, encode_cursor(end), await read_delivery_states(tx, broadcasts, OPERATOR_ACCESS)

    events, next_cursor, states = run_query(connection, read)
    if json:
        print_json_items((event_document(event, states.get(event.id)) for event in events), next_cursor)
        return
    print_page(events, next_cursor, COLUMNS, partial(event_cells, states=states), empty="No events.", json=False)


@app.command(name="show", help_epilogue=examples("event show 01a1e213…ea569f", "event show 01a1e213…ea569f --json"))
def event_show(event_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show an event with its deliveries and dead letters. For its history, see `pabal trace`."""
    from pabal.trace.events import read_event_status

    async def read(tx: Tx) -> ShownEvent:
        event = await find_event(tx, await resolve_event_id(tx, event_id), OPERATOR_ACCESS)
        return ShownEvent(
            event,
            await list_deliveries(tx, event.id, OPERATOR_ACCESS),
            await list_dead_letter_ids(tx, event.id),
            await read_delivery_state(tx, event.id, OPERATOR_ACCESS) if event.is_broadcast else None,
            await read_event_status(tx, event.id),
        )

    shown = run_query(connection, read)
    event, deliveries, dead_letters = shown.event, shown.deliveries, shown.dead_letters
    if json:
        extra = {"standing": shown.state_text, "deliveries": [*map(asdict, deliveries)], "dead_letters": dead_letters}
        print_json(event_document(event, shown.delivery_state) | extra)
        return
    fields: dict[str, Any] = asdict(event) | {"target_service": event.target_service or "all subscribers"}
    print_fields(
        [
            ("state", shown.state_text),
            ("next try", next_try_text(event)),
            *(
                (name.replace("_", " "), display_value(value))
                for name, value in fields.items()
                if name not in BULKY_FIELDS
            ),
            *(("delivery", f"{delivery.id} {delivery.target_service} {delivery.status}") for delivery in deliveries),
            *(("dead letter", dead_letter) for dead_letter in dead_letters),
        ]
    )
    print_block("payload", pretty_json(event.payload))


@app.command(
    name="cancel", help_epilogue=examples("event cancel 01a1e213…ea569f", "event cancel 01a1e213…ea569f --json")
)
def event_cancel(event_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Cancel an event, or the open deliveries of a broadcast. Consumers are told at their next heartbeat."""

    async def cancel(tx: Tx) -> list[UUID]:
        event = await find_event(tx, await resolve_event_id(tx, event_id), OPERATOR_ACCESS)
        return await cancel_event(tx, event, cli_actor())

    cancelled = run_transaction(connection, cancel)
    if json:
        print_json({"cancelled": cancelled})
    else:
        print_text("\n".join(f"{event} cancelled" for event in cancelled))


@app.command(name="tail", help_epilogue=examples("event tail --type 'order.*'", "event tail --service billing --json"))
def event_tail(
    *,
    type: TypeOption = None,
    service: Annotated[str | None, Parameter(help="Only events published by or for this service.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: JsonLines = False,
) -> None:
    """Print events as they are published and as they end, until Ctrl-C."""
    from pabal.cli.follow import follow_lane
    from pabal.events.follow import EventFollower

    print_change = partial(print_event_change, json=json)
    follow_lane(connection, "events", EventFollower(type, service), Channel.EVENTS, print_change)


async def resolve_event_id(tx: Tx, pattern: IdPattern) -> UUID:
    return await resolve_id(tx, pattern, "event", match_event_ids)


def event_document(event: Event, state: DeliveryState | None) -> dict[str, Any]:
    """An event as JSON. A broadcast has a delivery state."""
    if state is None:
        return asdict(event) | {"delivery_state": None}
    counts = asdict(state)
    del counts["event_id"]
    return asdict(event) | {"delivery_state": {"summary": str(describe_deliveries(state)), **counts}}


def next_try_text(event: Event) -> str:
    """When a failed event is tried again, and which attempt that is."""
    attempts = event.retry_count + (event.processing_started_at is not None)
    if event.status != "pending" or not attempts or event.next_retry_at is None:
        return ""
    return f"{local_time(event.next_retry_at)}, attempt {attempts + 1} of {event.max_retries + 1}"


def event_cells(event: Event, states: Mapping[UUID, DeliveryState]) -> tuple[object, ...]:
    state = states.get(event.id)
    return (
        event.id,
        local_time(event.created_at),
        event.event_type,
        event.source_service,
        event.target_service or "all subscribers",
        describe_deliveries(state) if state else event.status,
        one_line(event.last_error or "", MAX_ERROR_CHARS),
    )


def print_event_change(change: "EventChange", *, json: bool) -> None:
    event = change.event
    if json:
        print_json_line({"what": change.kind, **asdict(event)})
        return
    is_new = change.kind == "came"
    status = "published" if is_new else event.status
    error = f"  {one_line(event.last_error, MAX_ERROR_CHARS)}" if event.last_error and status != "completed" else ""
    route = f"{event.source_service} → {event.target_service or 'all subscribers'}"
    at = local_time(event.created_at if is_new else event.processed_at, "milliseconds")
    print_text(f"{at}  {status:<9}  {event.id}  {event.event_type}  {route}{error}", STATUS_STYLES.get(status, ""))
