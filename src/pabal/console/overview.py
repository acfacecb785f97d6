"""The first page: how each lane is."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.pages import page
from pabal.operators.operators import Session
from pabal.wiring import Hub


async def show(hub: Hub, request: Request, session: Session) -> Response:
    return page(request, "overview.html", session=session, count=await hub.census.take(), hub=hub)


async def lanes(hub: Hub, request: Request, session: Session) -> Response:
    """The part of the page that changes, for the page to fetch again."""
    return page(request, "lanes.html", session=session, count=await hub.census.take(), hub=hub)
