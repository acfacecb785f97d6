"""Forms of hosts and origins in settings."""

import ipaddress
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_origin(text: str) -> bool:
    """Whether the text is a scheme, a host and an optional port, and nothing else."""
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    return parts.scheme in {"http", "https"} and bool(host) and bare


def check_origins(origins: list[str]) -> list[str]:
    """Raise ValueError for what is not an origin."""
    for origin in origins:
        if not is_origin(origin):
            raise ValueError(f"{origin!r} is not an origin such as https://host or http://127.0.0.1:9000")
    return origins


def normalize_origins(origins: list[str]) -> list[str]:
    """Write origins as browsers send them: in lower case, without a path and without the default port."""
    for origin in check_origins(origins):
        if "*" in origin:
            raise ValueError(f"{origin!r} is not an origin: wildcards are not allowed")
    return [normalize_origin(origin) for origin in origins]


def normalize_origin(origin: str) -> str:
    parts = urlsplit(origin)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in {None, DEFAULT_PORTS[parts.scheme]} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"
