"""Forms of hosts and origins in settings."""

import ipaddress
from urllib.parse import urlsplit


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
