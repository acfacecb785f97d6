"""Which servers the hub talks to: https to public addresses, and what the operator allows besides.

A URL is read once, here, by a grammar narrower than anybody else's. What passes goes on in pieces, never as text again,
so no second reader can find another host in it. No refusal quotes the URL: it may be a secret.
"""

import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Self
from urllib.parse import urlsplit

from pabal.core.errors import Invalid

LONGEST = 2048
LONGEST_NAME = 253
HIGHEST_PORT = 65535
PORTS = {"http": 80, "https": 443}

PLAIN = re.compile(r"[\x21-\x5b\x5d-\x7e]*")  # no blanks, no controls, no backslash, nothing that only looks like ASCII
URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[1-9][0-9]{0,4}))?(?P<target>[/?].*)?",
    re.IGNORECASE,
)
LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a last label like this makes some resolvers read an IPv4 address
LOCAL_NAMES = (".localhost", ".local", ".internal", ".home.arpa")

Address = IPv4Address | IPv6Address
Lookup = Callable[[str, int], Awaitable[Iterable[str]]]
"""Gives the addresses of a host; `Lookups.ask` is the real one."""

NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server: inside a public block, reachable from every machine there
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
PUBLIC_6 = IPv6Network("2000::/3")  # the only block handed out so far: mapped, local, multicast… all lie outside it
NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo and ORCHID among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
]
NAT64 = IPv6Network("64:ff9b::/96")  # how a host without IPv4 sees the rest of the world


@dataclass(frozen=True, slots=True)
class Origins:
    """What the operator allows besides: exact scheme and host, and a port or any."""

    each: frozenset[tuple[str, str, int | None]] = frozenset()

    @classmethod
    def of(cls, written: Iterable[str]) -> Self:
        """Read origins as the settings have checked them."""
        parts = [urlsplit(origin) for origin in written]
        return cls(frozenset((part.scheme, canonical(part.hostname or ""), part.port) for part in parts))

    def admit(self, scheme: str, host: str, port: int) -> bool:
        return not self.each.isdisjoint({(scheme, host, port), (scheme, host, None)})


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a URL leads, in pieces. `allowed` by the operator: then it may be anywhere."""

    scheme: str
    host: str
    port: int
    target: str
    allowed: bool

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def read(url: str, origins: Origins) -> Destination:
    """Say where a URL leads, or raise Invalid: it cannot be read, or nobody may go there.

    A name may still turn out to lead to an address that is not public; `resolve` finds out.
    """
    if len(url) > LONGEST:
        raise refused(f"is longer than {LONGEST} characters")
    if not PLAIN.fullmatch(url):
        raise refused("has characters that no address has; percent-encode them")
    if "#" in url:
        raise refused("has a fragment, which is never sent")
    parts = URL.fullmatch(url)
    if parts is None:
        raise refused("is not an address such as https://host/path, without a user or password")
    scheme, target = parts["scheme"].lower(), parts["target"] or "/"
    host = host_of(parts["host"].lower())
    port = int(parts["port"] or PORTS[scheme])
    if port > HIGHEST_PORT:
        raise refused(f"has a port above {HIGHEST_PORT}")
    allowed = origins.admit(scheme, host, port)
    if not allowed:
        check_outside(scheme, host)
    return Destination(scheme, host, port, target if target.startswith("/") else f"/{target}", allowed)


def host_of(written: str) -> str:
    """An address in its one canonical form, or a name that nobody can mistake for an address."""
    if written.startswith("["):
        try:
            return str(IPv6Address(written[1:-1]))
        except ValueError:
            raise refused("has a host that is not an IPv6 address") from None
    if literal(written):
        return written
    labels = written.split(".")
    if NUMBER.fullmatch(labels[-1]):
        raise refused("has a host that is a number; write an IPv4 address as four decimal ones")
    if len(written) > LONGEST_NAME or not all(LABEL.fullmatch(label) for label in labels):
        raise refused("has a host that is not a name")
    return written


def check_outside(scheme: str, host: str) -> None:
    if scheme != "https":
        raise refused("does not begin with https://")
    address = literal(host)
    if address is not None:
        check_public([address])
    elif "." not in host or host.endswith(LOCAL_NAMES):
        raise refused("has a host of the local network")


async def resolve(host: str, port: int, lookup: Lookup, *, allowed: bool) -> list[Address]:
    """Give every address of a host, in the resolver's order; one that is not public spoils them all.

    Whoever mixes a private address among public ones waits for us to try it.
    """
    address = literal(host)
    found = [address] if address else [ip_address(text) for text in dict.fromkeys(await lookup(host, port))]
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "no addresses")
    if not allowed:
        check_public(found)
    return found


def check_public(addresses: Iterable[Address]) -> None:
    if not all(map(is_public, addresses)):
        raise refused("leads to an address that is not public")


def is_public(address: Address) -> bool:
    """Whether it is somebody's unicast address on the open internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_4)
    if address in NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in PUBLIC_6 and not any(address in network for network in NOT_PUBLIC_6)


def literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def canonical(host: str) -> str:
    return str(literal(host) or host)


def refused(why: str) -> Invalid:
    return Invalid.one("url", why)
