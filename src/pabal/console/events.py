"""Events: search them, and look at one; call it off."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.guards import Action, Form, Page, operator_actor
from pabal.console.i18n import translator_for
from pabal.console.pages import confirm_page, is_count_confirmed, read_filters, redirect_with_flash, render_page
from pabal.console.trace import event_item, event_timeline, event_url, failed_attempts
from pabal.core.actor import Actor
from pabal.db.bounded_scan import MAX_SCANNED_ROWS
from pabal.db.tx import Tx
from pabal.events.events import (
    Event,
    EventAccess,
    EventFilter,
    EventSummary,
    find_event,
    list_deliveries,
    scan_event_summaries,
)
from pabal.events.events import cancel_event as call_off
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.trace.events import collect_event_trace
from pabal.web.pagination import decode_cursor, encode_cursor

EVENTS_PATH = "/console/events"
OPERATOR = EventAccess("hub", all_services=True)
STATUSES = ("pending", "processing", "completed", "failed", "cancelled")
OPEN_STATUSES = ("pending", "processing")
PAGE_SIZE = 50


class CountChanged(Exception):
    """It was another number than was agreed to: what was done is taken back."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(count)


async def events_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    """The newest events that match; what is looked for is in the address."""
    sought = read_filters(request, "status", "type", "source", "target")
    before = decode_cursor(request.query_params.get("cursor") or None)
    which = EventFilter(sought.get("status"), sought.get("type"), sought.get("source"), sought.get("target"))
    async with hub.autocommit() as tx:
        sight = await scan_event_summaries(tx, which, before=before, limit=PAGE_SIZE)
    return render_page(
        request,
        "events/list.html",
        session=session,
        filters=sought,
        statuses=STATUSES,
        attempts_started=attempts_started,
        rows=sight.rows,
        scan_end=sight.end if sight.truncated else None,
        scan_limit=MAX_SCANNED_ROWS,
        next_cursor=encode_cursor(sight.end),
        current_cursor=before,
    )


async def event_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    event_id: UUID = request.path_params["id"]
    t = translator_for(request)
    async with hub.autocommit() as tx:
        event = await find_event(tx, event_id, OPERATOR)
        deliveries = await list_deliveries(tx, event_id, OPERATOR) if event.is_broadcast else []
        story = await collect_event_trace(tx, str(event_id), "event", [event_id])
    own = next((each for each in story.events if each.id == event_id), None)
    return render_page(
        request,
        "events/detail.html",
        session=session,
        event=event,
        attempts_started=attempts_started,
        item=event_item(t, own, story) if own else None,
        entries=event_timeline(t, story, event_id),
        attempts=failed_attempts(t, event.error_history),
        deliveries=deliveries,
        dead_letters=[each for each in story.dead_letters if each.original_event_id == event_id],
        is_open=any(each in OPEN_STATUSES for each in (event.status, *(each.status for each in deliveries))),
    )


async def cancel_event_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Call off what has not ended of it: so many as was agreed to, or ask."""
    event_id: UUID = request.path_params["id"]
    back = event_url(event_id)
    try:
        async with hub.transaction() as tx:
            ended = await cancel_if_confirmed(tx, event_id, operator_actor(request, session), fields)
    except CountChanged as asked:
        return confirm_page(
            request, session, text_id="cancel so many", count=asked.count, fields=fields, return_url=back
        )
    return redirect_with_flash(back, "cancelled so many", n=len(ended))


async def cancel_if_confirmed(tx: Tx, event_id: UUID, actor: Actor, fields: Form) -> list[UUID]:
    ended = await call_off(tx, await find_event(tx, event_id, OPERATOR), actor)
    if not is_count_confirmed(fields, len(ended)):
        raise CountChanged(len(ended))
    return ended


def attempts_started(event: Event | EventSummary) -> int:
    """How many attempts were begun: whoever takes it after the first counts one more."""
    return event.retry_count + (event.processing_started_at is not None)


PAGES = (
    Page(EVENTS_PATH, events_page),
    Page(EVENTS_PATH + "/{id:uuid}", event_page),
    Action(EVENTS_PATH + "/{id:uuid}/cancel", cancel_event_action),
)
