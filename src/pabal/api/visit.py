"""A visit: what the hub knows of a request besides what it asks for."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Visit:
    """One request's circumstances: its id, where it came from, what it runs in."""

    id: str
    client: str
    user_agent: str
    request: Request


def client_address(scope: Any, trusted: Sequence[Network]) -> str:
    """Who is calling: the socket's peer, or whom a trusted proxy says it speaks for.

    X-Forwarded-For is read from the right, past proxies we trust; the first other address is the client.
    """
    peer: str = scope["client"][0] if scope.get("client") else ""
    if not is_trusted(peer, trusted):
        return peer
    said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    hops = [hop.strip() for value in said for hop in value.split(",") if hop.strip()]
    for hop in reversed(hops):
        if not is_address(hop):
            return peer
        if not is_trusted(hop, trusted):
            return hop
    real = next((value.decode("latin-1").strip() for name, value in scope["headers"] if name == b"x-real-ip"), "")
    if not hops and is_address(real):
        return real
    return hops[0] if hops else peer


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    if not trusted or not is_address(address):
        return False
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in trusted if parsed.version == network.version)
