"""Keys of addresses: an IPv6 customer has too many addresses to count each one."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pabal.limits import rate_limit_address

HALF = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("nowhere", "nowhere"),
        ("", ""),
    ],
)
def test_an_address_is_counted_by_its_network(address: str, counted: str) -> None:
    assert rate_limit_address(address) == counted


@given(network=HALF, one=HALF, other=HALF)
def test_all_addresses_of_an_ipv6_network_share_a_key(network: int, one: int, other: int) -> None:
    assume(network)  # network 0 contains the mapped IPv4 addresses
    assert rate_limit_address(str(IPv6Address(network << 64 | one))) == rate_limit_address(
        str(IPv6Address(network << 64 | other))
    )


@given(one=HALF, other=HALF, rest=HALF)
def test_two_networks_have_different_keys(one: int, other: int, rest: int) -> None:
    assume(one != other)
    assert rate_limit_address(str(IPv6Address(one << 64 | rest))) != rate_limit_address(
        str(IPv6Address(other << 64 | rest))
    )


@given(one=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_every_ipv4_address_has_its_own_key(one: int, other: int) -> None:
    assert (rate_limit_address(str(IPv4Address(one))) == rate_limit_address(f"::ffff:{IPv4Address(other)}")) is (
        one == other
    )
