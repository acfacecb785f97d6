"""What happens to every request before and after its endpoint.

A request id, the client's address, the security headers, a log line, one metric, and a response even if our own code
raises.
"""

import re
import time
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pabal.core.errors import PabalError
from pabal.core.ids import new_id_text
from pabal.core.log import get_logger, log_frequent_line, set_log_request_id
from pabal.hub import Hub
from pabal.web.access_log import AccessLogSampler
from pabal.web.encoded_response import has_only_json_headers
from pabal.web.errors import error_response
from pabal.web.request import HubRequest, RequestContext, client_address, is_trusted_proxy, parse_networks
from pabal.web.route import ErrorFormat, Route

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
"""API responses are for one caller and must not be cached."""
STRICT_TRANSPORT_SECURITY = (b"strict-transport-security", b"max-age=31536000")
"""With an https public URL, browsers must not use http for a year. Other hosts of the domain are not ours to decide."""
PLAIN_HEADERS = frozenset({b"content-length", b"content-type"})
"""What most responses set themselves: nothing that has a default here."""
QUIET_PATHS = frozenset({"/health", "/healthz", "/readyz", "/metrics", "/console/live", "/portal/live", "/chat/live"})
"""Polled by machines, so logged at debug level only."""
LIVE_PREFIXES = ("/console", "/portal", "/chat")
MAX_LOGGED_PATH = 500
"""Characters of a path in logs and errors. Our paths are shorter; a client may send sixteen thousand."""


class RequestMiddleware:
    """Outermost layer of the application."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._app = app
        self._hub = hub
        self._trusted = parse_networks(hub.settings.trusted_proxies)
        is_https = (hub.settings.public_url or "").startswith("https://")
        extra_headers = [STRICT_TRANSPORT_SECURITY] if is_https else []
        self._page_headers = [*RAW_SECURITY_HEADERS, *extra_headers]
        self._api_headers = [*RAW_API_HEADERS, *extra_headers]
        self._sampler = AccessLogSampler(hub.settings.log_requests_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope["path"] = collapse_leading_slashes(scope["path"])
        request = HubRequest(scope, receive)
        self._observe_proxy(scope)
        context = RequestContext(
            id=choose_request_id(request.headers.get("x-request-id")),
            client_ip=client_address(scope, self._trusted),
            user_agent=request.headers.get("user-agent", ""),
            request=request,
        )
        scope.setdefault("state", {})["context"] = context
        status, seconds_to_start = 0, 0.0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, seconds_to_start
            if message["type"] == "http.response.start":
                status, seconds_to_start = message["status"], time.perf_counter() - started
                headers = message["headers"]
                defaults = self._api_headers if api_route_of(scope) else self._page_headers
                if not has_only_json_headers(headers):
                    names = {name for name, _ in headers}
                    if not names <= PLAIN_HEADERS:
                        defaults = [pair for pair in defaults if pair[0] not in names]
                headers.append((b"x-request-id", context.id.encode()))
                headers += defaults
            await send(message)

        set_log_request_id(context.id)
        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.debug("client disconnected", method=request.method, path=loggable_path(scope))
        except Exception:  # the response must not show our internals
            log.exception("request failed", method=request.method, path=loggable_path(scope))
            if status == 0:
                response = error_response(PabalError("failed"), error_format_of(scope), context.id)
                await response(scope, receive, send_with_headers)
        if status:
            self._record_metrics(scope, status, seconds_to_start)
        self._log_request(scope, context, status, time.perf_counter() - started)

    def _observe_proxy(self, scope: Scope) -> None:
        """Notice a proxy that no setting trusts, once per process."""
        proxies = self._hub.untrusted_proxies
        if proxies.peer is None and (client := scope.get("client")) and not is_trusted_proxy(client[0], self._trusted):
            proxies.observe(client[0], scope["headers"])

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        """Measure the time until the response starts: a stream may stay open for hours."""
        route = api_route_of(scope) if status != HTTPStatus.METHOD_NOT_ALLOWED else None  # one label for all of them
        self._hub.metrics.observe_request(scope["method"], route.path if route else "other", status, seconds)

    def _log_request(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        path: str = scope["path"]
        is_refresh = path.startswith(LIVE_PREFIXES) and b"x-refresh" in dict(scope["headers"])
        is_quiet = is_refresh or path in QUIET_PATHS
        if not is_quiet and not self._sampler.is_logged(status, seconds):
            return
        write = log.debug if is_quiet else log_frequent_line
        write(
            "request answered",
            method=scope["method"],
            path=loggable_path(scope),
            status=status,
            ms=round(seconds * 1000, 1),
            client=context.client_ip,
        )


def api_route_of(scope: Scope) -> Route | None:
    """The API route that serves this request; None for console pages, static files and unknown paths."""
    return getattr(scope.get("endpoint"), "api_route", None)


def error_format_of(scope: Scope) -> ErrorFormat:
    route = api_route_of(scope)
    return route.error_format if route else ErrorFormat.PROBLEM


def loggable_path(scope: Scope) -> str:
    """The path, or only its pattern if the path itself holds a secret."""
    route = api_route_of(scope)
    return route.path if route and route.hide_path else scope["path"][:MAX_LOGGED_PATH]


def collapse_leading_slashes(path: str) -> str:
    """Accept `//path`: some clients join a base URL that ends in a slash with an absolute path."""
    return "/" + path.lstrip("/") if path.startswith("//") else path


def choose_request_id(header: str | None) -> str:
    """The caller's request id if it is well-formed, else a new one."""
    return header if header and REQUEST_ID_PATTERN.fullmatch(header) else new_id_text()
