"""The application: every door of the table behind one threshold."""

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from pabal.core.errors import MethodNotAllowed, NotFound, PabalError, RequestError
from pabal.core.log import get_logger
from pabal.hub import Hub
from pabal.web.endpoint import build_endpoint
from pabal.web.errors import error_response
from pabal.web.middleware import RequestMiddleware, error_format_of
from pabal.web.route import Route

log = get_logger()


def create_app(hub: Hub, api_routes: Iterable[Route], extra_routes: Iterable[BaseRoute] = ()) -> ASGIApp:
    """Build the ASGI application: the table of doors, and more routes such as the console's."""
    routes = [to_starlette_route(door, hub) for door in api_routes]
    app = Starlette(routes=[*routes, *extra_routes])
    app.router.redirect_slashes = False  # it would send callers to an absolute address made of their Host header
    # No last wall of Starlette's: it answers in plain text, and the threshold behind it has a better answer.
    app.middleware_stack = ExceptionMiddleware(
        app.router, {PabalError: handle_pabal_error, HTTPException: handle_http_exception}
    )
    return RequestMiddleware(ExactPathRouter(routes, app), hub)


class ExactPathRouter:
    """Finds a door whose path has no parameters by one look, where the router would try them all in turn.

    Everything else, and everything that is no door, is the router's.
    """

    def __init__(self, routes: Iterable[StarletteRoute], app: ASGIApp) -> None:
        self._app = app
        plain = [each for each in routes if "{" not in each.path]
        self._endpoints = {(method, each.path): each.endpoint for each in plain for method in each.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._endpoints.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if door is None:
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = door
        request: Request = scope["state"]["visit"].request
        try:
            answer = await door(request)
        except PabalError as error:
            answer = await handle_pabal_error(request, error)
        await answer(scope, receive, send)


def to_starlette_route(route: Route, hub: Hub) -> StarletteRoute:
    answer: Any = build_endpoint(route, hub)
    answer.door_path = route.path
    answer.shape = route.error_format
    answer.discreet = route.hide_path
    built = StarletteRoute(route.path, answer, methods=[route.method], name=f"{route.method} {route.path}")
    if route.no_head and built.methods:
        built.methods.discard("HEAD")
    return built


async def handle_pabal_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PabalError)
    answer = error_response(error, error_format_of(request.scope), request.state.visit.id)
    if answer.status_code >= 500:  # noqa: PLR2004 the one place that tells our fault from theirs
        log.error("request failed", error=str(error), exc_info=error if answer.status_code == 500 else None)  # noqa: PLR2004
    return answer


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Write the router's own refusals like ours."""
    assert isinstance(error, HTTPException)
    shape, visit = error_format_of(request.scope), request.state.visit
    match error.status_code:
        case 404:
            return error_response(NotFound("there is no such door"), shape, visit.id)
        case 405:
            answer = error_response(MethodNotAllowed(f"{request.method} is not possible here"), shape, visit.id)
            answer.headers.update(error.headers or {})
            return answer
        case _:
            return error_response(RequestError(error.detail), shape, visit.id)
