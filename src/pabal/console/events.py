"""The list of events, one event, and cancelling it."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.i18n import translator_for
from pabal.console.pages import (
    confirm_page,
    is_count_confirmed,
    read_cursor,
    read_filters,
    read_query,
    redirect_with_flash,
    render_page,
)
from pabal.console.trace.items import event_item, event_url
from pabal.console.trace.timeline import event_timeline, failed_attempt_rows
from pabal.core.actor import Actor
from pabal.db.bounded_scan import MAX_SCANNED_ROWS
from pabal.db.tx import Tx
from pabal.events.delivery_state import describe_deliveries, read_delivery_states
from pabal.events.events import (
    OPERATOR_ACCESS,
    Event,
    EventFilter,
    EventSummary,
    cancel_event,
    find_event,
    list_deliveries,
    scan_event_summaries,
)
from pabal.events.types import EventStatus
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.trace.events import collect_event_trace
from pabal.web.pagination import decode_cursor, encode_cursor

EVENTS_PATH = "/console/events"
STATUSES: tuple[EventStatus, ...] = ("pending", "processing", "completed", "failed", "cancelled")
OPEN_STATUSES = ("pending", "processing")
PAGE_SIZE = 50


class CountChanged(Exception):
    """The number of events differs from the confirmed one. Raised to roll the cancellation back."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(count)


async def events_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """List the events that match the filters, newest first."""
    filters = read_filters(request, "status", "type", "source", "target")
    before = decode_cursor(read_cursor(request))
    event_filter = EventFilter(
        read_status_filter(request), filters.get("type"), filters.get("source"), filters.get("target")
    )
    async with hub.autocommit() as tx:
        scan = await scan_event_summaries(tx, event_filter, before=before, limit=PAGE_SIZE)
        states = await read_delivery_states(tx, [row.id for row in scan.rows if row.is_broadcast], OPERATOR_ACCESS)
    t = translator_for(request)
    return render_page(
        request,
        "events/list.html",
        session=session,
        filters=filters,
        statuses=STATUSES,
        attempts_started=attempts_started,
        rows=scan.rows,
        delivery_texts={event_id: t.translate(describe_deliveries(state)) for event_id, state in states.items()},
        scan_end=scan.end if scan.truncated else None,
        scan_limit=MAX_SCANNED_ROWS,
        next_cursor=encode_cursor(scan.end),
        current_cursor=before,
    )


def read_status_filter(request: Request) -> EventStatus | None:
    """Return the status to list, by default every status."""
    status = read_query(request, "status")
    return status if status in STATUSES else None


async def event_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    event_id: UUID = request.path_params["id"]
    t = translator_for(request)
    async with hub.autocommit() as tx:
        event = await find_event(tx, event_id, OPERATOR_ACCESS)
        deliveries = await list_deliveries(tx, event_id, OPERATOR_ACCESS) if event.is_broadcast else []
        trace = await collect_event_trace(tx, str(event_id), "event", [event_id])
    traced_event = next((traced for traced in trace.events if traced.id == event_id), None)
    return render_page(
        request,
        "events/detail.html",
        session=session,
        event=event,
        attempts_started=attempts_started,
        item=event_item(t, traced_event, trace) if traced_event else None,
        entries=event_timeline(t, trace, event_id),
        attempts=failed_attempt_rows(t, event.error_history),
        deliveries=deliveries,
        dead_letters=[letter for letter in trace.dead_letters if letter.original_event_id == event_id],
        is_open=any(
            status in OPEN_STATUSES for status in (event.status, *(delivery.status for delivery in deliveries))
        ),
    )


async def cancel_event_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Cancel the event and its open deliveries, after confirmation of their number."""
    event_id: UUID = request.path_params["id"]
    return_url = event_url(event_id)
    try:
        async with hub.transaction() as tx:
            cancelled = await cancel_if_confirmed(tx, event_id, operator_actor(request, session), fields)
    except CountChanged as change:
        return confirm_page(
            request, session, text_id="events.cancel.confirm", count=change.count, fields=fields, return_url=return_url
        )
    return redirect_with_flash(return_url, "events.cancel.done", count=len(cancelled))


async def cancel_if_confirmed(tx: Tx, event_id: UUID, actor: Actor, fields: Form) -> list[UUID]:
    cancelled = await cancel_event(tx, await find_event(tx, event_id, OPERATOR_ACCESS), actor)
    if not is_count_confirmed(fields, len(cancelled)):
        raise CountChanged(len(cancelled))
    return cancelled


def attempts_started(event: Event | EventSummary) -> int:
    """Return the number of attempts that were started."""
    return event.retry_count + (event.processing_started_at is not None)


PAGES = (
    Page(EVENTS_PATH, events_page),
    Page(EVENTS_PATH + "/{id:uuid}", event_page),
    Action(EVENTS_PATH + "/{id:uuid}/cancel", cancel_event_action),
)
