"""The application: every door of the table behind one threshold."""

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pabal.api import doors
from pabal.api.bind import endpoint
from pabal.api.door import Door
from pabal.api.errors import refusal
from pabal.api.threshold import Threshold, shape_of
from pabal.core.errors import NotAllowed, NotFound, PabalError, Refused
from pabal.core.log import get_logger
from pabal.wiring import Hub

log = get_logger()


def application(hub: Hub, more: Iterable[BaseRoute] = (), table: Iterable[Door] = doors.ALL) -> ASGIApp:
    """Build the ASGI application: the table of doors, and more routes such as the console's."""
    routes = [route(door, hub) for door in table]
    app = Starlette(routes=[*routes, *more])
    app.router.redirect_slashes = False  # it would send callers to an absolute address made of their Host header
    # No last wall of Starlette's: it answers in plain text, and the threshold behind it has a better answer.
    app.middleware_stack = ExceptionMiddleware(app.router, {PabalError: refuse, HTTPException: unknown})
    return Threshold(Directory(routes, app), hub)


class Directory:
    """Finds a door whose path has no parameters by one look, where the router would try them all in turn.

    Everything else, and everything that is no door, is the router's.
    """

    def __init__(self, routes: Iterable[Route], app: ASGIApp) -> None:
        self._app = app
        plain = [each for each in routes if "{" not in each.path]
        self._doors = {(method, each.path): each.endpoint for each in plain for method in each.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._doors.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if door is None:
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = door
        request: Request = scope["state"]["visit"].request
        try:
            answer = await door(request)
        except PabalError as error:
            answer = await refuse(request, error)
        await answer(scope, receive, send)


def route(door: Door, hub: Hub) -> Route:
    answer: Any = endpoint(door, hub)
    answer.door_path = door.path
    answer.shape = door.shape
    answer.discreet = door.discreet
    built = Route(door.path, answer, methods=[door.method], name=f"{door.method} {door.path}")
    if door.claims and built.methods:
        built.methods.discard("HEAD")
    return built


async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, PabalError)
    answer = refusal(error, shape_of(request.scope), request.state.visit.id)
    if answer.status_code >= 500:  # noqa: PLR2004 the one place that tells our fault from theirs
        log.error("request failed", why=str(error), exc_info=error if answer.status_code == 500 else None)  # noqa: PLR2004
    return answer


async def unknown(request: Request, error: Exception) -> Response:
    """Write the router's own refusals like ours."""
    assert isinstance(error, HTTPException)
    shape, visit = shape_of(request.scope), request.state.visit
    match error.status_code:
        case 404:
            return refusal(NotFound("there is no such door"), shape, visit.id)
        case 405:
            answer = refusal(NotAllowed(f"{request.method} is not possible here"), shape, visit.id)
            answer.headers.update(error.headers or {})
            return answer
        case _:
            return refusal(Refused(error.detail), shape, visit.id)
