"""The trace page: everything that happened to what an id names."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Page
from pabal.console.i18n import translator_for
from pabal.console.pages import read_filters, render_page
from pabal.console.trace.items import traced_items
from pabal.console.trace.timeline import build_timeline
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.trace import FullEventTrace, Trace, TraceMatch, find_trace_matches, trace_by_name, trace_match
from pabal.trace.events import EventTrace
from pabal.trace.relay import MessageTrace


async def trace_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t, query = translator_for(request), read_filters(request, "id").get("id", "")
    async with hub.autocommit() as tx:
        matches = await find_trace_matches(tx, query) if query else []
        trace = await find_trace(tx, query, matches) if query else None
    return render_page(
        request,
        "trace/page.html",
        session=session,
        query=query,
        candidates=matches if len(matches) > 1 else [],
        items=traced_items(t, trace) if trace else [],
        entries=build_timeline(t, trace) if trace else [],
        scope=trace_scope(trace),
        hidden_notifications=count_hidden_notifications(trace),
    )


async def find_trace(tx: Tx, query: str, candidates: list[TraceMatch]) -> Trace | None:
    """Load the trace, unless the query is ambiguous or matches nothing."""
    try:
        match candidates:
            case [match]:
                return await trace_match(tx, match)
            case []:
                return await trace_by_name(tx, query)
            case _:
                return None
    except NotFound:  # unknown, or deleted since it was matched
        return None


def trace_scope(trace: Trace | None) -> str:
    """Return the kind of query if the trace covers several things that share an id."""
    match trace:
        case FullEventTrace(trace=EventTrace(kind="correlation", events=events)) if (
            sum(not event.parent_id for event in events) != 1
        ):
            return "correlation"
        case MessageTrace(kind="conversation"):
            return "conversation"
        case _:
            return ""


def count_hidden_notifications(trace: Trace | None) -> int:
    """Return the number of notifications that the trace counts but does not include."""
    if not isinstance(trace, FullEventTrace):
        return 0
    return sum(group.count for group in trace.notifications.counts) - len(trace.notifications.traces)


PAGES = (Page("/console/trace", trace_page),)
