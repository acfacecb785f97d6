"""The threshold: what happens to every request before its door and after it.

A request id, the caller's address, the security headers, one log line, one measurement, and an answer even when our own
code fails.
"""

import ipaddress
import re
import time
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger, request_log_context
from pabal.hub import Hub
from pabal.web.errors import error_response
from pabal.web.request import RequestContext, client_address
from pabal.web.route import ErrorFormat

log = get_logger()

REQUEST_ID_PATTERN = re.compile(r"[\w.-]{8,64}", re.ASCII)
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
RAW_SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
RAW_API_HEADERS = [*RAW_SECURITY_HEADERS, (b"cache-control", b"no-store")]
"""What a door says is for its caller, and for now."""
QUIET_PATHS = frozenset({"/health", "/healthz", "/readyz", "/metrics", "/console/live", "/portal/live", "/chat/live"})
"""Asked again and again by machines: logged only when everything is."""
LIVE_PREFIXES = ("/console", "/portal", "/chat")
MAX_LOGGED_PATH = 500
"""Characters of a path that are written down: no door's is so long, and somebody's may have sixty thousand."""


class RequestMiddleware:
    """Outermost layer of the application."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._app = app
        self._hub = hub
        self._trusted = [ipaddress.ip_network(each, strict=False) for each in hub.settings.trusted_proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope["path"] = collapse_leading_slashes(scope["path"])
        request = Request(scope, receive)
        visit = RequestContext(
            id=choose_request_id(request.headers.get("x-request-id")),
            client_ip=client_address(scope, self._trusted),
            user_agent=request.headers.get("user-agent", ""),
            request=request,
        )
        scope.setdefault("state", {})["visit"] = visit
        status, answered = 0, 0.0

        async def dress(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], time.perf_counter() - started
                own = message["headers"]
                named = {name for name, _ in own}
                worn = RAW_API_HEADERS if hasattr(scope.get("endpoint"), "door_path") else RAW_SECURITY_HEADERS
                own += [(b"x-request-id", visit.id.encode()), *(each for each in worn if each[0] not in named)]
            await send(message)

        with request_log_context(visit.id):
            try:
                await self._app(scope, receive, dress)
            except ClientDisconnect:
                log.debug("caller left", method=request.method, path=loggable_path(scope))
            except Exception:  # the last wall: nobody outside sees our insides
                log.exception("request failed", method=request.method, path=loggable_path(scope))
                if status == 0:
                    await error_response(PabalError("failed"), error_format_of(scope), visit.id)(scope, receive, dress)
            if status:
                self._record_metrics(scope, status, answered)
            self._log_request(scope, visit, status, time.perf_counter() - started)

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        """Measure until the answer began: a stream may go on for hours and was still answered at once."""
        route = getattr(scope.get("endpoint"), "door_path", "other")
        self._hub.metrics.observe_request(scope["method"], route, status, seconds)

    def _log_request(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        path: str = scope["path"]
        looks = path.startswith(LIVE_PREFIXES) and b"x-refresh" in dict(scope["headers"])  # a page refreshes itself
        say = log.debug if looks or path in QUIET_PATHS else log.info
        say(
            "request answered",
            method=scope["method"],
            path=loggable_path(scope),
            status=status,
            ms=round(seconds * 1000, 1),
            client=context.client_ip,
        )


def error_format_of(scope: Scope) -> ErrorFormat:
    """How the door that was asked for writes its errors down; where there is no door, as most do."""
    return getattr(scope.get("endpoint"), "shape", ErrorFormat.PROBLEM)


def loggable_path(scope: Scope) -> str:
    """The path as it may be written down: where it holds a secret, only its pattern."""
    door: Any = scope.get("endpoint")
    return door.door_path if getattr(door, "discreet", False) else scope["path"][:MAX_LOGGED_PATH]


def collapse_leading_slashes(path: str) -> str:
    """Some clients join a base that ends in a slash with a path that begins with one."""
    return "/" + path.lstrip("/") if path.startswith("//") else path


def choose_request_id(header: str | None) -> str:
    return header if header and REQUEST_ID_PATTERN.fullmatch(header) else new_id().hex
