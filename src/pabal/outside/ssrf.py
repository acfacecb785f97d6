"""SSRF guard: the hub sends only over https to public addresses, and to the origins that the operator allows.

A URL is parsed once, here, with a grammar narrower than that of any library. The parts are passed on, never the text,
so no second parser can find another host in it. No error quotes the URL: it may be secret.
"""

import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Self
from urllib.parse import urlsplit

from pabal.core.errors import Invalid
from pabal.core.network import DEFAULT_PORTS

MAX_URL_LENGTH = 2048
MAX_HOST_LENGTH = 253
MAX_PORT = 65535

URL_CHARACTERS = re.compile(r"[\x21-\x5b\x5d-\x7e]*")  # printable ASCII without blank and backslash
URL_PATTERN = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?(?P<target>[/?].*)?",
    re.IGNORECASE,
)
HOST_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")  # some resolvers read a host that ends like this as IPv4
LOCAL_NAMES = (".localhost", ".local", ".internal", ".home.arpa")

IpAddress = IPv4Address | IPv6Address
HostLookup = Callable[[str, int], Awaitable[Iterable[str]]]
"""Resolves a host to its addresses; `SystemResolver.resolve` in production."""

NON_PUBLIC_IPV4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure WireServer: a public address, reachable from every machine there
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
GLOBAL_IPV6 = IPv6Network("2000::/3")  # the only global unicast block; mapped, local and multicast are outside
NON_PUBLIC_IPV6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo and ORCHID among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: embeds an IPv4 address
        "3fff::/20",  # documentation
    )
]
NAT64 = IPv6Network("64:ff9b::/96")  # IPv4 addresses as seen from an IPv6-only host


class DestinationRefused(Invalid):
    """The URL is well-formed, but only the operator can allow requests to it."""


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The origins that the operator allows: exact scheme and host; without a port, any port."""

    origins: frozenset[tuple[str, str, int | None]] = frozenset()

    @classmethod
    def of(cls, urls: Iterable[str]) -> Self:
        """Parse origins that the settings have validated."""
        parts = [urlsplit(origin) for origin in urls]
        return cls(frozenset((part.scheme, canonical_host(part.hostname or ""), part.port) for part in parts))

    def allows(self, scheme: str, host: str, port: int) -> bool:
        return not self.origins.isdisjoint({(scheme, host, port), (scheme, host, None)})


@dataclass(frozen=True, slots=True)
class Destination:
    """The parts of a URL. `allowed`: the operator allows this origin, so its address need not be public."""

    scheme: str
    host: str
    port: int
    target: str
    allowed: bool

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_destination(url: str, allowed_origins: AllowedOrigins) -> Destination:
    """Parse a URL; raise Invalid if it is malformed or not allowed.

    The host may still resolve to an address that is not public; `resolve_host` checks that.
    """
    if len(url) > MAX_URL_LENGTH:
        raise url_error(f"is longer than {MAX_URL_LENGTH} characters")
    if not URL_CHARACTERS.fullmatch(url):
        raise url_error("has characters that are not allowed in a URL; percent-encode them")
    if "#" in url:
        raise url_error("has a fragment, which is never sent")
    parts = URL_PATTERN.fullmatch(url)
    if parts is None:
        raise url_error("is not a URL such as https://host/path, without a user or password")
    scheme, target = parts["scheme"].lower(), parts["target"] or "/"
    host = parse_host(parts["host"].lower())
    port = int(parts["port"] or DEFAULT_PORTS[scheme])
    if port > MAX_PORT:
        raise url_error(f"has a port above {MAX_PORT}")
    allowed = allowed_origins.allows(scheme, host, port)
    if not allowed:
        check_public_destination(scheme, host)
    return Destination(scheme, host, port, target if target.startswith("/") else f"/{target}", allowed)


def parse_host(text: str) -> str:
    """Return a canonical IP address, or a host name that no resolver reads as an address."""
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise url_error("has a host that is not an IPv6 address") from None
    if parse_ip_literal(text):
        return text
    labels = text.split(".")
    if NUMERIC_LABEL.fullmatch(labels[-1]):
        raise url_error("has a host that is a number; write an IPv4 address as four decimal numbers")
    if len(text) > MAX_HOST_LENGTH or not all(HOST_LABEL.fullmatch(label) for label in labels):
        raise url_error("has a host that is not a valid name")
    return text


def check_public_destination(scheme: str, host: str) -> None:
    if scheme != "https":
        raise DestinationRefused.of_field("url", "does not begin with https://")
    address = parse_ip_literal(host)
    if address is not None:
        check_public_addresses([address])
    elif "." not in host or host.endswith(LOCAL_NAMES):
        raise DestinationRefused.of_field("url", "has a host on the local network")


async def resolve_host(host: str, port: int, lookup: HostLookup, *, allowed: bool) -> list[IpAddress]:
    """Return all addresses of a host, in the resolver's order. Refuses all of them if one is not public.

    A name with public and private addresses is likely an attack.
    """
    literal = parse_ip_literal(host)
    addresses = [literal] if literal else [ip_address(text) for text in dict.fromkeys(await lookup(host, port))]
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "no addresses")
    if not allowed:
        check_public_addresses(addresses)
    return addresses


def check_public_addresses(addresses: Iterable[IpAddress]) -> None:
    if not all(map(is_public_address, addresses)):
        raise DestinationRefused.of_field("url", "resolves to an address that is not public")


def is_public_address(address: IpAddress) -> bool:
    """Whether it is a unicast address on the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NON_PUBLIC_IPV4)
    if address in NAT64:
        return is_public_address(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in GLOBAL_IPV6 and not any(address in network for network in NON_PUBLIC_IPV6)


def parse_ip_literal(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def canonical_host(host: str) -> str:
    return str(parse_ip_literal(host) or host)


def url_error(problem: str) -> Invalid:
    return Invalid.of_field("url", problem)
