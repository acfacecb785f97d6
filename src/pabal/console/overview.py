"""The first page: how each lane is."""

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Look
from pabal.console.pages import page
from pabal.operators.operators import Session
from pabal.wiring import Hub


async def show(hub: Hub, request: Request, session: Session) -> Response:
    return page(request, "overview.html", session=session, count=await hub.census.take(), hub=hub)


PAGES = (Look("/console", show),)
