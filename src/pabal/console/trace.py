"""The trace page: one id in, its whole story out."""

from starlette.requests import Request
from starlette.responses import Response

from pabal import trace
from pabal.console.gate import Look
from pabal.console.pages import chosen, page
from pabal.console.texts import texts_for
from pabal.console.things import things
from pabal.console.timeline import timeline
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.events.story import Story
from pabal.operators.operators import Session
from pabal.relay import story as relay
from pabal.trace import EventTold, Meant, Told
from pabal.wiring import Hub


async def show(hub: Hub, request: Request, session: Session) -> Response:
    t, name = texts_for(request), chosen(request, "id").get("id", "")
    async with hub.autocommit() as tx:
        meant = await trace.meant(tx, name) if name else []
        told = await story(tx, name, meant) if name else None
    return page(
        request,
        "trace/page.html",
        session=session,
        name=name,
        meant=meant if len(meant) > 1 else [],
        things=things(t, told) if told else [],
        lines=timeline(t, told) if told else [],
        whole=whole(told),
        untold=untold(told),
    )


async def story(tx: Tx, name: str, meant: list[Meant]) -> Told | None:
    """What is told of this name; nothing, where it may be several or is none."""
    try:
        match meant:
            case [one]:
                return await trace.tell(tx, one)
            case []:
                return await trace.otherwise(tx, name)
            case _:
                return None
    except NotFound:  # or gone since it was found
        return None


def whole(told: Told | None) -> str:
    """What the story is of, where it is of several things that share a name."""
    match told:
        case EventTold(story=Story(kind="correlation", events=events)) if (
            sum(not each.parent_id for each in events) != 1
        ):
            return "correlation"
        case relay.Story(kind="conversation"):
            return "conversation"
        case _:
            return ""


def untold(told: Told | None) -> int:
    """Notifications the story only counts."""
    if not isinstance(told, EventTold):
        return 0
    return sum(each.count for each in told.made.counts) - len(told.made.stories)


PAGES = (Look("/console/trace", show),)
