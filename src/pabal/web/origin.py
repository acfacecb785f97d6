"""Where a request comes from: the origin that a browser states, and the host name it used.

Browsers send requests of any page to any address, loopback included, and attach cookies. So a request that changes
something must not come from another site. A page whose own name resolves to the hub's address counts as the same site,
so pages with cookies are served only under known host names.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from pabal.core.errors import ForeignOrigin, UnknownHost
from pabal.hub import Hub
from pabal.settings import Settings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NO_ORIGIN = "null"
"""What browsers send for pages without a referrer, and for sandboxed ones."""


def is_same_origin(request: Request, hub: Hub) -> bool:
    """Whether the browser states that one of our pages sent the request; without a statement, it did not."""
    origin = request.headers.get("origin", NO_ORIGIN)
    if origin == NO_ORIGIN:
        return request.headers.get("sec-fetch-site") == "same-origin"
    return origin in own_origins(request, hub.settings)


def own_origins(request: Request, settings: Settings) -> set[str]:
    public = urlsplit(settings.public_url or "")
    schemes = ("https",) if public.scheme == "https" else ("http", "https")
    hosts = filter(None, (request.headers.get("host"), public.netloc, *settings.allowed_hosts))
    return {f"{scheme}://{host}" for host in hosts for scheme in schemes}


def allowed_page_origin(request: Request, hub: Hub) -> str:
    """The origin of the page that sent the request; empty for the hub's own pages and for programs.

    Raise ForeignOrigin for pages that are not in PABAL_ALLOWED_ORIGINS.
    """
    origin = request.headers.get("origin", "")
    if not origin or origin in own_origins(request, hub.settings):
        return ""
    if origin not in hub.settings.allowed_origins:
        raise ForeignOrigin
    return origin


def refuse_foreign_origin(request: Request, hub: Hub) -> None:
    """Raise ForeignOrigin if a page of another site sent a request that changes something.

    A bearer token is proof enough: a page can only send one that it knows.
    """
    if request.method in SAFE_METHODS or request.headers.get("authorization", "")[:7].lower() == "bearer ":
        return
    origin, site = request.headers.get("origin", NO_ORIGIN), request.headers.get("sec-fetch-site")
    is_foreign = (
        site in {"cross-site", "same-site"}
        if origin == NO_ORIGIN
        else site == "cross-site" or origin not in own_origins(request, hub.settings)
    )
    if is_foreign:
        raise ForeignOrigin


def refuse_unknown_host(request: Request, hub: Hub) -> None:
    """Raise UnknownHost if the client did not use a name or address of this hub."""
    host = request.headers.get("host", "").lower()
    if not is_known_host(host, hub.settings):
        raise UnknownHost(host[:100])


def is_known_host(host: str, settings: Settings) -> bool:
    """Whether the value of a Host header is an address, localhost, or a configured name, with any port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = name.rstrip(".")
    names = {settings.host.lower(), urlsplit(settings.public_url or "").hostname, *settings.allowed_hosts}
    if name == "localhost" or name.endswith(".localhost") or name in names or host in names:
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
