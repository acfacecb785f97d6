"""Events: search them, and look at one; call it off."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.page import cursor_at, place_of
from pabal.console.gate import Deed, Form, Look, by
from pabal.console.pages import chosen, confirm, confirmed, page, then
from pabal.console.texts import texts_for
from pabal.console.things import event_page, of_event
from pabal.console.timeline import attempts, of_one
from pabal.core.actor import Actor
from pabal.core.sight import REACH
from pabal.db.tx import Tx
from pabal.events import read
from pabal.events.cancel import cancel as call_off
from pabal.events.read import Event, Filter, Reader
from pabal.events.story import gathered
from pabal.operators.operators import Session
from pabal.wiring import Hub

ROOM = "/console/events"
OPERATOR = Reader("hub", all=True)
STATUSES = ("pending", "processing", "completed", "failed", "cancelled")
OPEN = ("pending", "processing")
PAGE = 50


class Disagreed(Exception):
    """It was another number than was agreed to: what was done is taken back."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(count)


async def show(hub: Hub, request: Request, session: Session) -> Response:
    """The newest events that match; what is looked for is in the address."""
    sought = chosen(request, "status", "type", "source", "target")
    before = place_of(request.query_params.get("cursor") or None)
    which = Filter(sought.get("status"), sought.get("type"), sought.get("source"), sought.get("target"))
    async with hub.autocommit() as tx:
        sight = await read.glance(tx, which, before=before, limit=PAGE)
    return page(
        request,
        "events/list.html",
        session=session,
        sought=sought,
        statuses=STATUSES,
        tried=tried,
        rows=sight.rows,
        tired=sight.end if sight.tired else None,
        reach=REACH,
        older=cursor_at(sight.end),
        later=before,
    )


async def one(hub: Hub, request: Request, session: Session) -> Response:
    event_id: UUID = request.path_params["id"]
    t = texts_for(request)
    async with hub.autocommit() as tx:
        event = await read.find(tx, event_id, OPERATOR)
        deliveries = await read.deliveries(tx, event_id, OPERATOR) if event.is_broadcast else []
        story = await gathered(tx, str(event_id), "event", [event_id])
    own = next((each for each in story.events if each.id == event_id), None)
    return page(
        request,
        "events/one.html",
        session=session,
        it=event,
        tried=tried,
        thing=of_event(t, own, story) if own else None,
        lines=of_one(t, story, event_id),
        attempts=attempts(t, event.error_history),
        deliveries=deliveries,
        letters=[each for each in story.deaths if each.original_event_id == event_id],
        is_open=any(each in OPEN for each in (event.status, *(each.status for each in deliveries))),
    )


async def cancel(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Call off what has not ended of it: so many as was agreed to, or ask."""
    event_id: UUID = request.path_params["id"]
    back = event_page(event_id)
    try:
        async with hub.transaction() as tx:
            ended = await agreed(tx, event_id, by(request, session), given)
    except Disagreed as asked:
        return confirm(request, session, says="cancel so many", count=asked.count, carries=given, back=back)
    return then(back, "cancelled so many", n=len(ended))


async def agreed(tx: Tx, event_id: UUID, actor: Actor, given: Form) -> list[UUID]:
    ended = await call_off(tx, await read.find(tx, event_id, OPERATOR), actor)
    if not confirmed(given, len(ended)):
        raise Disagreed(len(ended))
    return ended


def tried(event: Event | read.Glance) -> int:
    """How many attempts were begun: whoever takes it after the first counts one more."""
    return event.retry_count + (event.processing_started_at is not None)


PAGES = (
    Look(ROOM, show),
    Look(ROOM + "/{id:uuid}", one),
    Deed(ROOM + "/{id:uuid}/cancel", cancel),
)
