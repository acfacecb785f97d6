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

from pabal.api.door import Shape
from pabal.api.errors import refusal
from pabal.api.visit import Visit, client_address
from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger, speaking_of
from pabal.wiring import Hub

log = get_logger()

SANE_ID = re.compile(r"[\w.-]{8,64}", re.ASCII)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
WORN = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
WORN_BY_DOORS = [*WORN, (b"cache-control", b"no-store")]
"""What a door says is for its caller, and for now."""
QUIET = frozenset({"/health", "/healthz", "/readyz", "/metrics", "/console/live", "/portal/live", "/chat/live"})
"""Asked again and again by machines: logged only when everything is."""
LIVING = ("/console", "/portal", "/chat")
LONGEST_PATH = 500
"""Characters of a path that are written down: no door's is so long, and somebody's may have sixty thousand."""


class Threshold:
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
        scope["path"] = single_slash(scope["path"])
        request = Request(scope, receive)
        visit = Visit(
            id=request_id(request.headers.get("x-request-id")),
            client=client_address(scope, self._trusted),
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
                worn = WORN_BY_DOORS if hasattr(scope.get("endpoint"), "door_path") else WORN
                own += [(b"x-request-id", visit.id.encode()), *(each for each in worn if each[0] not in named)]
            await send(message)

        with speaking_of(visit.id):
            try:
                await self._app(scope, receive, dress)
            except ClientDisconnect:
                log.debug("caller left", method=request.method, path=spoken_path(scope))
            except Exception:  # the last wall: nobody outside sees our insides
                log.exception("request failed", method=request.method, path=spoken_path(scope))
                if status == 0:
                    await refusal(PabalError("failed"), shape_of(scope), visit.id)(scope, receive, dress)
            if status:
                self._measure(scope, status, answered)
            self._note(scope, visit, status, time.perf_counter() - started)

    def _measure(self, scope: Scope, status: int, answered: float) -> None:
        """Measure until the answer began: a stream may go on for hours and was still answered at once."""
        route = getattr(scope.get("endpoint"), "door_path", "other")
        self._hub.metrics.requests(scope["method"], route, status, answered)

    def _note(self, scope: Scope, visit: Visit, status: int, took: float) -> None:
        path: str = scope["path"]
        looks = path.startswith(LIVING) and b"x-look" in dict(scope["headers"])  # a page that keeps itself fresh
        say = log.debug if looks or path in QUIET else log.info
        say(
            "request answered",
            method=scope["method"],
            path=spoken_path(scope),
            status=status,
            ms=round(took * 1000, 1),
            client=visit.client,
        )


def shape_of(scope: Scope) -> Shape:
    """How the door that was asked for writes its errors down; where there is no door, as most do."""
    return getattr(scope.get("endpoint"), "shape", Shape.PROBLEM)


def spoken_path(scope: Scope) -> str:
    """The path as it may be written down: where it holds a secret, only its pattern."""
    door: Any = scope.get("endpoint")
    return door.door_path if getattr(door, "discreet", False) else scope["path"][:LONGEST_PATH]


def single_slash(path: str) -> str:
    """Some clients join a base that ends in a slash with a path that begins with one."""
    return "/" + path.lstrip("/") if path.startswith("//") else path


def request_id(said: str | None) -> str:
    return said if said and SANE_ID.fullmatch(said) else new_id().hex
