"""The trace page: one id in, its whole story out."""

from starlette.requests import Request
from starlette.responses import Response

from pabal import trace
from pabal.console.gate import Page
from pabal.console.pages import read_filters, render_page
from pabal.console.texts import translator_for
from pabal.console.things import traced_items
from pabal.console.timeline import build_timeline
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.events.story import EventTrace
from pabal.operators.operators import OperatorSession
from pabal.relay import story as relay
from pabal.trace import FullEventTrace, Trace, TraceMatch
from pabal.wiring import Hub


async def trace_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    t, name = translator_for(request), read_filters(request, "id").get("id", "")
    async with hub.autocommit() as tx:
        meant = await trace.find_trace_matches(tx, name) if name else []
        told = await find_trace(tx, name, meant) if name else None
    return render_page(
        request,
        "trace/page.html",
        session=session,
        query=name,
        candidates=meant if len(meant) > 1 else [],
        items=traced_items(t, told) if told else [],
        entries=build_timeline(t, told) if told else [],
        scope=trace_scope(told),
        hidden_notifications=count_hidden_notifications(told),
    )


async def find_trace(tx: Tx, query: str, candidates: list[TraceMatch]) -> Trace | None:
    """What is told of this name; nothing, where it may be several or is none."""
    try:
        match candidates:
            case [one]:
                return await trace.trace_match(tx, one)
            case []:
                return await trace.trace_by_name(tx, query)
            case _:
                return None
    except NotFound:  # or gone since it was found
        return None


def trace_scope(trace: Trace | None) -> str:
    """What the story is of, where it is of several things that share a name."""
    match trace:
        case FullEventTrace(trace=EventTrace(kind="correlation", events=events)) if (
            sum(not each.parent_id for each in events) != 1
        ):
            return "correlation"
        case relay.MessageTrace(kind="conversation"):
            return "conversation"
        case _:
            return ""


def count_hidden_notifications(trace: Trace | None) -> int:
    """Notifications the story only counts."""
    if not isinstance(trace, FullEventTrace):
        return 0
    return sum(each.count for each in trace.notifications.counts) - len(trace.notifications.traces)


PAGES = (Page("/console/trace", trace_page),)
