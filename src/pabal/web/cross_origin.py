"""Cross-origin requests (CORS): pages of PABAL_ALLOWED_ORIGINS may call the routes that are meant for browsers.

Credentials are never allowed: such a page authenticates with a person's token, and browsers send no cookie of the hub.
"""

from collections.abc import Iterable

from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pabal.web.middleware import api_route_of

VARY_ORIGIN = (b"vary", b"origin")
"""Also on responses without a permission: a cache must not show them to another origin."""
EXPOSED_HEADERS = (b"access-control-expose-headers", b"retry-after, x-request-id")
ALLOWED_HEADERS = "authorization, content-type, last-event-id, x-request-id"
PREFLIGHT_SECONDS = 600
"""How long a browser may remember a preflight."""


class CrossOriginMiddleware:
    """Answers preflights without calling the application, and adds the permission to responses."""

    def __init__(self, app: ASGIApp, routes: Iterable[StarletteRoute], origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._routes = [route for route in routes if getattr(route.endpoint, "api_route").cross_origin]  # noqa: B009 untyped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["state"]["context"].request.headers
        origin: str | None = headers.get("origin")
        is_allowed = origin in self._origins
        if is_allowed and scope["method"] == "OPTIONS":
            method = headers.get("access-control-request-method")
            if self._is_offered(method, scope["path"]):
                await preflight_response(method)(scope, receive, with_headers(send, permission_headers(origin)))
                return

        async def send_with_permission(message: Message) -> None:
            if message["type"] == "http.response.start" and (route := api_route_of(scope)) and route.cross_origin:
                message["headers"] += permission_headers(origin) if is_allowed else [VARY_ORIGIN]
            await send(message)

        await self._app(scope, receive, send_with_permission)

    def _is_offered(self, method: str | None, path: str) -> bool:
        return any(method in (route.methods or ()) and route.path_regex.fullmatch(path) for route in self._routes)


def permission_headers(origin: str | None) -> list[tuple[bytes, bytes]]:
    """The headers that let a page of this origin read the response."""
    allow_origin = (b"access-control-allow-origin", (origin or "").encode("latin-1"))
    return [allow_origin, EXPOSED_HEADERS, VARY_ORIGIN]


def preflight_response(method: str) -> Response:
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": method,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        },
    )


def with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] += headers
        await send(message)

    return send_with_headers
