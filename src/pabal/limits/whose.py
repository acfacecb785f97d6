"""Whose address it is, as far as a limit is concerned."""

import ipaddress

IPV6_NETWORK_BITS = 64
"""Bits of an IPv6 address that a network gives somebody; the other half they choose themselves, anew for every call."""


def rate_limit_address(address: str) -> str:
    """What to count an address by: an IPv4 one by itself, an IPv6 one by its /64; what is no address stays as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    rest = parsed.max_prefixlen - IPV6_NETWORK_BITS
    return str(ipaddress.IPv6Network((int(parsed) >> rest << rest, IPV6_NETWORK_BITS)))
