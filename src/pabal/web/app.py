"""The ASGI application: the route table behind the request middleware."""

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
from pabal.web.cross_origin import CrossOriginMiddleware
from pabal.web.endpoint import build_endpoint
from pabal.web.errors import error_response
from pabal.web.middleware import RequestMiddleware, error_format_of, loggable_path
from pabal.web.route import Route

log = get_logger()


def create_app(hub: Hub, api_routes: Iterable[Route], extra_routes: Iterable[BaseRoute] = ()) -> ASGIApp:
    """Build the application from the API's route table and further routes, such as the console's."""
    routes = [to_starlette_route(route, hub) for route in api_routes]
    app = Starlette(routes=[*routes, *extra_routes])
    app.router.redirect_slashes = False  # the redirect would be an absolute URL built from the caller's Host header
    # Without Starlette's ServerErrorMiddleware: it answers in plain text, RequestMiddleware answers in our format.
    app.middleware_stack = ExceptionMiddleware(
        app.router, {PabalError: handle_pabal_error, HTTPException: handle_http_exception}
    )
    router: ASGIApp = ExactPathRouter(routes, app)
    if origins := hub.settings.allowed_origins:
        router = CrossOriginMiddleware(router, routes, origins)
    return RequestMiddleware(router, hub)


class ExactPathRouter:
    """Look up routes without path parameters in a dict; the router would match them one by one.

    Everything else goes to the application.
    """

    def __init__(self, routes: Iterable[StarletteRoute], app: ASGIApp) -> None:
        self._app = app
        self._endpoints = {
            (method, route.path): route.endpoint
            for route in routes
            if "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = endpoint
        request: Request = scope["state"]["context"].request
        try:
            response = await endpoint(request)
        except PabalError as error:
            response = await handle_pabal_error(request, error)
        await response(scope, receive, send)


def to_starlette_route(route: Route, hub: Hub) -> StarletteRoute:
    endpoint: Any = build_endpoint(route, hub)
    endpoint.api_route = route  # read by `api_route_of`
    starlette_route = StarletteRoute(route.path, endpoint, methods=[route.method], name=f"{route.method} {route.path}")
    if route.no_head and starlette_route.methods:
        starlette_route.methods.discard("HEAD")
    return starlette_route


async def handle_pabal_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PabalError)
    response = error_response(error, error_format_of(request.scope), request.state.context.id)
    if response.status_code >= 500:  # noqa: PLR2004 server errors are logged, client errors are not
        log.error("request failed", error=str(error), exc_info=error if response.status_code == 500 else None)  # noqa: PLR2004
    return response


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Write the router's own errors in the format of all others."""
    assert isinstance(error, HTTPException)
    headers: dict[str, str] = {}
    match error.status_code:
        case 404:
            refusal: RequestError = NotFound(f"No such endpoint: {request.method} {loggable_path(request.scope)}")
        case 405:
            headers = dict(error.headers or {})
            refusal = MethodNotAllowed(f"{request.method} is not allowed here. Allowed: {headers.get('Allow', '')}")
        case _:
            refusal = RequestError(error.detail)
    response = error_response(refusal, error_format_of(request.scope), request.state.context.id)
    response.headers.update(headers)
    return response
